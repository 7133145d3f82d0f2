"""The handshake between keys: Noise_IK_25519_AESGCM_SHA256 and what stands around it. Section "Keys: version 2" of the
protocol's page; Noise Protocol Framework, revision 34."""

from __future__ import annotations

import copy
import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from trailer import hkdf

NAME = b"Noise_IK_25519_AESGCM_SHA256"
PROLOGUE = b"cxloe 2"
ACK_CONTEXT = b"cxloe 2 hello ack"
NANOS = 1_000_000_000


class Key:
    """A node's key (X25519), or an ephemeral one."""

    def __init__(self, private: X25519PrivateKey | None = None) -> None:
        self.private = private or X25519PrivateKey.generate()
        self.public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @staticmethod
    def of(secret: bytes) -> Key:
        return Key(X25519PrivateKey.from_private_bytes(secret))

    def secret(self) -> bytes:
        return self.private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    def shared(self, public: bytes) -> bytes:
        return self.private.exchange(X25519PublicKey.from_public_bytes(public))


class Symmetric:
    """Noise's SymmetricState, with the CipherState in it."""

    def __init__(self, prologue: bytes, responder: bytes) -> None:
        self.hash = self.chain = NAME.ljust(32, b"\0")
        self.key, self.count = b"", 0
        self.mix_hash(prologue)
        self.mix_hash(responder)

    def mix_hash(self, data: bytes) -> None:
        self.hash = hashlib.sha256(self.hash + data).digest()

    def mix_key(self, secret: bytes) -> None:
        self.chain, self.key = self._halves(secret)
        self.count = 0

    def split(self) -> bytes:
        return b"".join(self._halves(b""))

    def encrypt(self, text: bytes) -> bytes:
        sealed = AESGCM(self.key).encrypt(self._nonce(), text, self.hash)
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, sealed: bytes) -> bytes:
        text = AESGCM(self.key).decrypt(self._nonce(), sealed, self.hash)
        self.mix_hash(sealed)
        return text

    def _halves(self, secret: bytes) -> tuple[bytes, bytes]:
        both = hkdf(secret, self.chain, b"", 64)
        return both[:32], both[32:]

    def _nonce(self) -> bytes:
        self.count += 1
        return struct.pack(">4xQ", self.count - 1)


def prologue(cn: bytes, mn: bytes, hello: bytes) -> bytes:
    """Takes the payload of the Hello."""
    return PROLOGUE + cn + mn + hello


class Initiator:
    """The CN's side."""

    def __init__(self, own: Key, peer: bytes, ephemeral: Key, start: bytes) -> None:
        self.own, self.ephemeral = own, ephemeral
        self.state = Symmetric(start, peer)
        self.peer = peer

    def call(self, stamp: bytes) -> bytes:
        """Message 1."""
        state = self.state
        state.mix_hash(self.ephemeral.public)
        state.mix_key(self.ephemeral.shared(self.peer))
        static = state.encrypt(self.own.public)
        state.mix_key(self.own.shared(self.peer))
        return self.ephemeral.public + static + state.encrypt(stamp)

    def conclude(self, answer: bytes) -> bytes:
        """Takes message 2; the secret of the session. A forged one changes nothing."""
        state, theirs = copy.copy(self.state), answer[:32]
        state.mix_hash(theirs)
        state.mix_key(self.ephemeral.shared(theirs))
        state.mix_key(self.own.shared(theirs))
        state.decrypt(answer[32:])
        return state.split() + state.hash


class Responder:
    """The MN's side."""

    def __init__(self, own: Key, ephemeral: Key, start: bytes) -> None:
        self.own, self.ephemeral = own, ephemeral
        self.state = Symmetric(start, own.public)
        self.peer = self.theirs = b""

    def listen(self, message: bytes) -> bytes:
        """Takes message 1; the time stamp."""
        state = self.state
        self.theirs = message[:32]
        state.mix_hash(self.theirs)
        state.mix_key(self.own.shared(self.theirs))
        self.peer = state.decrypt(message[32:80])
        state.mix_key(self.own.shared(self.peer))
        return state.decrypt(message[80:108])

    def answer(self) -> tuple[bytes, bytes]:
        """Message 2 and the secret of the session."""
        state = self.state
        state.mix_hash(self.ephemeral.public)
        state.mix_key(self.ephemeral.shared(self.theirs))
        state.mix_key(self.ephemeral.shared(self.peer))
        message = self.ephemeral.public + state.encrypt(b"")
        return message, state.split() + state.hash


def time_stamp(unix_ns: int) -> bytes:
    """TAI64N."""
    return struct.pack(">QI", 2**62 + 10 + unix_ns // NANOS, unix_ns % NANOS)


def keyed(key: bytes, data: bytes) -> bytes:
    """The first 16 bytes of HMAC-SHA256."""
    return hmac.digest(key, data, "sha256")[:16]


def mac1(mn: bytes, hello: bytes) -> bytes:
    """Over a Hello up to where it stands; takes the MN's public key."""
    return keyed(hashlib.sha256(b"mac1----" + mn).digest(), hello)


def ack_mac(secret: bytes, ack: bytes) -> bytes:
    """Over a HelloAck up to where it stands."""
    return keyed(hkdf(secret, None, ACK_CONTEXT, 32), ack)


def open_cookie(mn: bytes, sent_mac1: bytes, sealed: bytes) -> bytes:
    """The cookie for the Hello with this mac1, under which mac2 is made."""
    key = hashlib.sha256(b"cookie--" + mn).digest()
    return AESGCM(key).decrypt(sealed[:12], sealed[12:], sent_mac1)
