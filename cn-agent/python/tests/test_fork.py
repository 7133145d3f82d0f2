"""Children of `fork`: what belongs to the parent is refused with a sentence, and they can connect themselves."""

import os
import signal
import traceback
import warnings

import cxloe
import pytest
from cxloe import kv


def in_child(work):
    """Runs ``work`` in a child, which must end well. Returns how it ended and what it wrote on standard error."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forks in processes with threads, as this one is: that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.dup2(writing, 2)
            work()
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def test_a_child_is_refused_what_belongs_to_its_parent_and_connects_itself(node, region):
    node.write(region.address, b"p" * 64)
    node.flush()

    def child():
        for call in (node.regions, node.flush, node.close, lambda: node.read(region.address, 64)):
            with pytest.raises(cxloe.AgentError, match="not of its child by fork; connect in the child") as failed:
                call()
            assert failed.value.kind == "forked"
        with cxloe.connect() as own:
            assert own.read(region.address, 64) == b"p" * 64

    assert in_child(child) == (0, "")
    assert node.read(region.address, 64) == b"p" * 64


def test_a_child_has_no_mapping_of_its_parent_and_maps_itself(node, region):
    mapping = node.map(region)
    view = memoryview(mapping)
    view[:6] = b"parent"

    def child():
        with pytest.raises(BufferError, match="not of its child by fork; map the region in the child"):
            memoryview(mapping)
        for call in (mapping.flush, mapping.close, mapping.counters):
            with pytest.raises(cxloe.AgentError, match="map the region in the child") as failed:
                call()
            assert failed.value.kind == "forked"
        with cxloe.connect() as own, own.map(region.name) as mine, memoryview(mine) as seen:
            assert seen[:6].tobytes() == b"parent"
            seen[8:13] = b"child"
        # The end of the parent's view in the child leaves the parent's mapping alone.
        view.release()

    assert in_child(child) == (0, "")
    assert view[8:13].tobytes() == b"child"

    code, said = in_child(lambda: view[0])
    assert code == -signal.SIGSEGV, (code, said)
    assert said.startswith("cxloe: this process ends here of SIGSEGV"), said
    view.release()
    mapping.close()


def test_objects_of_the_parent_are_dropped_in_a_child_without_a_wait(region):
    held = [cxloe.connect()]
    held.append(held[0].map(region))
    with memoryview(held[1]) as view:
        view[:4] = b"kept"

    assert in_child(held.clear) == (0, "")
    with memoryview(held[1]) as view:
        assert view[:4].tobytes() == b"kept"
    held[1].flush()
    held[1].close()


def test_a_child_does_not_keep_a_store_for_writing(region):
    store = kv.open(region.name, create=True)
    begins, begun = os.pipe()
    ends, end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(end)
            os.write(begun, b"x")
            os.read(ends, 1)
        finally:
            os._exit(0)
    os.close(begun)
    os.close(ends)
    try:
        assert os.read(begins, 1) == b"x"
        with pytest.raises(kv.StoreError, match="is open for writing in another process"):
            kv.open(region.name)
        store.close()
        kv.open(region.name).close()
    finally:
        os.close(end)
        os.close(begins)
        os.waitpid(child, 0)
