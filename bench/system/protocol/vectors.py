"""The worked examples of the protocol's page, computed."""

from __future__ import annotations

import itertools
import re

import frame as wire
from frame import TO_CN, TO_MN, Frame, Hello, HelloAck, Place, padded
from noise import NANOS, Initiator, Key, Responder, ack_mac, mac1, prologue, time_stamp
from trailer import GCM_CONTEXT, OUTSIDE, SIV_CONTEXT, Gcm, GcmSiv, Plain, Trailer, session_keys

CN, MN = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def counting(first: int, count: int) -> bytes:
    return bytes(range(first, first + count))


def handshake(features: int) -> list[bytes]:
    """The handshake between keys: the public keys, Hello, HelloAck, Start, StartAck."""
    cn, mn = Key.of(b"\x11" * 32), Key.of(b"\x22" * 32)
    hello = Hello(2, 2, 2, features, counting(0x40, 8), 77, 1514)
    start = prologue(CN, MN, hello.payload())
    control = [Place(way, True, 0, 0) for way in (TO_MN, TO_CN)]

    caller = Initiator(cn, mn.public, Key.of(counting(0x40, 32)), start)
    call = OUTSIDE.seal(control[TO_MN], Frame(MN, CN, wire.HELLO, 0, payload=hello.payload()).body())
    call += caller.call(time_stamp(1_700_000_000 * NANOS + 1000))
    call += mac1(mn.public, call)

    called = Responder(mn, Key.of(counting(0x80, 32)), start)
    called.listen(call[69:177])
    session = int.from_bytes(counting(0x80, 8), "big")
    ack = HelloAck(1, 2, 0, 2, 256, hello.nonce, session, counting(0x80, 8), 1000, features, 1514, 2)
    answer = OUTSIDE.seal(control[TO_CN], Frame(CN, MN, wire.HELLO_ACK, 0, payload=ack.payload()).body())
    message, secret = called.answer()
    answer += message
    answer += ack_mac(secret, answer)
    if caller.conclude(message) != secret:
        raise AssertionError("both ends have the same secret")

    keys = session_keys(GCM_CONTEXT, secret, CN, MN, hello, ack)
    first = [Place(way, True, 0, 1) for way in (TO_MN, TO_CN)]
    starts = [
        padded(Gcm(keys).seal(first[TO_MN], Frame(MN, CN, wire.START, 1).body())),
        padded(Gcm(keys).seal(first[TO_CN], Frame(CN, MN, wire.START_ACK, 1).body())),
    ]
    return [cn.public, mn.public, call + bytes(16), answer, *starts]


def write(trailer: Trailer) -> bytes:
    """The write of the examples: number 0x10002 of stream 1."""
    body = Frame(MN, CN, wire.WRITE_REQ, 0x10002, 1, 5, 0x1040, counting(0, 64)).body()
    return trailer.seal(Place(TO_MN, False, 1, 0x10002), body)


def acknowledgement(trailer: Trailer) -> bytes:
    body = Frame(CN, MN, wire.WRITE_RESP, 0x10002, 1, 5, 0x1040).body()
    return padded(trailer.seal(Place(TO_CN, False, 1, 0x10002), body))


def pre_shared() -> GcmSiv:
    """The session of the sealed write."""
    hello = Hello(1, 1, 4, 0, bytes.fromhex("0102030405060708"), 0xA0A1A2A3A4A5A6A7, 1514)
    session, nonce = 0x1122334455667788, bytes.fromhex("1112131415161718")
    ack = HelloAck(1, 1, 0, 1, 256, hello.nonce, session, nonce, 0xB0B1B2B3B4B5B6B7, 0, 1514, 4)
    key = b"a pre-shared key of 32 bytes".ljust(32)
    return GcmSiv(session_keys(SIV_CONTEXT, key, CN, MN, hello, ack))


def leading_bytes(line: str) -> str:
    """The bytes that a line of the page begins with, before it says what they are."""
    words = itertools.takewhile(lambda word: re.fullmatch(r"([0-9a-f]{2})+", word), line.split())
    return "".join(words)


def check(page: str) -> list[str]:
    """Computes all examples; those that the page has otherwise."""
    features = re.search(r"features are (\d+)", page)
    if features is None:
        return ["the features of the worked handshake, which the page does not say"]
    fenced = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    blocks = ["".join(map(leading_bytes, block.splitlines())) for block in fenced]
    session = Plain(0x1122334455667788)
    plain, answer = write(session), acknowledgement(session)
    named = {
        # The page leaves out bytes 4 to 59 of the line, and padding.
        "the plain write": plain[:29] + plain[-4:],
        "its acknowledgement": answer[:30],
        "the sealed write": write(pre_shared()),
    }
    computed = handshake(int(features[1]))
    names = ["the CN's public key", "the MN's public key", "Hello", "HelloAck", "Start", "StartAck"]
    named |= dict(zip(names, computed))
    return [f"{name}: {what.hex()}" for name, what in named.items() if not any(what.hex() in block for block in blocks)]
