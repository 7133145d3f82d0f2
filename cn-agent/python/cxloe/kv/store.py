"""The store: carries out what the index decides, with reads and writes past the agent's line cache."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict, TypeVar

from .._cxloe import Node, Region, connect
from .._errors import Error
from .index import Index, Item
from .layout import FREE, KEY_MAX, LINE, NOTE_MAX, PAGE, Entry, Superblock, up

if TYPE_CHECKING:
    from typing_extensions import Buffer

_T = TypeVar("_T")

#: Bytes of the index that are read at a time, and lines of tails.
_PART = 4 << 20
_TAIL_LINES = 4096
#: Bytes of a region for each entry of the index, unless the number of entries is given: objects of 64 KiB fit.
_BYTES_PER_ENTRY = 64 << 10


class StoreError(Error):
    """A store could not be opened or used.

    ``kind`` is ``no_store``, ``in_use``, ``read_only``, ``full``, ``too_large``, ``replaced``, ``damaged``, ``broken`` or
    ``closed``; ``code`` is None.
    """


class Stats(TypedDict):
    """State of a store, and counts since it was opened."""

    objects: int
    """Objects in the store."""
    capacity: int
    """Bytes for objects, in pages of 4096."""
    free: int
    """Of these, bytes that no object occupies."""
    hits: int
    """Objects that were returned."""
    misses: int
    """Gets of keys that are not in the store."""
    puts: int
    """Objects that were put."""
    evictions: int
    """Objects that were evicted to make room."""
    damaged: int
    """Entries that were removed when the store was opened, because they are not whole."""


def format(node: Node, region: str | Region, *, entries: int | None = None) -> None:
    """Make an empty store in a region. What the region contains is lost.

    ``entries``: most objects that the store can hold; one for each 64 KiB of the region unless given.
    """
    region = node.region(region) if isinstance(region, str) else region
    with _Lock(node, region):
        _make(node, region, entries)


def _make(node: Node, region: Region, entries: int | None) -> None:
    """Make an empty store; the caller has the lock."""
    entries = max(1, region.size // _BYTES_PER_ENTRY) if entries is None else entries
    made = Superblock(region.size, entries, 0)
    if entries < 1 or made.pages < 1:
        raise ValueError(f"region {region.name!r} of {region.size} bytes has no room for a store of {entries} objects")
    # Without a superblock nobody takes an old index for one.
    node.write_from(region.address, FREE)
    _clear_index(node, region, made)
    node.write_from(region.address, made.encode())


def _clear_index(node: Node, region: Region, superblock: Superblock) -> None:
    zeros = bytes(min(_PART, superblock.entries * LINE))
    for offset in range(0, superblock.entries * LINE, len(zeros)):
        count = min(len(zeros), superblock.entries * LINE - offset)
        node.write_from(region.address + PAGE + offset, zeros[:count])


class _Lock:
    """Only one process of this machine writes to a store. The kernel ends the lock with its process."""

    def __init__(self, node: Node, region: Region) -> None:
        # An abstract name of this network namespace, of the agent and the region's address. Several paths may lead to
        # the agent.
        agent = zlib.crc32(os.path.realpath(node.socket).encode())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(f"\0cxloe-kv-{agent:08x}-{region.address:x}")
        except OSError:
            self._socket.close()
            raise StoreError(
                f"the store in region {region.name!r} is open for writing in another process of this machine: close it "
                "there, or open it here with read_only=True",
                "in_use",
            ) from None
        _locks.add(self)

    def __enter__(self) -> _Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()


#: Locks of this process. A child by fork has their sockets as well, and would keep them beyond the end of this process.
_locks: weakref.WeakSet[_Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_release_in_child)


class Store:
    """A store of objects in a region: keys are texts, data is bytes. Use ``open`` to get one.

    Threads may call it at once; each call uses one of at most ``connections`` connections to the agent. A get returns what
    was put whole, or None.
    """

    def __init__(
        self,
        region: str,
        agent: str | PathLike[str] | None = None,
        *,
        read_only: bool = False,
        create: bool = False,
        checksums: bool = False,
        connections: int = 4,
        refresh_after: float = 0.1,
    ) -> None:
        if connections < 1:
            raise ValueError("a store needs one connection at least")
        #: Path of the agent's socket; None: as for ``cxloe.connect``.
        self.agent = agent
        self._idle: queue.LifoQueue[Node] = queue.LifoQueue()
        self._connections = threading.Semaphore(connections)
        self._opened: list[Node] = []
        self._change = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._workers = connections
        self._lock: _Lock | None = None
        self._failed: str | None = None
        self._closed = False
        self._checksums = checksums
        self._refresh_after = refresh_after
        self._hits = self._misses = self._puts = self._damaged = 0
        #: Whether this process only reads the store.
        self.read_only = read_only
        try:
            with self._connection() as node:
                self._region = node.region(region)
                self._open(node, create)
        except BaseException:
            self.close()
            raise

    def _open(self, node: Node, create: bool) -> None:
        if not self.read_only:
            self._lock = _Lock(node, self._region)
            if create and self._superblock_of(node) is None:
                _make(node, self._region, None)
        found = self._superblock_of(node)
        if found is None:
            raise StoreError(
                f"region {self._region.name!r} contains no store: make one with `python3 -m cxloe.kv format "
                f"{self._region.name}` (what it contains is lost)",
                "no_store",
            )
        if not self.read_only:
            found = Superblock(found.size, found.entries, found.epoch + 1)
            node.write_from(self._region.address, found.encode())
        self._superblock = found
        self._load(node)

    def _superblock_of(self, node: Node) -> Superblock | None:
        found = Superblock.decode(self._lines(node, 0, 1))
        return found if found is not None and found.size <= self._region.size else None

    def _lines(self, node: Node, offset: int, count: int) -> bytearray:
        buffer = bytearray(count * LINE)
        node.read_into(self._region.address + offset, buffer)
        return buffer

    def _load(self, node: Node, known: dict[int, Item] | None = None) -> None:
        """Read the index, and the keys of objects that are not among the ``known`` ones. A writer removes what is
        damaged."""
        block = self._superblock
        items: list[Item] = []
        damaged: list[int] = []
        for first in range(0, block.entries, _PART // LINE):
            count = min(_PART // LINE, block.entries - first)
            lines = self._lines(node, PAGE + first * LINE, count)
            for slot in range(count):
                line = bytes(lines[slot * LINE : (slot + 1) * LINE])
                if line == FREE:
                    continue
                entry = Entry.decode(line, block.pages)
                if entry is None:
                    damaged.append(first + slot)
                else:
                    items.append(Item("", first + slot, entry))
        kept, unknown = [], []
        for item in items:
            before = (known or {}).get(item.slot)
            if before is not None and before.entry == item.entry:
                item.key, item.note = before.key, before.note
                item.pins, item.leased_until = before.pins, before.leased_until
                kept.append(item)
            else:
                unknown.append(item)
        kept += [item for item, tail in self._tails(node, unknown) if self._learn(item, tail)]
        damaged.extend({item.slot for item in items} - {item.slot for item in kept})
        index = Index(block.entries, block.pages)
        superseded = index.load(kept)
        if not self.read_only:
            for slot in damaged + [item.slot for item in superseded]:
                self._write_entry(node, slot, FREE)
            self._damaged += len(damaged)
        self._index = index
        self._loaded = time.monotonic()

    def _tails(self, node: Node, items: list[Item]) -> Iterator[tuple[Item, bytes]]:
        """The tails of objects, many on their way at a time."""
        batch: list[tuple[Item, int]] = []
        addresses: list[int] = []

        def fetched() -> Iterator[tuple[Item, bytes]]:
            buffer = bytearray(len(addresses) * LINE)
            node.read_lines(addresses, buffer)
            for item, at in batch:
                yield item, bytes(buffer[at * LINE : at * LINE + item.entry.tail_bytes])

        for item in items:
            lines = up(item.entry.tail_bytes, LINE) // LINE
            if addresses and len(addresses) + lines > _TAIL_LINES:
                yield from fetched()
                batch, addresses = [], []
            batch.append((item, len(addresses)))
            start = self._address(item) + item.entry.whole
            addresses.extend(range(start, start + lines * LINE, LINE))
        if batch:
            yield from fetched()

    @staticmethod
    def _learn(item: Item, tail: bytes) -> bool:
        """Take key and note from a tail; False if it is damaged."""
        entry = item.entry
        if zlib.crc32(tail) != entry.tail_checksum:
            return False
        rest = entry.size - entry.whole
        try:
            item.key = tail[rest : rest + entry.key_bytes].decode()
        except UnicodeDecodeError:
            return False
        item.note = tail[rest + entry.key_bytes :]
        return True

    def _address(self, item: Item) -> int:
        return self._region.address + self._superblock.objects + item.entry.page * PAGE

    def _write_entry(self, node: Node, slot: int, line: bytes) -> None:
        node.write_from(self._region.address + PAGE + slot * LINE, line)

    @contextmanager
    def _connection(self) -> Iterator[Node]:
        """One of the connections, for this call alone."""
        self._is_open()
        with self._connections:
            try:
                node = self._idle.get_nowait()
            except queue.Empty:
                node = connect(self.agent)
                self._opened.append(node)
            try:
                yield node
            finally:
                self._idle.put(node)

    def _is_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed: open it again with kv.open", "closed")
        if self._failed is not None:
            raise StoreError(self._failed, "broken")

    def _writable(self) -> None:
        self._is_open()
        if self.read_only:
            raise StoreError("the store is open for reading only: open it without read_only to change it", "read_only")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold ``_change`` while the index and its lines in the region change. After a failure, which may be the
        exception of a signal handler, nobody knows what each of them has: the store has to be opened again."""
        with self._change:
            self._is_open()
            try:
                yield
            except BaseException as failed:
                why = str(failed) or type(failed).__name__
                self._failed = (
                    f"an earlier change of the store in region {self._region.name!r} failed ({why}): open it again"
                )
                raise

    def _write_entries(self, node: Node, lines: Iterable[tuple[int, bytes]]) -> None:
        """Change lines of the index in the region, in this order."""
        if self._superblock_of(node) != self._superblock:
            raise StoreError(
                f"the store in region {self._region.name!r} was opened for writing elsewhere, or made anew: this "
                "process must not write to it any more",
                "replaced",
            )
        for slot, line in lines:
            self._write_entry(node, slot, line)

    # Reading.

    @property
    def region(self) -> str:
        """Name of the region."""
        return self._region.name

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: str) -> bool:
        return self.exists(key)

    def exists(self, key: str) -> bool:
        """Whether the store has an object of this key."""
        return self.exists_many([key])[0]

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        """For each key, whether the store has an object of it. Nothing is read from the region, except by a reader of a
        store that others write: a key that it does not find makes it read the index again, ``refresh_after`` seconds after
        the last time."""
        self._is_open()
        with self._change:
            found = [self._index.find(key) is not None for key in keys]
        if self.read_only and not all(found) and self._is_old():
            self.refresh()
            found = [self._index.find(key) is not None for key in keys]
        return found

    def leading(self, keys: Sequence[str]) -> int:
        """Number of keys, from the first one on, that all exist: the length of a prefix that is in the store."""
        found = self.exists_many(keys)
        return found.index(False) if False in found else len(found)

    def size(self, key: str) -> int | None:
        """Bytes of an object; None if there is none."""
        item = self._find(key)
        return None if item is None else item.entry.size

    def note(self, key: str) -> bytes | None:
        """The note of an object; None if there is none."""
        item = self._find(key)
        return None if item is None else item.note

    def keys(self) -> list[str]:
        """Keys, least recently used first."""
        self._is_open()
        with self._change:
            return [item.key for item in self._index]

    def get(self, key: str) -> bytearray | None:
        """A copy of an object; None if there is none."""
        with self._held(key) as item:
            if item is None:
                return None
            buffer = bytearray(item.entry.size)
            return buffer if self._read(item, buffer) is not None else None

    def get_into(self, key: str, buffer: Buffer) -> int | None:
        """Read an object into ``buffer``, without a copy but for its last line. Returns its bytes; None if there is none:
        then the buffer may have been written to. ValueError if the object is larger than the buffer."""
        with self._held(key) as item:
            return None if item is None else self._read(item, buffer)

    def get_many(self, keys: Iterable[str]) -> list[bytearray | None]:
        """Copies of objects."""
        return [self.get(key) for key in keys]

    def _is_old(self) -> bool:
        return time.monotonic() - self._loaded >= self._refresh_after

    def _find(self, key: str) -> Item | None:
        self._is_open()
        with self._change:
            item = self._index.find(key)
        if item is None and self.read_only and self._is_old():
            self.refresh()
            item = self._index.find(key)
        return item

    @contextmanager
    def _held(self, key: str) -> Iterator[Item | None]:
        """An object that is not evicted meanwhile."""
        self._find(key)
        with self._change:
            item = self._index.find(key)
            if item is not None:
                self._index.hold(item)
                self._index.touch(item)
            else:
                self._misses += 1
        try:
            yield item
        finally:
            if item is not None:
                with self._change:
                    self._index.release(item)

    def _read(self, item: Item, buffer: Buffer) -> int | None:
        entry, start = item.entry, self._address(item)
        with memoryview(buffer) as whole, whole.cast("B") as view, self._connection() as node:
            if len(view) < entry.size:
                raise ValueError(f"the object has {entry.size} bytes, and the buffer {len(view)}")
            if entry.whole:
                with view[: entry.whole] as lines:
                    node.read_into(start, lines)
            if entry.size > entry.whole:
                last = bytearray(LINE)
                node.read_into(start + entry.whole, last)
                view[entry.whole : entry.size] = last[: entry.size - entry.whole]
            if self.read_only and not self._is_unchanged(node, item):
                self._misses += 1
                return None
            if self._checksums and entry.checksum is not None:
                with view[: entry.size] as data:
                    if zlib.crc32(data) != entry.checksum:
                        raise StoreError(f"the object {item.key!r} is not as it was put: delete it", "damaged")
        self._hits += 1
        return entry.size

    def _is_unchanged(self, node: Node, item: Item) -> bool:
        """Whether the object was in its place all the time: a writer clears its entry before it uses its pages again."""
        return bytes(self._lines(node, PAGE + item.slot * LINE, 1)) == item.entry.encode()

    def refresh(self) -> None:
        """Read the index again: a reader then sees what others have written since."""
        if not self.read_only:
            return
        with self._connection() as node, self._change:
            self._superblock = self._superblock_of(node) or self._superblock
            self._load(node, {item.slot: item for item in self._index})

    # Writing.

    def put(self, key: str, data: Buffer, *, note: bytes = b"") -> None:
        """Store an object; when this returns, it is at the memory nodes. One of the same key is replaced: readers get the
        old one or the new one.

        ``note``: a few bytes that are kept with the object, and need no read of it.

        Raises StoreError of the kind ``full`` if there is no room, because all other objects are pinned, leased or being
        read; ``too_large`` if the store is too small for the object.
        """
        self._writable()
        name, note = key.encode(), bytes(note)
        if len(name) > KEY_MAX or len(note) > NOTE_MAX:
            raise ValueError(f"a key has at most {KEY_MAX} bytes, and a note {NOTE_MAX}")
        with memoryview(data) as whole, whole.cast("B") as view, self._connection() as node:
            room = None
            try:
                with self._changing():
                    room = self._index.reserve(len(view), len(name), len(note), time.monotonic())
                    # Under the lock, as other puts may use the lines of evicted objects from now on.
                    if room is not None and room.evicted:
                        self._write_entries(node, [(item.slot, FREE) for item in room.evicted])
                if room is None:
                    raise self._no_room(len(view))
                entire = len(view) // LINE * LINE
                tail = bytes(view[entire:]) + name + note
                start = self._region.address + self._superblock.objects + room.page * PAGE
                if entire:
                    with view[:entire] as lines:
                        node.write_from(start, lines)
                if tail:
                    node.write_from(start + entire, tail.ljust(up(len(tail), LINE), b"\0"))
                checksum = zlib.crc32(view) if self._checksums else None
                with self._changing():
                    entry = self._index.entry(room, len(view), len(name), len(note), checksum, zlib.crc32(tail))
                    item, replaced = Item(key, room.slot, entry, note), self._index.find(key)
                    lines_of_index = [(room.slot, entry.encode())]
                    if replaced is not None:
                        lines_of_index.append((replaced.slot, FREE))
                    self._write_entries(node, lines_of_index)
                    self._index.commit(item)
                    self._puts += 1
                    room = None
            except BaseException:
                if room is not None:
                    with self._change:
                        self._index.cancel(room)
                raise

    def _no_room(self, size: int) -> StoreError:
        capacity = self._index.pages * PAGE
        if size > capacity:
            return StoreError(f"the object has {size} bytes, and the store room for {capacity}", "too_large")
        return StoreError(f"no room for {size} bytes: all other objects are pinned, leased or being read", "full")

    def delete(self, key: str) -> bool:
        """Remove an object, pinned or not. False if there is none."""
        self._writable()
        with self._connection() as node, self._changing():
            item = self._index.find(key)
            if item is None:
                return False
            self._write_entries(node, [(item.slot, FREE)])
            self._index.remove(item)
            return True

    def clear(self) -> None:
        """Remove all objects, pinned or not."""
        for key in self.keys():
            self.delete(key)

    def pin(self, key: str) -> bool:
        """Keep an object from being evicted until ``unpin`` is called as often. False if there is none. Pins are of this
        process: they end with it."""
        with self._change:
            item = self._index.find(key)
            if item is not None:
                item.pins += 1
            return item is not None

    def unpin(self, key: str) -> bool:
        """Take a pin back. False if the object is not pinned."""
        with self._change:
            item = self._index.find(key)
            if item is None or item.pins == 0:
                return False
            item.pins -= 1
            return True

    def is_pinned(self, key: str) -> bool:
        """Whether an object is pinned."""
        with self._change:
            item = self._index.find(key)
            return item is not None and item.pins > 0

    def lease(self, keys: Iterable[str], seconds: float) -> int:
        """Keep objects from being evicted for some time, from now on: what a lookup found is still there when it is read.
        Returns the number of keys, from the first one on, that are there and leased."""
        until, count = time.monotonic() + seconds, 0
        with self._change:
            for key in keys:
                item = self._index.find(key)
                if item is None:
                    break
                item.leased_until = max(item.leased_until, until)
                count += 1
        return count

    def stats(self) -> Stats:
        """State and counts."""
        self._is_open()
        with self._change:
            return Stats(
                objects=len(self._index),
                capacity=self._index.pages * PAGE,
                free=self._index.free_pages * PAGE,
                hits=self._hits,
                misses=self._misses,
                puts=self._puts,
                evictions=self._index.evictions,
                damaged=self._damaged,
            )

    # In asyncio: the same, on threads of the store.

    def _threads(self) -> ThreadPoolExecutor:
        self._is_open()
        with self._change:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._workers, "cxloe-kv")
            return self._executor

    async def _lent(self, call: Callable[[], _T]) -> _T:
        """Carry out a call with a buffer of the caller, on a thread. Cancelled before it begins, it is not carried out;
        otherwise CancelledError is raised when it has ended, so that the buffer is the caller's again."""
        work = self._threads().submit(call)
        ended = asyncio.wrap_future(work)
        try:
            try:
                # Unlike `await ended`, this does not cancel the future when the task is cancelled.
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                if not work.cancel():
                    while not ended.done():
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([ended])
                    if not ended.cancelled():
                        # A failure of a call that was cancelled is not reported.
                        ended.exception()
                raise
            return ended.result()
        finally:
            # The traceback of an error holds this frame, which must not hold the error.
            del work, ended

    async def aput(self, key: str, data: Buffer, *, note: bytes = b"") -> None:
        """``put``, on a thread of the store. CancelledError is raised at once if nothing was stored yet, and otherwise when
        the object is stored: ``data`` is not read after that."""
        await self._lent(lambda: self.put(key, data, note=note))

    async def aget(self, key: str) -> bytearray | None:
        """``get``, on a thread of the store."""
        return await asyncio.get_running_loop().run_in_executor(self._threads(), self.get, key)

    async def aget_into(self, key: str, buffer: Buffer) -> int | None:
        """``get_into``, on a thread of the store. CancelledError is raised at once if nothing was read yet, and otherwise
        when the read has ended: ``buffer`` is not written to after that."""
        return await self._lent(lambda: self.get_into(key, buffer))

    def close(self) -> None:
        """Close the store. What was put stays in the region."""
        self._closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        for node in self._opened:
            node.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open(
    region: str,
    agent: str | PathLike[str] | None = None,
    *,
    read_only: bool = False,
    create: bool = False,
    checksums: bool = False,
    connections: int = 4,
    refresh_after: float = 0.1,
) -> Store:
    """Open the store in a region.

    ``agent``: path of the agent's socket; None: as for ``cxloe.connect``.
    ``read_only``: for a sealed region, and beside a process that writes. One process of a machine writes.
    ``create``: make an empty store if the region contains none. What the region contained is lost.
    ``checksums``: compute a checksum of each object that is put, and check those of objects that are read.
    ``connections``: connections to the agent, as many as calls of threads that are carried out at a time.
    ``refresh_after``: shortest time in seconds between two readings of the index by a reader that does not find a key.
    """
    return Store(
        region,
        agent,
        read_only=read_only,
        create=create,
        checksums=checksums,
        connections=connections,
        refresh_after=refresh_after,
    )
