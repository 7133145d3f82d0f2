"""Frames: their bytes, and where they end. Sections "A frame", "Commands" and "Payloads" of the protocol's page."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

LINE = 64
PAGE = 4096
ETHERTYPE = 0x88B5
HEADER = 25
SHORTEST = 60
LONGEST = 4151

READ_REQ, WRITE_REQ, BURST_READ_REQ, BURST_WRITE_REQ, MULTI_READ_REQ, MULTI_WRITE_REQ = range(0x01, 0x07)
HELLO, PING, BYE, START = range(0x10, 0x14)
READ_RESP, WRITE_RESP, SACK_NAK, SACK_NAK_ACK, CONGESTION = range(0x81, 0x86)
BURST_READ_RESP, FAULT, MULTI_READ_RESP, MULTI_WRITE_RESP = range(0x86, 0x8A)
HELLO_ACK, PONG, BYE_ACK, START_ACK = range(0x90, 0x94)

# Commands that are numbered by session and direction, not by stream.
CONTROL = {PING, BYE, START, CONGESTION, PONG, BYE_ACK, START_ACK}

# Bytes of payload, where they do not depend on what the payload begins with.
FIXED = {
    READ_REQ: 0,
    WRITE_REQ: LINE,
    BURST_READ_REQ: 1,
    HELLO: 40,
    PING: 0,
    BYE: 0,
    START: 0,
    READ_RESP: LINE,
    WRITE_RESP: 0,
    SACK_NAK: 2,
    SACK_NAK_ACK: 6,
    CONGESTION: 18,
    FAULT: 1,
    MULTI_WRITE_RESP: 1,
    HELLO_ACK: 64,
    PONG: 0,
    BYE_ACK: 0,
    START_ACK: 0,
}

TO_MN, TO_CN = 0, 1


class Place(NamedTuple):
    """The facts that trailers cover and frames do not hold: who sends, and under which full number."""

    direction: int
    control: bool
    stream: int
    number: int

    def short(self) -> bytes:
        return bytes([self.direction, int(self.control), 0 if self.control else self.stream, 0])


@dataclass(frozen=True)
class Frame:
    """The body of a frame: header and payload."""

    destination: bytes
    source: bytes
    command: int
    number: int
    stream: int = 0
    tag: int = 0
    address: int = 0
    payload: bytes = b""

    def body(self) -> bytes:
        ethernet = self.destination + self.source + struct.pack(">H", ETHERTYPE)
        base = struct.pack(">BHBB", self.command, self.number & 0xFFFF, self.stream, self.tag)
        return ethernet + base + self.address.to_bytes(6, "big") + self.payload

    @staticmethod
    def parse(body: bytes) -> Frame:
        command, number, stream, tag = struct.unpack(">BHBB", body[14:19])
        address = int.from_bytes(body[19:HEADER], "big")
        return Frame(body[:6], body[6:12], command, number, stream, tag, address, body[HEADER:])


def body_length(frame: bytes) -> int | None:
    """The length of what begins with a body; nothing for what cannot be delimited."""
    if len(frame) < HEADER:
        return None
    command, head = frame[14], frame[HEADER:]
    if command in FIXED:
        payload = FIXED[command]
    elif command in (BURST_READ_RESP, MULTI_READ_RESP) and head:
        payload = 1 + LINE * head[0]
    elif command in (MULTI_READ_REQ, MULTI_WRITE_REQ) and head:
        payload = 1 + 6 * max(head[0] - 1, 0) + (LINE * head[0] if command == MULTI_WRITE_REQ else 0)
    elif command == BURST_WRITE_REQ and len(head) >= 8:
        payload = 8 + LINE * int.from_bytes(head[:8], "big").bit_count()
    elif command <= 0x0F or 0x20 <= command <= 0x6F:
        payload = 0
    else:
        return None
    length = HEADER + payload
    return length if length <= len(frame) else None


def readable_length(command: int) -> int:
    """How much of a sealed frame is readable: the headers, and what the length of the body depends on."""
    if command == BURST_WRITE_REQ:
        return HEADER + 8
    counted = (BURST_READ_REQ, BURST_READ_RESP, MULTI_READ_REQ, MULTI_WRITE_REQ, MULTI_READ_RESP, MULTI_WRITE_RESP)
    return HEADER + 1 if command in counted else HEADER


def padded(frame: bytes) -> bytes:
    return frame.ljust(SHORTEST, b"\0")


def nearest(low: int, expected: int) -> int:
    """The full number with these low 16 bits that is nearest to the one expected."""
    return max(expected + ((low - expected + 0x8000) & 0xFFFF) - 0x8000, low)


@dataclass(frozen=True)
class Hello:
    """The payload of a Hello."""

    version: int
    integrity: int
    streams: int
    features: int
    nonce: bytes
    instance: int
    largest: int

    def payload(self) -> bytes:
        fixed = struct.pack(">HBBI", self.version, self.integrity, self.streams, self.features)
        return fixed + self.nonce + struct.pack(">QH14x", self.instance, self.largest)


@dataclass(frozen=True)
class HelloAck:
    """The payload of a HelloAck."""

    oldest: int
    newest: int
    status: int
    integrity: int
    window: int
    hello_nonce: bytes
    session: int
    nonce: bytes
    incarnation: int
    features: int
    largest: int
    streams: int

    def payload(self) -> bytes:
        fixed = struct.pack(">HHBBH", self.oldest, self.newest, self.status, self.integrity, self.window)
        fixed += self.hello_nonce + struct.pack(">Q", self.session) + self.nonce
        return fixed + struct.pack(">QIHB17x", self.incarnation, self.features, self.largest, self.streams)

    @staticmethod
    def parse(payload: bytes) -> HelloAck:
        fields = struct.unpack(">HHBBH8sQ8sQIHB17x", payload)
        return HelloAck(*fields)
