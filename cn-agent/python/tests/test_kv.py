"""A store in a region: what is put is got whole, across processes, crashes and eviction."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from contextlib import contextmanager

import cxloe
import pytest
from conftest import LIMIT, REGION, eventually
from cxloe import kv

#: Sizes around lines and pages, and some of a cache's.
SIZES = [0, 1, 63, 64, 65, 4032, 4096, 65536, 65537, 300000]


def content(key, version, size):
    return random.Random(f"{key}/{version}").randbytes(size)


@pytest.fixture
def made(node, region):
    kv.format(node, region.name)
    return region.name


@pytest.fixture
def store(made):
    with kv.open(made) as store:
        yield store


def test_objects_are_got_as_they_were_put_also_by_the_next_process(made):
    with kv.open(made) as store:
        for size in SIZES:
            store.put(f"key-{size}", content("key", 0, size), note=b"note %d" % size)
        assert store.get("nothing") is None and store.note("nothing") is None and not store.exists("nothing")
    for again in (kv.open(made), kv.open(made, read_only=True)):
        with again as store:
            assert store.keys() == [f"key-{size}" for size in SIZES]
            assert store.exists_many(["key-64", "nothing", "key-1"]) == [True, False, True]
            assert store.leading(["key-64", "key-1", "nothing", "key-0"]) == 2
            for size in SIZES:
                assert store.get(f"key-{size}") == content("key", 0, size), size
                assert (store.size(f"key-{size}"), store.note(f"key-{size}")) == (size, b"note %d" % size)


def test_buffers_are_filled_in_place(store):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(10000, dtype=numpy.float32).reshape(100, 100)
    store.put("array", array)
    back = numpy.zeros_like(array)
    assert store.get_into("array", back) == array.nbytes
    assert (back == array).all()
    large = bytearray(array.nbytes + 100)
    assert store.get_into("array", large) == array.nbytes and large[-100:] == bytes(100)
    with pytest.raises(ValueError, match="the object has 40000 bytes, and the buffer 64"):
        store.get_into("array", bytearray(64))


def test_an_object_is_replaced_and_deleted(store):
    store.put("k", b"old" * 1000)
    store.put("k", b"new" * 2000)
    assert (store.get("k"), len(store)) == (b"new" * 2000, 1)
    free = store.stats()["free"]
    assert store.delete("k") and not store.delete("k") and store.get("k") is None
    assert store.stats()["free"] == free + 8192
    store.put("k", b"once more")
    store.clear()
    assert len(store) == 0 and store.stats()["free"] == store.stats()["capacity"]


def test_the_least_recently_used_make_room(store):
    size = 1 << 20
    for number in range(5):
        store.put(str(number), content(number, 0, size))
    assert store.get("0") is not None and store.pin("1") and store.lease(["2", "nothing", "3"], 60) == 1
    evicted = store.stats()["evictions"]
    for number in range(5, 9):
        store.put(str(number), content(number, 0, size))
    assert store.stats()["evictions"] > evicted
    assert store.exists_many(["1", "2", "3", "4"]) == [True, True, False, False]
    for key in store.keys():
        assert store.get(key) == content(int(key), 0, size)
        store.pin(key)
    with pytest.raises(kv.StoreError, match="all other objects are pinned, leased or being read") as failed:
        store.put("more", bytes(4 * size))
    assert failed.value.kind == "full"
    with pytest.raises(kv.StoreError, match="and the store room for") as failed:
        store.put("more", bytes(REGION))
    assert failed.value.kind == "too_large"
    assert store.is_pinned("1") and store.unpin("1") and store.unpin("1") and not store.unpin("1")


def test_one_process_writes_and_others_read_beside_it(made):
    with kv.open(made, connections=2) as store, kv.open(made, read_only=True, refresh_after=0) as reader:
        with pytest.raises(kv.StoreError, match="is open for writing in another process") as failed:
            kv.open(made)
        assert failed.value.kind == "in_use"
        with pytest.raises(kv.StoreError, match="open for reading only: open it without read_only"):
            reader.put("k", b"")
        done, wrong, seen = threading.Event(), [], set()

        def read():
            while not done.is_set():
                for key in "abcd":
                    found = reader.get(key)
                    if found is None:
                        reader.refresh()
                        continue
                    version = int.from_bytes(found[:8], "little")
                    seen.add(version)
                    if found[8:] != content(key, version, len(found) - 8):
                        wrong.append((key, version))

        thread = threading.Thread(target=read)
        thread.start()
        for version in range(60):
            for key in "abcd":
                size = random.Random(version).randrange(500000)
                store.put(key, version.to_bytes(8, "little") + content(key, version, size))
        done.set()
        thread.join()
        assert wrong == [] and len(seen) > 1


def test_a_sealed_region_is_read(manager, node, made):
    with kv.open(made) as store:
        store.put("k", content("k", 0, 100000))
    manager.seal(made)

    def sealed():
        # The region is away while the manager seals it.
        try:
            return kv.open(made, read_only=True)
        except cxloe.AccessError:
            return None

    with eventually("the sealed region is attached", sealed) as store:
        assert store.get("k") == content("k", 0, 100000)
    with pytest.raises(cxloe.AccessError):
        kv.open(made)


WRITER = """
import random, sys
from cxloe import kv
sys.path.insert(0, sys.argv[2])
from test_kv import content
seed = int(sys.argv[3])
rng = random.Random(seed)
with kv.open(sys.argv[1]) as store:
    for version in range(10**6):
        key = f"{rng.randrange(12)}"
        data = version.to_bytes(8, "little") + content(key, version, rng.randrange(900000))
        print("put", key, version, flush=True)
        store.put(key, data)
        print("done", key, version, flush=True)
