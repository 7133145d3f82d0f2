"""A packet socket on an Ethernet interface."""

from __future__ import annotations

import fcntl
import random
import select
import socket
import struct

from frame import ETHERTYPE, LONGEST

SIOCGIFMTU = 0x8921


class Link:
    """Frames of the protocol's EtherType that come to an interface, and those that leave by it."""

    def __init__(self, interface: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        self.socket.bind((interface, ETHERTYPE))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.mac: bytes = self.socket.getsockname()[4]
        asked = fcntl.ioctl(self.socket, SIOCGIFMTU, struct.pack("16si8x", interface.encode(), 0))
        # With the Ethernet header.
        self.largest = min(struct.unpack("16si8x", asked)[1] + 14, LONGEST)

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def receive(self, timeout: float) -> bytes | None:
        """The next frame; nothing if none comes in so many seconds."""
        ready, _, _ = select.select([self.socket], [], [], max(timeout, 0))
        return self.socket.recv(2 * LONGEST) if ready else None


class LossyLink(Link):
    """Loses some frames, either way."""

    def __init__(self, interface: str, loss: float) -> None:
        super().__init__(interface)
        self.loss, self.random = loss, random.Random(1)

    def send(self, frame: bytes) -> None:
        if self.random.random() >= self.loss:
            super().send(frame)

    def receive(self, timeout: float) -> bytes | None:
        frame = super().receive(timeout)
        return frame if self.random.random() >= self.loss else None
