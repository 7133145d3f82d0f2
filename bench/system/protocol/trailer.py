"""Trailers: what proves a frame. Section "Trailer" of the protocol's page.

AES itself, SHA-256, HMAC and GCM are the package `cryptography`'s; CRC-32C and GCM-SIV, which its releases in
distributions do not have, are written out."""

from __future__ import annotations

import struct
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from frame import TO_CN, TO_MN, Hello, HelloAck, Place, readable_length

GCM_CONTEXT = b"cxloe 2 aes-128-gcm"
SIV_CONTEXT = b"cxloe 1 aes-128-gcm-siv"


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def hkdf(secret: bytes, salt: bytes | None, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)


class Trailer(Protocol):
    """A form of trailer under the keys of a session."""

    length: int

    def seal(self, place: Place, body: bytes) -> bytes:
        """The body as it is sent, with its trailer."""

    def open(self, place: Place, frame: bytes, end: int) -> bytes | None:
        """The body that ends there as it was; nothing if the trailer is wrong."""


class Plain:
    """CRC-32C behind the pseudo-header."""

    length = 4

    def __init__(self, session: int) -> None:
        self.session = session

    def seal(self, place: Place, body: bytes) -> bytes:
        return body + struct.pack(">I", self._sum(place, body))

    def open(self, place: Place, frame: bytes, end: int) -> bytes | None:
        given = frame[end : end + self.length]
        return frame[:end] if given == struct.pack(">I", self._sum(place, frame[:end])) else None

    def _sum(self, place: Place, body: bytes) -> int:
        return crc32c(struct.pack(">QQ", self.session, place.number) + place.short() + body)


# Of a session without a session: Hello and HelloAck.
OUTSIDE = Plain(0)


def session_keys(context: bytes, secret: bytes, cn: bytes, mn: bytes, hello: Hello, ack: HelloAck) -> list[bytes]:
    """The keys of a session, that of frames to the MN first."""
    rest = cn + mn + hello.payload() + ack.payload()
    salt = hello.nonce + ack.nonce
    return [hkdf(secret, salt, context + bytes([way]) + rest, 16) for way in (TO_MN, TO_CN)]


class Gcm:
    """AES-128-GCM with a counter behind the tag."""

    length = 22

    def __init__(self, keys: list[bytes]) -> None:
        self.ciphers = [AESGCM(key) for key in keys]
        self.sealed = 0

    def seal(self, place: Place, body: bytes) -> bytes:
        counter = self.sealed.to_bytes(6, "big")
        self.sealed += 1
        readable = readable_length(body[14])
        nonce = place.short() + b"\0\0" + counter
        secret = self.ciphers[place.direction].encrypt(nonce, body[readable:], self._associated(place, body[:readable]))
        return body[:readable] + secret + counter

    def open(self, place: Place, frame: bytes, end: int) -> bytes | None:
        readable = readable_length(frame[14])
        counter = frame[end + 16 : end + 22]
        nonce = place.short() + b"\0\0" + counter
        try:
            cipher, covered = self.ciphers[place.direction], self._associated(place, frame[:readable])
            return frame[:readable] + cipher.decrypt(nonce, frame[readable : end + 16], covered)
        except (InvalidTag, ValueError):
            return None

    @staticmethod
    def _associated(place: Place, readable: bytes) -> bytes:
        return place.short() + struct.pack(">Q", place.number) + readable


class GcmSiv:
    """AES-128-GCM-SIV (RFC 8452), one key per direction."""

    length = 16

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys

    def seal(self, place: Place, body: bytes) -> bytes:
        readable = readable_length(body[14])
        head, secret = body[:readable], body[readable:]
        authentication, encryption = self._derived(place)
        tag = self._tag(place, authentication, encryption, head, secret)
        return head + self._stream(encryption, tag, secret) + tag

    def open(self, place: Place, frame: bytes, end: int) -> bytes | None:
        readable = readable_length(frame[14])
        head, tag = frame[:readable], frame[end : end + 16]
        if len(tag) < 16:
            return None
        authentication, encryption = self._derived(place)
        secret = self._stream(encryption, tag, frame[readable:end])
        right = tag == self._tag(place, authentication, encryption, head, secret)
        return head + secret if right else None

    @staticmethod
    def _nonce(place: Place) -> bytes:
        return place.short() + struct.pack(">Q", place.number)

    def _derived(self, place: Place) -> tuple[bytes, bytes]:
        key, nonce = self.keys[place.direction], self._nonce(place)
        halves = [_aes(key, struct.pack("<I", n) + nonce)[:8] for n in range(4)]
        return halves[0] + halves[1], halves[2] + halves[3]

    def _tag(self, place: Place, authentication: bytes, encryption: bytes, head: bytes, secret: bytes) -> bytes:
        lengths = struct.pack("<QQ", 8 * len(head), 8 * len(secret))
        summed = _polyval(authentication, _blocks(head) + _blocks(secret) + lengths)
        mixed = bytearray(a ^ b for a, b in zip(summed, self._nonce(place) + bytes(4)))
        mixed[15] &= 0x7F
        return _aes(encryption, bytes(mixed))

    @staticmethod
    def _stream(key: bytes, tag: bytes, data: bytes) -> bytes:
        first = struct.unpack("<I", tag[:4])[0]
        rest = tag[4:15] + bytes([tag[15] | 0x80])
        count = (len(data) + 15) // 16
        counters = b"".join(struct.pack("<I", (first + n) & 0xFFFFFFFF) + rest for n in range(count))
        return bytes(a ^ b for a, b in zip(data, _aes(key, counters)))


def _aes(key: bytes, blocks: bytes) -> bytes:
    # What every mode is made of: AES of each block by itself.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)


def _blocks(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


# x^128 + x^127 + x^126 + x^121 + 1, and x^-128 modulo it.
_FIELD = 1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1
_INVERSE = 1 << 127 | 1 << 124 | 1 << 121 | 1 << 114 | 1


def _product(a: int, b: int) -> int:
    product = 0
    for bit in range(128):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(254, 127, -1):
        if product >> bit & 1:
            product ^= _FIELD << (bit - 128)
    return product


def _polyval(key: bytes, data: bytes) -> bytes:
    factor = _product(int.from_bytes(key, "little"), _INVERSE)
    total = 0
    for at in range(0, len(data), 16):
        total = _product(total ^ int.from_bytes(data[at : at + 16], "little"), factor)
    return total.to_bytes(16, "little")
