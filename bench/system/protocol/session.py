"""A session of a CN: requests, answers, and the rules R1 to R12 of the protocol's page, as far as a CN keeps them.

A session lasts as long as this program's work, some seconds. So it does not get new keys after 120 s; and it has no rate
control: what the MN asks for by Congestion is counted."""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import frame as wire
from frame import LINE, TO_CN, TO_MN, Frame, Place, nearest, padded
from handshake import Access, agree
from link import Link

# Seconds: the first time-out, the longest, and without progress until the session counts as dead.
TIMEOUT, TIMEOUT_MAX, DEAD = 0.02, 1.0, 5.0
# Byes sent before the session counts as ended without an answer.
BYES = 3
WRITES = {wire.WRITE_REQ, wire.BURST_WRITE_REQ, wire.MULTI_WRITE_REQ}


class Ended(Exception):
    """The session is over."""


@dataclass(frozen=True)
class Single:
    """A request of one number, as a frame of its own asks it."""

    command: int
    address: int
    payload: bytes = b""


@dataclass(frozen=True)
class Request:
    """A frame, and the requests that it stands for."""

    command: int
    address: int
    payload: bytes
    singles: tuple[Single, ...]

    @staticmethod
    def alone(command: int, address: int, payload: bytes = b"") -> Request:
        return Request(command, address, payload, (Single(command, address, payload),))


@dataclass
class Answer:
    """What a request has come to."""

    fault: int | None = None
    lines: list[bytes] = field(default_factory=list)


@dataclass
class Pending:
    """A request that waits for its answer."""

    single: Single
    tag: int
    sent: float
    repeated: bool = False
    arrived: bool = False
    answer: Answer | None = None


@dataclass
class Stream:
    """The counts of one stream."""

    next: int = 1
    pending: dict[int, Pending] = field(default_factory=dict)

    def oldest(self) -> int:
        return next(iter(self.pending), self.next)

    def room(self, request: Request, window: int) -> bool:
        """R1."""
        kind = request.command in WRITES
        waiting = sum((p.single.command in WRITES) == kind for p in self.pending.values())
        return waiting + len(request.singles) <= window


