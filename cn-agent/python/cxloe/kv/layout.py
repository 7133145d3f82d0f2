"""Bytes of a store in its region.

::

    0              4096               4096 + 64 * entries, rounded up to pages        end
    | superblock   | index: a line    | pages of objects: data, then its tail         |
    |              | for each object  |                                               |

An object occupies consecutive pages. Its data starts the first one; the *tail* follows at the next multiple of 64 behind
the last whole line of the data: the rest of the data, the key, the note. So all lines of the data but the last are
transferred between the caller's buffer and the region without a copy.

An entry of the index is one line. Memory nodes write a line whole or not at all, so an entry is the old one or the new
one after any crash: it is written after the object's bytes have arrived, and cleared before its pages are used again.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

LINE = 64
PAGE = 4096
MAGIC = b"CXLOEKV1"
#: Bytes of a key in UTF-8, and of a note: the fields of an entry have 16 bits.
KEY_MAX = NOTE_MAX = 65535

#: Magic, bytes of the region, entries, writer's epoch, checksum of the fields before.
_SUPERBLOCK = struct.Struct("<8sQQQI")
#: Bytes of the key and of the note, flags, first page (from the first page of objects), checksums of data and tail,
#: bytes of the data, number of the put.
_ENTRY = struct.Struct("<HHHxxIIIQQ")
_CHECKSUM = struct.Struct("<I")
_HAS_CHECKSUM = 1

FREE = bytes(LINE)


def up(value: int, to: int) -> int:
    """``value``, rounded up to a multiple of ``to``."""
    return -(-value // to) * to


@dataclass(frozen=True)
class Superblock:
    """Dimensions of a store."""

    #: Bytes of the region when the store was made. A region that has grown since keeps its store's size.
    size: int
    #: Lines of the index: the most objects that the store can hold.
    entries: int
    #: Number of times that the store was opened for writing. A writer that reads another number has been replaced.
    epoch: int

    @property
    def objects(self) -> int:
        """Offset of the first page of objects."""
        return PAGE + up(self.entries * LINE, PAGE)

    @property
    def pages(self) -> int:
        """Pages for objects."""
        return (self.size - self.objects) // PAGE

    def encode(self) -> bytes:
        fields = _SUPERBLOCK.pack(MAGIC, self.size, self.entries, self.epoch, 0)[: -_CHECKSUM.size]
        return (fields + _CHECKSUM.pack(zlib.crc32(fields))).ljust(LINE, b"\0")

    @staticmethod
    def decode(line: bytes) -> Superblock | None:
        """None if the line is no superblock."""
        magic, size, entries, epoch, checksum = _SUPERBLOCK.unpack_from(line)
        whole = zlib.crc32(line[: _SUPERBLOCK.size - _CHECKSUM.size]) == checksum
        if magic != MAGIC or not whole:
            return None
        found = Superblock(size, entries, epoch)
        return found if entries > 0 and found.pages > 0 else None


@dataclass(frozen=True)
class Entry:
    """What the index holds of an object."""

    key_bytes: int
    note_bytes: int
    #: First page, counted from the first page of objects.
    page: int
    #: Bytes of the data.
    size: int
    #: CRC-32 of the data; None if the writer made none.
    checksum: int | None
    #: CRC-32 of the tail's bytes, without what fills its last line.
    tail_checksum: int
    #: Number of the put, ascending: the order of recency after the store is opened.
    sequence: int

    @property
    def whole(self) -> int:
        """Bytes of the data in whole lines."""
        return self.size // LINE * LINE

    @property
    def tail_bytes(self) -> int:
        """Bytes of the tail without what fills its last line."""
        return self.size - self.whole + self.key_bytes + self.note_bytes

    @property
    def pages(self) -> int:
        """Pages that the object occupies."""
        return pages_of(self.size, self.key_bytes, self.note_bytes)

    def encode(self) -> bytes:
        flags = 0 if self.checksum is None else _HAS_CHECKSUM
        fields = _ENTRY.pack(
            self.key_bytes,
            self.note_bytes,
            flags,
            self.page,
            self.checksum or 0,
            self.tail_checksum,
            self.size,
            self.sequence,
        )
        # A checksum of zeros is not zero, so an entry is never equal to a free line.
        return (_CHECKSUM.pack(zlib.crc32(fields)) + fields).ljust(LINE, b"\0")

    @staticmethod
    def decode(line: bytes, pages: int) -> Entry | None:
        """None if the line is damaged, or names pages beyond the ``pages`` of the store."""
        (checksum,) = _CHECKSUM.unpack_from(line)
        fields = line[_CHECKSUM.size : _CHECKSUM.size + _ENTRY.size]
        if zlib.crc32(fields) != checksum:
            return None
        key_bytes, note_bytes, flags, page, data, tail, size, sequence = _ENTRY.unpack(fields)
        entry = Entry(key_bytes, note_bytes, page, size, data if flags & _HAS_CHECKSUM else None, tail, sequence)
        return entry if page + entry.pages <= pages else None


def pages_of(size: int, key_bytes: int, note_bytes: int) -> int:
    """Pages of an object with these bytes of data, key and note."""
    whole = size // LINE * LINE
    return up(whole + up(size - whole + key_bytes + note_bytes, LINE), PAGE) // PAGE
