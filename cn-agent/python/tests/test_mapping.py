"""Mapped regions: arrays in memory of which a quarter is here, views, and the end of a mapping."""

import sys
import threading
import time

import cxloe
import numpy
import pytest
from conftest import LOCAL, REGION, eventually


def test_an_array_of_which_a_quarter_is_resident_is_computed_right(node, region):
    count = REGION // 8
    with node.map(region, local=LOCAL) as mapping:
        assert (len(mapping), mapping.region, mapping.closed) == (REGION, region.name, False)
        array = numpy.frombuffer(mapping, dtype=numpy.uint64)
        array[:] = numpy.arange(count, dtype=numpy.uint64)
        for _ in range(2):
            array *= numpy.uint64(2654435761)
            array ^= numpy.uint64(0x5A5A)
        here = numpy.arange(count, dtype=numpy.uint64)
        for _ in range(2):
            here *= numpy.uint64(2654435761)
            here ^= numpy.uint64(0x5A5A)
        assert numpy.array_equal(array, here)
        assert int(array.sum(dtype=numpy.uint64)) == int(here.sum(dtype=numpy.uint64))
        counters = mapping.counters()
        assert counters["resident"] <= LOCAL
        # Each of the five passes over the array brings most pages anew.
        assert counters["evicted"] > REGION // 4096, counters
        assert counters["fetched"] + counters["prefetched"] > REGION // 4096, counters
        del array
    assert mapping.closed
    # Once it is unmapped, the region is read by lines: the memory node has the array.
    back = numpy.empty(count, dtype=numpy.uint64)

    def read():
        try:
            return node.read_into(region.address, back)
        except cxloe.AccessError as error:
            assert error.kind == "mapped", error
            return None

    assert eventually("the region is unmapped", read) == REGION
    assert numpy.array_equal(back, here)


def test_a_mapping_with_views_is_not_closed(node, region):
    mapping = node.map(region.name, local=LOCAL, fresh=True)
    view = memoryview(mapping)
    array = numpy.frombuffer(mapping, dtype=numpy.uint8)
    assert (view.nbytes, view.readonly, view.format, array.size) == (REGION, False, "B", REGION)
    with pytest.raises(BufferError, match="has 2 views"):
        mapping.close()
    view[:5] = b"hello"
    del array
    with pytest.raises(BufferError, match="has 1 views"):
        mapping.close()
    view.release()
    mapping.close()
    mapping.close()
    with pytest.raises(BufferError, match="the mapping is closed"):
        memoryview(mapping)
    with pytest.raises(cxloe.AgentError, match="the mapping is closed") as failed:
        mapping.flush()
    assert failed.value.kind == "closed"


def test_two_mappings_share_the_content_and_a_forgotten_one_is_unmapped(node, region):
    with node.map(region, local=LOCAL) as one, memoryview(one) as first:
        other = node.map(region, local=LOCAL)
        assert other.space == one.space
        second = memoryview(other)
        first[4096:4101] = b"bytes"
        assert second[4096:4101].tobytes() == b"bytes"
        second.release()
        del second, other
        assert first[4096:4101].tobytes() == b"bytes"


def test_pages_are_discarded_hinted_and_limited(node, region):
    with node.map(region, local=LOCAL) as mapping, memoryview(mapping) as view:
        view[: 8 * 4096] = b"x" * (8 * 4096)
        mapping.flush()
        mapping.discard(4096, 4096)
        assert view[4095:4097].tobytes() == b"x\0"
        assert view[8191:8193].tobytes() == b"\0x"
        mapping.hint(0, 8 * 4096, "page_out")
        assert eventually("pages leave", lambda: mapping.counters()["evicted"] >= 7)
        mapping.set_local(2 * LOCAL)
        with pytest.raises(ValueError, match="choose will_read"):
            mapping.hint(0, 4096, "perhaps")
        with pytest.raises(cxloe.AgentError, match="are not whole pages of the mapping") as failed:
            mapping.discard(1, 4096)
        assert failed.value.kind == "range"


def test_other_threads_run_while_one_waits(node, region):
    """A call that waits gives the interpreter's lock away: another thread counts meanwhile."""
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            # Gives the lock away.
            time.sleep(0)

    def runs_during(call, prepare=lambda: None):
        # Bounded by the number of calls, not by a time: the other thread runs during one of them, or during none.
        for _ in range(100):
            prepare()
            before = counted[0]
            call()
            if counted[0] > before:
                return True
        return False

    buffer = bytearray(REGION)
    thread, interval = threading.Thread(target=count), sys.getswitchinterval()
    thread.start()
    try:
        # The lock changes hands only where a thread gives it away.
        sys.setswitchinterval(1000)
        for call in (
            lambda: node.read(region.address, 65536),
            lambda: node.write(region.address, buffer),
            lambda: node.read_into(region.address, buffer),
            lambda: node.write_from(region.address, buffer),
            node.regions,
        ):
            assert runs_during(call)
        # A flush without lines to write back does not wait.
        assert runs_during(node.flush, prepare=lambda: node.write_from(region.address, buffer))
        with node.map(region, local=REGION) as mapping, memoryview(mapping) as view:

            def change():
                view[:] = buffer

            assert runs_during(mapping.flush, prepare=change)
            assert runs_during(mapping.counters)
        assert not runs_during(lambda: None)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
