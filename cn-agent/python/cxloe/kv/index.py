"""What a store holds and where, and what is evicted next. Decides without I/O; the store carries it out.

An object is *held* while a call reads it, while it is pinned, and until its lease ends. A held object is not evicted. One
that is deleted or replaced while calls read it keeps its pages until the last of them has ended.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .layout import Entry, pages_of
from .space import Space


@dataclass(eq=False)
class Item:
    """An object of the store."""

    key: str
    #: Line of the index.
    slot: int
    entry: Entry
    #: Note; None until it has been read.
    note: bytes | None = None
    #: Pins that were not taken back.
    pins: int = 0
    #: Time at which the last lease ends, on the clock of the caller.
    leased_until: float = 0.0
    #: Calls that read the object.
    readers: int = 0
    #: Whether the object was removed, so that its pages are free once nobody reads it.
    removed: bool = False

    def is_held(self, now: float) -> bool:
        """Whether the object must not be evicted."""
        return self.pins > 0 or self.readers > 0 or self.leased_until > now


@dataclass
class Room:
    """Place for a new object, and what has to go before its bytes are written."""

    slot: int
    page: int
    pages: int
    #: Objects to be removed first: their entries are cleared, and their pages used again.
    evicted: list[Item] = field(default_factory=list)


class Index:
    """Objects by key in order of recency, free lines of the index, free pages."""

    def __init__(self, entries: int, pages: int) -> None:
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._slots = list(range(entries))
        self._space = Space(pages)
        self._sequence = 0
        self.pages = pages
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """Objects, least recently used first."""
        return iter(self._items.values())

    @property
    def free_pages(self) -> int:
        """Pages that no object occupies."""
        return self._space.free

    def load(self, items: list[Item]) -> list[Item]:
        """Fill an empty index with the objects that were found. Returns those that cannot be: of two with one key the
        older, and such that occupy pages of another."""
        refused = []
        newest: dict[str, Item] = {}
        for item in sorted(items, key=lambda item: item.entry.sequence):
            before = newest.pop(item.key, None)
            if before is not None:
                # A crash between the two writes of a replacement leaves both.
                refused.append(before)
            newest[item.key] = item
        taken = set()
        for item in newest.values():
            if self._space.take_at(item.entry.page, item.entry.pages):
                self._items[item.key] = item
                taken.add(item.slot)
            else:
                refused.append(item)
            self._sequence = max(self._sequence, item.entry.sequence)
        self._slots = [slot for slot in self._slots if slot not in taken]
        heapq.heapify(self._slots)
        return refused

    def find(self, key: str) -> Item | None:
        """The object, if there is one. Its recency stays as it is."""
        return self._items.get(key)

    def touch(self, item: Item) -> None:
        """Make an object the most recently used one."""
        if not item.removed:
            self._items.move_to_end(item.key)

    def reserve(self, size: int, key_bytes: int, note_bytes: int, now: float) -> Room | None:
        """Reserve room for an object. Evicts the least recently used objects that nobody holds, as far as is necessary;
        None, and nothing evicted, if not even that would make room."""
        pages = pages_of(size, key_bytes, note_bytes)
        victims: list[Item] = []
        candidates = (item for item in self._items.values() if not item.is_held(now))
        slots = list(self._slots[:1])
        page = self._space.take(pages) if slots else None
        while page is None:
            victim = next(candidates, None)
            if victim is None:
                for item in victims:
                    self._space.take_at(item.entry.page, item.entry.pages)
                return None
            victims.append(victim)
            self._space.give(victim.entry.page, victim.entry.pages)
            page = self._space.take(pages)
        for victim in victims:
            del self._items[victim.key]
            victim.removed = True
            heapq.heappush(self._slots, victim.slot)
        self.evictions += len(victims)
        return Room(heapq.heappop(self._slots), page, pages, victims)

    def cancel(self, room: Room) -> None:
        """Give reserved room back."""
        self._space.give(room.page, room.pages)
        heapq.heappush(self._slots, room.slot)

    def entry(self, room: Room, size: int, key_bytes: int, note_bytes: int, checksum: int | None, tail: int) -> Entry:
        """The entry of an object whose bytes are in its room."""
        self._sequence += 1
        return Entry(key_bytes, note_bytes, room.page, size, checksum, tail, self._sequence)

    def commit(self, item: Item) -> None:
        """Add an object whose entry is written, in place of the one of the same key, whose entry is cleared."""
        before = self._items.get(item.key)
        if before is not None:
            item.pins, item.leased_until = before.pins, before.leased_until
            self.remove(before)
        self._items[item.key] = item

    def remove(self, item: Item) -> None:
        """Remove an object whose entry is cleared."""
        if self._items.get(item.key) is item:
            del self._items[item.key]
        item.removed = True
        heapq.heappush(self._slots, item.slot)
        if item.readers == 0:
            self._space.give(item.entry.page, item.entry.pages)

    def hold(self, item: Item) -> None:
        """Begin to read an object."""
        item.readers += 1

    def release(self, item: Item) -> None:
        """End reading an object."""
        item.readers -= 1
        if item.removed and item.readers == 0:
            self._space.give(item.entry.page, item.entry.pages)
