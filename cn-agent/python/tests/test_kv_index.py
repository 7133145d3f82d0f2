"""Pages, recency and eviction of a store, without a region: against a model that keeps sets of pages."""

import random

from cxloe.kv.index import Index, Item
from cxloe.kv.layout import FREE, PAGE, Entry, Superblock
from cxloe.kv.space import Space

PAGES = 64


def test_space_takes_and_gives_neighbours():
    for seed in range(50):
        rng = random.Random(seed)
        space, free, taken = Space(PAGES), set(range(PAGES)), []
        for _ in range(200):
            if taken and rng.random() < 0.5:
                start, count = taken.pop(rng.randrange(len(taken)))
                space.give(start, count)
                free |= set(range(start, start + count))
            else:
                count, at = rng.randint(1, 12), rng.randrange(PAGES)
                run = set(range(at, at + count))
                if rng.random() < 0.3:
                    assert space.take_at(at, count) == (run <= free), (seed, at, count)
                    start = at if run <= free else None
                else:
                    start = space.take(count)
                    possible = any(set(range(one, one + count)) <= free for one in range(PAGES))
                    assert (start is not None) == possible, (seed, count)
                if start is not None:
                    assert set(range(start, start + count)) <= free
                    free -= set(range(start, start + count))
                    taken.append((start, count))
            assert space.free == len(free)


def put(index, key, pages, now=0.0):
    """Put an object of this many pages. Returns the keys that it evicted; None if there was no room."""
    size = pages * PAGE - 64
    room = index.reserve(size, len(key), 0, now)
    if room is None:
        return None
    entry = index.entry(room, size, len(key), 0, None, 0)
    index.commit(Item(key, room.slot, entry))
    return [item.key for item in room.evicted]


def test_the_least_recently_used_go_first():
    index = Index(16, 8)
    for key in "abcd":
        assert put(index, key, 2) == []
    index.touch(index.find("a"))
    assert put(index, "e", 2) == ["b"]
    # Neighbours of four pages are there only once c and d have gone.
    assert put(index, "f", 4) == ["c", "d"]
    assert [item.key for item in index] == ["a", "e", "f"]


def test_what_is_held_stays_and_a_refused_object_evicts_nothing():
    index = Index(16, 8)
    for key in "abcd":
        put(index, key, 2)
    index.find("a").pins = 1
    index.find("c").leased_until = 10.0
    index.hold(index.find("d"))
    assert put(index, "e", 4, now=5.0) is None
    assert [item.key for item in index] == ["a", "b", "c", "d"]
    assert put(index, "e", 2, now=5.0) == ["b"]
    assert put(index, "f", 2, now=11.0) == ["c"]


def test_entries_are_a_limit_of_their_own():
    index = Index(2, 8)
    assert (put(index, "a", 1), put(index, "b", 1), put(index, "c", 1)) == ([], [], ["a"])
    assert sorted(item.slot for item in index) == [0, 1]


def test_pages_of_a_deleted_object_wait_for_its_readers():
    index = Index(4, 4)
    put(index, "a", 2)
    item = index.find("a")
    index.hold(item)
    index.remove(item)
    assert (index.find("a"), index.free_pages) == (None, 2)
    index.release(item)
    assert index.free_pages == 4


def test_of_two_entries_of_one_key_the_newer_is_loaded():
    old, new = Entry(1, 0, 0, 64, None, 0, 1), Entry(1, 0, 1, 64, None, 0, 2)
    twice = Entry(1, 0, 1, 64, None, 0, 3)
    index = Index(4, 4)
    refused = index.load([Item("k", 2, new), Item("k", 0, old), Item("other", 1, twice)])
    assert sorted((item.key, item.slot) for item in refused) == [("k", 0), ("other", 1)]
    assert index.find("k").slot == 2
    # The next put follows the newest entry that was found.
    room = index.reserve(64, 1, 0, 0.0)
    assert index.entry(room, 64, 1, 0, None, 0).sequence == 4


def test_lines_are_read_as_they_were_written_and_damage_is_seen():
    entry = Entry(300, 65535, 7, (1 << 40) + 5, 0xFFFFFFFF, 9, 1 << 60)
    line = entry.encode()
    assert len(line) == 64 and Entry.decode(line, 1 << 31) == entry
    assert Entry.decode(line, 100) is None, "pages beyond the store"
    block = Superblock(8 << 20, 100, 3)
    assert Superblock.decode(block.encode()) == block
    assert Superblock.decode(FREE) is None
    for at in range(40):
        wrong = bytearray(line)
        wrong[at] ^= 1
        assert Entry.decode(bytes(wrong), 1 << 31) is None, at
    for at in range(36):
        wrong = bytearray(block.encode())
        wrong[at] ^= 1
        assert Superblock.decode(bytes(wrong)) is None, at