class Session:
    """An open session. Each call returns when all that it asked for is answered."""

    def __init__(self, link: Link, mn: bytes, access: Access) -> None:
        agreed = agree(link, mn, access)
        self.link, self.mn, self.ack, self.trailer = link, mn, agreed.ack, agreed.trailer
        self.streams = [Stream() for _ in range(agreed.ack.streams)]
        self.control_next, self.control_seen = 1, 0
        self.counted: Counter[str] = Counter()
        self.round_trip = 0.001
        self._until(wire.START, wire.START_ACK)

    # How much fits.

    def _fits(self, fixed: int, each: int) -> int:
        return min((self.ack.largest - fixed - self.trailer.length) // each, 64)

    def read_lines_max(self) -> int:
        """Lines of an answer."""
        return self._fits(wire.HEADER + 1, LINE)

    def burst_write_lines_max(self) -> int:
        return self._fits(wire.HEADER + 8, LINE)

    def many_writes_max(self) -> int:
        return self._fits(20, 6 + LINE)

    # Requests.

    def read(self, address: int) -> Request:
        return Request.alone(wire.READ_REQ, address)

    def write(self, address: int, line: bytes) -> Request:
        return Request.alone(wire.WRITE_REQ, address, line)

    def burst_read(self, address: int, lines: int) -> Request:
        """A long burst where one answer does not carry the lines."""
        most = self.read_lines_max()
        parts = [(at, min(most, lines - at)) for at in range(0, lines, most)]
        singles = tuple(Single(wire.BURST_READ_REQ, address + LINE * at, bytes([n])) for at, n in parts)
        return Request(wire.BURST_READ_REQ, address, bytes([lines]), singles)

    def burst_write(self, address: int, lines: dict[int, bytes]) -> Request:
        """Lines by their place behind `address`, in lines."""
        mask = sum(1 << at for at in lines).to_bytes(8, "big")
        return Request.alone(wire.BURST_WRITE_REQ, address, mask + b"".join(lines[at] for at in sorted(lines)))

    def many(self, lines: dict[int, bytes | None]) -> Request:
        """Reads of any addresses, or writes where all have a line."""
        addresses = list(lines)
        data = [line for line in lines.values() if line is not None]
        head = bytes([len(lines)]) + b"".join(address.to_bytes(6, "big") for address in addresses[1:])
        command, single = (wire.MULTI_WRITE_REQ, wire.WRITE_REQ) if data else (wire.MULTI_READ_REQ, wire.READ_REQ)
        singles = tuple(Single(single, address, line or b"") for address, line in lines.items())
        return Request(command, addresses[0], head + b"".join(data), singles)

    def run(self, *requests: Request) -> list[Answer]:
        """Asks all of them; the answers of each in one, the first fault of it."""
        waiting = deque(enumerate(requests))
        asked: list[list[Pending]] = [[] for _ in requests]
        timeout, progress = TIMEOUT, time.monotonic()
        while waiting or any(stream.pending for stream in self.streams):
            for index, request in list(waiting):
                stream = self.stream_of(request.address)
                if not self.streams[stream].room(request, self.ack.window):
                    break
                asked[index] = self._ask(stream, request)
                waiting.popleft()
            before = self._unanswered()
            if self._take(timeout) and self._unanswered() < before:
                timeout, progress = TIMEOUT, time.monotonic()
            elif time.monotonic() - progress > DEAD:
                raise Ended("the memory node does not answer any more")
            elif time.monotonic() - self._latest() > timeout:
                # R8.
                timeout = min(2 * timeout, TIMEOUT_MAX)
                for number, of in enumerate(self.streams):
                    for at in {of.oldest(), of.next - 1} & of.pending.keys():
                        self._repeat(number, at)
        return [_joined([p.answer or Answer() for p in parts]) for parts in asked]

    def stream_of(self, address: int) -> int:
        """R12: by the page."""
        return address // wire.PAGE % len(self.streams)

    def alive(self) -> None:
        """Asks whether the MN is there."""
        self._until(wire.PING, wire.PONG)

    def end(self) -> None:
        """A Bye that comes after the session's end has no answer: who has lost the ByeAck is done after three."""
        for _ in range(BYES):
            if self._came(wire.BYE, wire.BYE_ACK):
                return

    # Frames.

    def sealed(self, single: Single, stream: int, number: int, tag: int = 0) -> bytes:
        """A frame of a request, as it is sent."""
        body = Frame(self.mn, self.link.mac, single.command, number, stream, tag, single.address, single.payload)
        return padded(self.trailer.seal(Place(TO_MN, False, stream, number), body.body()))

    def take_numbers(self, stream: int, count: int = 1) -> int:
        """Numbers of a stream for frames that are made by hand; the first of them."""
        self.streams[stream].next += count
        return self.streams[stream].next - count

    def receive(self, timeout: float) -> tuple[int, Frame] | None:
        """The next frame of this session, with its full number; what is wrong is counted and nothing else (R9)."""
        received = self.link.receive(timeout)
        if received is None:
            return None
        end = wire.body_length(received)
        if end is None or (received[:6], received[6:12]) != (self.link.mac, self.mn):
            self.counted["not of this session"] += 1
            return None
        got = Frame.parse(received[:end])
        control = got.command in wire.CONTROL
        if not control and got.stream >= len(self.streams):
            self.counted["of no stream"] += 1
            return None
        expected = self.control_seen + 1 if control else self.streams[got.stream].oldest()
        number = nearest(got.number, expected)
        body = self.trailer.open(Place(TO_CN, control, got.stream, number), received, end)
        if body is None:
            self.counted["wrong trailers"] += 1
            return None
        return number, Frame.parse(body)

    def control(self, command: int) -> None:
        body = Frame(self.mn, self.link.mac, command, self.control_next).body()
        place = Place(TO_MN, True, 0, self.control_next)
        self.control_next += 1
        self.link.send(padded(self.trailer.seal(place, body)))

    def taken(self, number: int, got: Frame) -> bool:
        """Looks after a control frame; says whether it was one that counts."""
        if number <= self.control_seen:
            return False
        self.control_seen = number
        if got.command == wire.PING:
            self.control(wire.PONG)
        elif got.command == wire.BYE:
            self.control(wire.BYE_ACK)
            raise Ended("the memory node has ended the session")
        elif got.command == wire.CONGESTION:
            self.counted["congestion"] += 1
        return True

    def _until(self, command: int, answer: int) -> None:
        end = time.monotonic() + DEAD
        while time.monotonic() < end:
            if self._came(command, answer):
                return
        raise Ended(f"no answer to command {command:#x}")

    def _came(self, command: int, answer: int) -> bool:
        """Sends a control frame once; says whether its answer came in time."""
        self.control(command)
        again = time.monotonic() + 5 * TIMEOUT
        while (left := again - time.monotonic()) > 0:
            taken = self.receive(left)
            if taken and taken[1].command in wire.CONTROL and self.taken(*taken) and taken[1].command == answer:
                return True
        return False

    def _ask(self, stream: int, request: Request) -> list[Pending]:
        of = self.streams[stream]
        first, now = of.next, time.monotonic()
        added = [Pending(single, (first + at) % 256, now) for at, single in enumerate(request.singles)]
        of.pending |= {first + at: pending for at, pending in enumerate(added)}
        of.next += len(added)
        whole = Single(request.command, request.address, request.payload)
        self.link.send(self.sealed(whole, stream, first, first % 256))
        return added

    def _repeat(self, stream: int, number: int) -> None:
        pending = self.streams[stream].pending[number]
        pending.sent, pending.repeated = time.monotonic(), True
        self.counted["repeated"] += 1
        self.link.send(self.sealed(pending.single, stream, number, pending.tag))

    def _take(self, timeout: float) -> bool:
        taken = self.receive(timeout)
        if taken is None:
            return False
        number, got = taken
        self.counted[f"{got.command:#04x}"] += 1
        if got.command in wire.CONTROL:
            return self.taken(number, got)
        lines = [got.payload[at : at + LINE] for at in range(1, len(got.payload), LINE)]
        if got.command in (wire.SACK_NAK, wire.SACK_NAK_ACK):
            self._sack(got, number)
        elif got.command == wire.READ_RESP:
            self._answered(got.stream, number, Answer(None, [got.payload]))
        elif got.command == wire.BURST_READ_RESP:
            self._answered(got.stream, number, Answer(None, lines))
        elif got.command == wire.MULTI_READ_RESP:
            for at, line in enumerate(lines):
                self._answered(got.stream, number + at, Answer(None, [line]))
        elif got.command == wire.WRITE_RESP:
            self._answered(got.stream, number, Answer())
        elif got.command == wire.MULTI_WRITE_RESP:
            for at in range(got.payload[0]):
                self._answered(got.stream, number + at, Answer())
        elif got.command == wire.FAULT:
            self._answered(got.stream, number, Answer(got.payload[0]))
        return True

    def _sack(self, got: Frame, number: int) -> None:
        """R4, R5."""
        stream = self.streams[got.stream]
        upto = nearest(struct.unpack(">H", got.payload[:2])[0], stream.oldest())
        if got.command == wire.SACK_NAK_ACK:
            low = struct.unpack(">H", got.payload[2:4])[0]
            self._answered(got.stream, nearest(low, stream.oldest()), Answer())
        for at, pending in stream.pending.items():
            pending.arrived |= at <= upto or at == number
        self._repeat_before(got.stream, number)

    def _repeat_before(self, stream: int, number: int) -> None:
        due = time.monotonic() - self.round_trip
        pending = self.streams[stream].pending
        for at in [at for at, p in pending.items() if at < number and not p.arrived]:
            if not pending[at].repeated or pending[at].sent < due:
                self._repeat(stream, at)

    def _answered(self, stream: int, number: int, answer: Answer) -> None:
        pending = self.streams[stream].pending.pop(number, None)
        if pending is None:
            return
        pending.answer = answer
        if not pending.repeated:
            self.round_trip += (time.monotonic() - pending.sent - self.round_trip) / 8
        # R6.
        self._repeat_before(stream, number)

    def _unanswered(self) -> int:
        return sum(len(stream.pending) for stream in self.streams)

    def _latest(self) -> float:
        return max((p.sent for stream in self.streams for p in stream.pending.values()), default=0.0)


def _joined(answers: list[Answer]) -> Answer:
    fault = next((answer.fault for answer in answers if answer.fault), None)
    return Answer(fault, [line for answer in answers for line in answer.lines])