"""


def test_a_writer_killed_at_any_time_leaves_whole_objects(made):
    rng = random.Random(os.environ.get("CXLOE_CRASH_SEED", "1"))
    tried, done = {}, {}
    for run in range(6):
        command = [sys.executable, "-c", WRITER, made, os.path.dirname(__file__), str(run)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            for _ in range(rng.randrange(20, 60)):
                word, key, version = writer.stdout.readline().split()
                (tried if word == "put" else done)[key] = (run, int(version))
            writer.kill()
            for line in writer.stdout:
                if line.endswith("\n"):
                    word, key, version = line.split()
                    (tried if word == "put" else done)[key] = (run, int(version))
        with kv.open(made) as store:
            assert store.stats()["damaged"] == 0
            for key in store.keys():
                found = store.get(key)
                version = int.from_bytes(found[:8], "little")
                assert found[8:] == content(key, version, len(found) - 8), (run, key)
                assert (run, version) in (done.get(key), tried.get(key)) or done[key][0] < run, (run, key, version)
            # The most recent put that was done cannot have been evicted.
            newest = max(done, key=done.get)
            assert store.exists(newest), (run, newest)


def test_a_damaged_entry_takes_no_other_with_it(node, made):
    region = node.region(made)
    with kv.open(made) as store:
        store.put("a", b"a" * 100)
        store.put("b", b"b" * 100)
    line = bytearray(64)
    node.read_into(region.address + 4096, line)
    line[20] ^= 1
    node.write_from(region.address + 4096, line)
    with kv.open(made) as store:
        assert (store.keys(), store.stats()["damaged"]) == (["b"], 1)
    with kv.open(made) as store:
        assert (store.keys(), store.stats()["damaged"]) == (["b"], 0)


def test_checksums_find_bytes_that_others_changed(node, made):
    region = node.region(made)
    with kv.open(made, checksums=True) as store:
        store.put("k", b"k" * 100000)
        assert store.get("k") == b"k" * 100000
        capacity = store.stats()["capacity"]
        node.write_from(region.address + region.size - capacity + 64, bytes(64))
        with pytest.raises(kv.StoreError, match="is not as it was put") as failed:
            store.get("k")
        assert failed.value.kind == "damaged"


def test_a_writer_that_was_replaced_stops(node, made):
    from cxloe.kv.layout import Superblock

    region = node.region(made)
    with kv.open(made) as store:
        store.put("k", b"1")
        line = bytearray(64)
        node.read_into(region.address, line)
        block = Superblock.decode(bytes(line))
        node.write_from(region.address, Superblock(block.size, block.entries, block.epoch + 1).encode())
        with pytest.raises(kv.StoreError, match="was opened for writing elsewhere") as failed:
            store.put("k", b"2")
        assert failed.value.kind == "replaced"
        with pytest.raises(kv.StoreError, match="open it again") as failed:
            store.get("k")
        assert failed.value.kind == "broken"


def test_a_change_that_a_signal_interrupts_gives_no_object_the_bytes_of_another(made, monkeypatch):
    from cxloe.kv.space import Space

    take, counts = Space.take, []

    def interrupted(space, count):
        # There is no room at first, and then the room of the object that has to go.
        counts.append(count)
        if len(counts) == 2:
            raise KeyboardInterrupt
        return take(space, count)

    with kv.open(made) as store:
        size = store.stats()["capacity"] // 2 - 4096
        store.put("a", b"a" * size)
        store.put("b", b"b" * size)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Space, "take", interrupted)
            store.put("c", b"c" * size)
        with pytest.raises(kv.StoreError, match="failed \\(KeyboardInterrupt\\): open it again") as failed:
            store.put("d", b"d" * 100)
        assert failed.value.kind == "broken"
    with kv.open(made) as store:
        assert (store.get("a"), store.get("b"), store.keys()) == (b"a" * size, b"b" * size, ["a", "b"])


def test_the_writer_is_found_whatever_path_leads_to_the_agent(made, node, tmp_path):
    link = tmp_path / "agent.sock"
    link.symlink_to(node.socket)
    with kv.open(made):
        with pytest.raises(kv.StoreError) as failed:
            kv.open(made, link)
        assert failed.value.kind == "in_use"


def test_a_region_without_a_store(node, region):
    with pytest.raises(kv.StoreError, match="contains no store: make one with") as failed:
        kv.open(region.name)
    assert failed.value.kind == "no_store"
    with kv.open(region.name, create=True) as store:
        store.put("k", b"1")
    with kv.open(region.name, create=True) as store:
        assert store.get("k") == b"1", "what is there is kept"
    with pytest.raises(ValueError, match="has no room for a store of"):
        kv.format(node, region, entries=REGION // 64)
    with pytest.raises(cxloe.AgentError, match="no region `nothing` is attached"):
        kv.open("nothing")
    store.close()
    with pytest.raises(kv.StoreError, match="the store is closed: open it again"):
        store.get("k")


def test_of_two_processes_that_make_a_store_the_later_one_keeps_what_is_there(region, monkeypatch):
    from cxloe.kv import store as implementation

    lock = implementation._Lock

    def late(node, region):
        # Another process makes the store and uses it, just before this one has the lock.
        monkeypatch.setattr(implementation, "_Lock", lock)
        with kv.open(region.name, create=True) as other:
            other.put("k", b"1")
        return lock(node, region)

    monkeypatch.setattr(implementation, "_Lock", late)
    with kv.open(region.name, create=True) as store:
        assert store.get("k") == b"1"


def test_threads_and_coroutines(store):
    async def work(number):
        data = content(number, 0, 200000)
        await store.aput(str(number), data)
        back = bytearray(len(data))
        assert await store.aget(str(number)) == data
        assert await store.aget_into(str(number), back) == len(data) and back == data

    async def all_of_them():
        await asyncio.gather(*(work(number) for number in range(12)))

    asyncio.run(all_of_them())
    assert len(store) == 12


def test_a_cancelled_call_gives_its_buffer_back_when_it_has_ended(made, monkeypatch):
    size = 100000

    async def cancelled(store, begun, gate, call):
        """Cancels a call that has begun, and one that waits for the only thread."""
        begun.clear()
        gate.clear()
        task = asyncio.create_task(call())
        try:
            assert await asyncio.to_thread(begun.wait, LIMIT)
            waiting = bytearray(size)
            late = asyncio.create_task(store.aget_into("k", waiting))
            await asyncio.sleep(0)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                # At once: the gate is shut.
                await late
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert not task.done()
        finally:
            gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.aget("k") is not None
        assert waiting == bytes(size), "a call that had not begun is not carried out"

    async def main(store, begun, gate):
        buffer = bytearray(size)
        await cancelled(store, begun, gate, lambda: store.aget_into("k", buffer))
        assert buffer == b"k" * size
        buffer[:] = b"n" * size
        await cancelled(store, begun, gate, lambda: store.aput("k", buffer))
        buffer[:] = b"x" * size
        assert await store.aget("k") == b"n" * size
        # A failure of a call that was cancelled is not reported.
        await cancelled(store, begun, gate, lambda: store.aget_into("k", bytearray(1)))

    with kv.open(made, connections=1) as store:
        store.put("k", b"k" * size)
        begun, gate, connection = threading.Event(), threading.Event(), store._connection

        @contextmanager
        def gated():
            begun.set()
            assert gate.wait(LIMIT)
            with connection() as node:
                yield node

        monkeypatch.setattr(store, "_connection", gated)
        asyncio.run(main(store, begun, gate))
    with pytest.raises(kv.StoreError, match="the store is closed"):
        asyncio.run(store.aget_into("k", bytearray(size)))


def test_the_command_line(made, tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "cxloe.kv", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    measured = json.loads(run("measure", made, "--size", "100000", "--count", "4", "--trials", "2").stdout)
    assert measured.keys() == {"put_mb_s", "get_mb_s", "plain_read_mb_s", "exists_1000_us"}
    with kv.open(made) as store:
        assert len(store) == 0, "what was measured is gone"
        store.put("k", bytes(5))
    assert run("list", made).stdout.split() == ["5", "k"]
    assert json.loads(run("list", made, "--json").stdout) == [{"key": "k", "size": 5}]
    assert json.loads(run("stats", made).stdout)["objects"] == 1
    assert run("format", made).returncode == 0 and run("list", made).stdout == ""
    failed = run("list", "nothing")
    assert (failed.returncode, failed.stdout) == (1, "") and "no region `nothing` is attached" in failed.stderr
