"""What a session has to do, by the rules of the protocol's page; each check names those that it is of."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import frame as wire
from frame import LINE, PAGE, Frame, nearest
from session import DEAD, Answer, Request, Session, Single, Stream

GOLDEN, WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Failed(Exception):
    """A check has found something else than the page says."""


def ensure(holds: bool, what: object) -> None:
    if not holds:
        raise Failed(str(what))


def line(place: int, seed: int) -> bytes:
    """The line at `place` as the writer `seed` writes it: that of the project's other tests (bench/system/src/lines.rs)."""
    mixed = place ^ seed << 32
    return b"".join(((mixed + at) * GOLDEN & WORD | 1).to_bytes(8, "little") for at in range(LINE // 8))


def fill(session: Session, base: int, size: int, seed: int) -> None:
    """Writes all lines: of each four pages one by single lines, one by bursts with and without holes, one by frames of many
    lines, one by whole bursts."""
    content = {at: line(at - base, seed) for at in range(base, base + size, LINE)}
    for page in range(base, base + size, PAGE):
        addresses = range(page, page + PAGE, LINE)
        kind = (page - base) // PAGE % 4
        if kind == 0:
            requests = [session.write(at, content[at]) for at in addresses]
        elif kind == 1:
            thirds = [range(first, 64, 3) for first in range(3)]
            requests = [session.burst_write(page, {n: content[page + LINE * n] for n in lot}) for lot in thirds]
        else:
            most = session.many_writes_max() if kind == 2 else session.burst_write_lines_max()
            lots = [list(addresses)[at : at + most] for at in range(0, 64, most)]
            if kind == 2:
                # A frame of many has two lines at least.
                requests = [session.many({at: content[at] for at in lot}) for lot in lots if len(lot) > 1]
                requests += [session.write(lot[0], content[lot[0]]) for lot in lots if len(lot) == 1]
            else:
                requests = [session.burst_write(lot[0], {n: content[at] for n, at in enumerate(lot)}) for lot in lots]
        for answer in session.run(*requests):
            ensure(answer.fault is None, f"a write of page {page:#x} fails: {answer.fault}")


def verify(session: Session, base: int, size: int, seed: int) -> None:
    """Reads all lines, each page by one long burst and by a frame of many, and its first line alone."""
    for page in range(base, base + size, PAGE):
        content = [line(at - base, seed) for at in range(page, page + PAGE, LINE)]
        most = session.read_lines_max()
        some: dict[int, bytes | None] = {page + LINE * (most - 1 - n): None for n in range(most)}
        burst, many, alone = session.run(session.burst_read(page, 64), session.many(some), session.read(page))
        ensure(burst == Answer(None, content), f"the burst of page {page:#x} is another")
        ensure(many == Answer(None, content[:most][::-1]), f"the lines of page {page:#x} are others")
        ensure(alone == Answer(None, content[:1]), f"line {page:#x} is another")


def value(session: Session, address: int) -> bytes:
    (answer,) = session.run(session.read(address))
    ensure(answer.fault is None, f"reading {address:#x} fails: {answer.fault}")
    return answer.lines[0]


class Frames:
    """Frames made by hand in one stream, and what comes for them."""

    def __init__(self, session: Session, address: int) -> None:
        self.session, self.address = session, address
        self.number = session.stream_of(address)
        self.stream: Stream = session.streams[self.number]

    def take(self, count: int = 1) -> int:
        return self.session.take_numbers(self.number, count)

    def frame(self, number: int, command: int, payload: bytes = b"", address: int | None = None) -> bytes:
        single = Single(command, self.address if address is None else address, payload)
        return self.session.sealed(single, self.number, number)

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self.session.link.send(frame)

    def answers(self, count: int) -> list[tuple[int, Frame]]:
        """The next answers of the stream, so many of them."""
        found: list[tuple[int, Frame]] = []
        end = time.monotonic() + DEAD
        while len(found) < count:
            ensure(time.monotonic() < end, f"{count} answers expected: {found}")
            taken = self.session.receive(DEAD)
            if taken and taken[1].command in wire.CONTROL:
                self.session.taken(*taken)
            elif taken:
                found.append(taken)
        return found

    def expect(self, *expected: tuple[int, int, bytes]) -> None:
        """These numbers, commands and payloads, in this order."""
        found = [(number, got.command, got.payload) for number, got in self.answers(len(expected))]
        ensure(found == list(expected), f"{expected} expected: {found}")


def wrong_trailers_are_ignored(session: Session, page: int) -> None:
    """R9: the number that a damaged write bears is not used up by it, and its line stays."""
    frames = Frames(session, page)
    before = value(session, page)
    number = frames.take()
    good = frames.frame(number, wire.WRITE_REQ, b"\xee" * LINE)
    trailer = wire.HEADER + LINE
    # The trailer, the line, an address, and one byte too few.
    damaged = [bytearray(good) for _ in range(3)]
    for at, frame in zip((trailer, wire.HEADER, wire.HEADER - 1), damaged):
        frame[at] ^= 0x40
    frames.send(*map(bytes, damaged), good[:-1], frames.frame(number, wire.READ_REQ))
    frames.expect((number, wire.READ_RESP, before))


def repetitions_are_executed_once(session: Session, page: int) -> None:
    """R7: a write that is repeated behind a later one of its line is acknowledged again, and changes nothing."""
    frames = Frames(session, page)
    first = frames.take(2)
    older, newer = (frames.frame(first + at, wire.WRITE_REQ, bytes([at + 1]) * LINE) for at in range(2))
    frames.send(older)
    frames.expect((first, wire.WRITE_RESP, b""))
    frames.send(newer)
    frames.expect((first + 1, wire.WRITE_RESP, b""))
    # The same bytes, and the same request in a frame of its own.
    frames.send(older)
    frames.expect((first, wire.WRITE_RESP, b""))
    frames.send(frames.frame(first, wire.WRITE_REQ, b"\x01" * LINE))
    frames.expect((first, wire.WRITE_RESP, b""))
    ensure(value(session, page) == b"\x02" * LINE, "a repeated write was executed again")


def early_requests_wait(session: Session, page: int) -> None:
    """R2, R4: the request behind a gap is answered by a SackNak, and executed behind the one that fills the gap."""
    frames = Frames(session, page)
    first = frames.take(2)
    frames.send(frames.frame(first + 1, wire.READ_REQ))
    frames.expect((first + 1, wire.SACK_NAK, struct.pack(">H", first - 1 & 0xFFFF)))
    frames.send(frames.frame(first, wire.WRITE_REQ, b"\x77" * LINE))
    frames.expect((first, wire.WRITE_RESP, b""), (first + 1, wire.READ_RESP, b"\x77" * LINE))


def senseless_requests_use_up_their_numbers(session: Session, page: int) -> None:
    """R9, and addresses at which nothing is."""
    frames = Frames(session, page)
    mask = (1 << 63 | 1).to_bytes(8, "big")
    senseless = [
        (wire.READ_REQ, b"", page + 1),
        (wire.BURST_READ_REQ, b"\0", page),
        (wire.BURST_READ_REQ, b"\x41", page),
        (wire.BURST_READ_REQ, b"\x02", page + PAGE - LINE),
        (wire.BURST_WRITE_REQ, bytes(8), page),
        (wire.BURST_WRITE_REQ, mask + bytes(2 * LINE), page + LINE),
        (wire.MULTI_READ_REQ, b"\0", page),
        (0x20, b"", page),
    ]
    first = frames.take(len(senseless))
    before = value_behind(session, frames, first, senseless)
    ensure(before == value(session, page), "a request without sense has changed a line")
    for address in ((1 << 48) - PAGE, 1 << 40):
        (answer,) = session.run(session.read(address))
        ensure(answer.fault == 1, f"nothing is mapped at {address:#x}: {answer}")


def value_behind(session: Session, frames: Frames, first: int, senseless: list[tuple[int, bytes, int]]) -> bytes:
    for at, (command, payload, address) in enumerate(senseless):
        frames.send(frames.frame(first + at, command, payload, address))
        frames.expect((first + at, wire.FAULT, b"\x05"))
    return value(session, frames.address)


def long_bursts_have_several_answers(session: Session, page: int) -> None:
    """Feature 4: the answers to a page's burst, one for each number."""
    frames = Frames(session, page)
    request = session.burst_read(page, 64)
    count = len(request.singles)
    first = frames.take(count)
    frames.send(session.sealed(Single(wire.BURST_READ_REQ, page, b"\x40"), frames.number, first, 254))
    for at, (number, got) in enumerate(frames.answers(count)):
        single = request.singles[at]
        ensure((number, got.command) == (first + at, wire.BURST_READ_RESP), got)
        ensure((got.tag, got.address) == ((254 + at) % 256, single.address), got)
        ensure(got.payload[:1] == single.payload and len(got.payload) == 1 + LINE * single.payload[0], got)


def masks_write_their_lines_alone(session: Session, page: int) -> None:
    """The lines of a burst that its mask does not name stay as they are."""
    session.run(*[session.burst_write(page + LINE * at, {0: bytes([at]) * LINE}) for at in range(64)])
    changed = {at: bytes([at | 0x80]) * LINE for at in (0, 5, 19)}
    ensure(session.run(session.burst_write(page + 16 * LINE, changed)) == [Answer()], "the burst fails")
    expected = [changed.get(at - 16, bytes([at]) * LINE) for at in range(64)]
    (answer,) = session.run(session.burst_read(page, 64))
    ensure(answer.lines == expected, "other lines than those of the mask were written")


def old_control_frames_are_ignored(session: Session, page: int) -> None:
    """R11: a Bye under a number that was used ends nothing."""
    body = Frame(session.mn, session.link.mac, wire.BYE, 1).body()
    place = wire.Place(wire.TO_MN, True, 0, 1)
    session.link.send(wire.padded(session.trailer.seal(place, body)))
    session.alive()
    value(session, page)


def numbers_come_round(session: Session, page: int) -> None:
    """R11: beyond the 16 bits of a frame, and no frame of the turn before passes for one of now."""
    frames = Frames(session, page)
    stale = frames.take()
    late = frames.frame(stale, wire.WRITE_REQ, b"\xdd" * LINE)
    frames.send(frames.frame(stale, wire.WRITE_REQ, b"\x11" * LINE))
    frames.expect((stale, wire.WRITE_RESP, b""))
    most = session.read_lines_max()
    reads: Request = session.many({page + LINE * at: None for at in range(most)})
    while frames.stream.next < stale + 65536 - most:
        batch = min(16, (stale + 65536 - frames.stream.next) // most)
        session.run(*[reads] * batch)
    while frames.stream.next < stale + 65536:
        value(session, page)
    ensure(nearest(stale & 0xFFFF, frames.stream.next) == stale + 65536, "the low bits are the same again")
    frames.send(late)
    ensure(value(session, page) == b"\x11" * LINE, "a frame of an earlier turn was executed")


CHECKS: list[Callable[[Session, int], None]] = [
    wrong_trailers_are_ignored,
    repetitions_are_executed_once,
    early_requests_wait,
    senseless_requests_use_up_their_numbers,
    long_bursts_have_several_answers,
    masks_write_their_lines_alone,
    old_control_frames_are_ignored,
]
