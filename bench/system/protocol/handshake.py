"""How a CN and an MN agree on a session. Sections "Handshake" and "Keys: version 2" of the protocol's page."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag

from frame import HEADER, HELLO, HELLO_ACK, TO_CN, TO_MN, Frame, Hello, HelloAck, Place, padded
from link import Link
from noise import Initiator, Key, ack_mac, keyed, mac1, open_cookie, prologue, time_stamp
from trailer import GCM_CONTEXT, OUTSIDE, SIV_CONTEXT, Gcm, GcmSiv, Plain, Trailer, session_keys

# Frames of many lines, long bursts, joint acknowledgements.
FEATURES = 1 | 4 | 8
STREAMS = 2
# A Hello is repeated this often, in seconds, and for this long: an MN keeps an offer for 5 s.
INTERVAL, PATIENCE = 0.05, 4.0
# For this long, in seconds, a CN that is refused asks anew.
REFUSED = 10.0
# Where a Hello and its answer without keys end.
HELLO_PLAIN, ACK_PLAIN = HEADER + 40 + 4, HEADER + 64 + 4
CROWDED, TAKEN_BACK = 9, 10


class Refused(Exception):
    """The MN does not take this CN."""

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True)
class Access:
    """What the frames to an MN are protected with: a pre-shared key, keys of both nodes, or nothing."""

    pre_shared: bytes | None = None
    own: Key | None = None
    mn_key: bytes | None = None


@dataclass(frozen=True)
class Agreed:
    """What a handshake comes to."""

    ack: HelloAck
    trailer: Trailer


def agree(link: Link, mn: bytes, access: Access) -> Agreed:
    """Has the MN offer a session, the first Start under which makes it the CN's. What refuses a CN may be over soon: a key
    that the manager has not told the MN of yet, another session of the CN."""
    end, instance = time.monotonic() + REFUSED, int.from_bytes(os.urandom(8), "big")
    while True:
        try:
            return _attempt(link, mn, access, instance)
        except Refused as refused:
            if refused.status == TAKEN_BACK or time.monotonic() > end:
                raise
        time.sleep(INTERVAL)


def _attempt(link: Link, mn: bytes, access: Access, instance: int) -> Agreed:
    version, integrity = (2, 2) if access.own else (1, 1 if access.pre_shared else 0)
    hello = Hello(version, integrity, STREAMS, FEATURES, os.urandom(8), instance, link.largest)
    frame = Frame(mn, link.mac, HELLO, 0, payload=hello.payload()).body()
    frame = OUTSIDE.seal(Place(TO_MN, True, 0, 0), frame)
    caller = None
    if access.own and access.mn_key:
        caller = Initiator(access.own, access.mn_key, Key(), prologue(link.mac, mn, hello.payload()))
        frame += caller.call(time_stamp(time.time_ns()))
        frame += mac1(access.mn_key, frame)
        frame += bytes(16)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        link.send(padded(frame))
        again = time.monotonic() + INTERVAL
        while (left := again - time.monotonic()) > 0:
            answer = link.receive(left)
            ack = _parsed(link, mn, hello, answer) if answer else None
            if not answer or not ack:
                continue
            if caller and access.mn_key and ack.status == CROWDED:
                cookie = open_cookie(access.mn_key, frame[177:193], answer[ACK_PLAIN : ACK_PLAIN + 44])
                frame = frame[:193] + keyed(cookie, frame[:193])
                break
            secret = _concluded(caller, answer) if caller else None
            if caller and not secret:
                continue
            if ack.status or ack.features & ~FEATURES or ack.integrity != integrity:
                raise Refused(f"the memory node answers {ack}", ack.status)
            return Agreed(ack, _trailer(link, mn, access, secret, hello, ack))
    raise Refused("the memory node does not answer the Hello")


def _parsed(link: Link, mn: bytes, hello: Hello, answer: bytes) -> HelloAck | None:
    """The HelloAck, if it is one and for this Hello."""
    if len(answer) < ACK_PLAIN or answer[14] != HELLO_ACK or (answer[:6], answer[6:12]) != (link.mac, mn):
        return None
    body = OUTSIDE.open(Place(TO_CN, True, 0, 0), answer, ACK_PLAIN - 4)
    ack = HelloAck.parse(body[HEADER:]) if body else None
    return ack if ack and ack.hello_nonce == hello.nonce else None


def _concluded(caller: Initiator, answer: bytes) -> bytes | None:
    """The secret of the session, if the whole answer is genuine."""
    if len(answer) < ACK_PLAIN + 64:
        return None
    try:
        secret = caller.conclude(answer[ACK_PLAIN : ACK_PLAIN + 48])
    except InvalidTag:
        return None
    mac = answer[ACK_PLAIN + 48 : ACK_PLAIN + 64]
    return secret if ack_mac(secret, answer[: ACK_PLAIN + 48]) == mac else None


def _trailer(link: Link, mn: bytes, access: Access, secret: bytes | None, hello: Hello, ack: HelloAck) -> Trailer:
    if secret:
        return Gcm(session_keys(GCM_CONTEXT, secret, link.mac, mn, hello, ack))
    if access.pre_shared:
        return GcmSiv(session_keys(SIV_CONTEXT, access.pre_shared, link.mac, mn, hello, ack))
    return Plain(ack.session)
