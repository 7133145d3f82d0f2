"""The plug-ins for LMCache and SGLang, driven as those do, over interfaces of their shape.

Neither package is installed here: `rig` has the classes that the plug-ins derive from, with the methods that LMCache 0.5.6
and SGLang 0.5.23 declare, and a tensor of NumPy's.
"""

import asyncio
import enum
import sys
import types
from types import SimpleNamespace

import pytest
from conftest import eventually
from cxloe import kv

numpy = pytest.importorskip("numpy")


class Tensor:
    """A contiguous tensor, as far as the plug-ins use one."""

    def __init__(self, array):
        self.array = array

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def contiguous(self):
        return Tensor(numpy.ascontiguousarray(self.array))

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def numpy(self):
        return self.array


class Formats(enum.Enum):
    UNDEFINED = 0
    KV_2LTD = 1


class Key:
    def __init__(self, number, worker=0):
        self.text = f"model@1@{worker}@{number:x}@float16"

    def to_string(self):
        return self.text


class Chunk:
    """LMCache's MemoryObj: bytes, their description, a count of references."""

    def __init__(self, shape, dtype, fmt=Formats.KV_2LTD):
        self.tensor = numpy.zeros(shape, dtype)
        self.metadata = SimpleNamespace(shape=shape, dtype="torch.float16", shapes=None, dtypes=None, fmt=fmt)
        self.references = 1

    @property
    def byte_array(self):
        return memoryview(self.tensor).cast("B")

    def ref_count_up(self):
        self.references += 1

    def ref_count_down(self):
        self.references -= 1


class Allocator:
    """LMCache's LocalCPUBackend, which has room for so many chunks."""

    def __init__(self, room=100):
        self.room = room
        self.made = []

    def allocate(self, shapes, dtypes, fmt, eviction=True, busy_loop=True):
        if self.room == 0:
            return None
        self.room -= 1
        assert (dtypes, fmt) == (numpy.float16, Formats.KV_2LTD)
        self.made.append(Chunk(tuple(shapes), dtypes, fmt))
        return self.made[-1]


class StoragePluginInterface:
    def __init__(self, dst_device="cpu", config=None, metadata=None, local_cpu_backend=None, loop=None):
        self.dst_device, self.config, self.metadata = dst_device, config, metadata
        self.local_cpu_backend, self.loop = local_cpu_backend, loop


LMCACHE_METHODS = """contains exists_in_put_tasks batched_submit_put_task async_batched_submit_put_task get_blocking
get_non_blocking batched_async_contains batched_get_non_blocking batched_get_blocking pin unpin remove
get_allocator_backend close batched_contains touch_cache""".split()

SGLANG_METHODS = "get batch_get set batch_set exists batch_exists clear get_stats".split()


@pytest.fixture
def rig(monkeypatch):
    """Modules that the plug-ins import."""

    def module(name, **members):
        made = types.ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    module("torch", uint8=numpy.uint8, float16=numpy.float16, Size=tuple)
    for name in ("lmcache", "lmcache.v1", "lmcache.v1.storage_backend", "sglang", "sglang.srt", "sglang.srt.mem_cache"):
        module(name)
    module("lmcache.v1.memory_management", MemoryFormat=Formats)
    module("lmcache.v1.storage_backend.abstract_backend", StoragePluginInterface=StoragePluginInterface)
    module("sglang.srt.mem_cache.hicache_storage", HiCacheStorage=type("HiCacheStorage", (), {}))
    yield
    for name in ("cxloe.lmcache", "cxloe.sglang"):
        sys.modules.pop(name, None)


def lmcache(region, allocator, world_size=1, **options):
    """The plug-in as LMCache's launcher makes it."""
    from cxloe.lmcache import CxloeBackend

    extra = {"cxloe.region": region, **options}
    return CxloeBackend(
        config=SimpleNamespace(extra_config=extra),
        dst_device="cpu",
        metadata=SimpleNamespace(world_size=world_size, worker_id=0),
        local_cpu_backend=allocator,
        loop=None,
    )


def chunk(number):
    made = Chunk((2, 4, 64, 32), numpy.float16)
    made.tensor[:] = number
    return made


def test_lmcache_puts_looks_up_and_gets(rig, region):
    allocator = Allocator()
    backend = lmcache(region.name, allocator)
    assert all(callable(getattr(backend, name)) for name in LMCACHE_METHODS)
    keys, chunks, done = [Key(number) for number in range(6)], [chunk(number) for number in range(6)], []
    for future in backend.batched_submit_put_task(keys[:5], chunks[:5], on_complete_callback=done.append):
        future.result(60)
    assert sorted(map(keys.index, done)) == [0, 1, 2, 3, 4]
    assert [one.references for one in chunks] == [1] * 6 and not backend.exists_in_put_tasks(keys[0])
    assert backend.contains(keys[0]) and not backend.contains(keys[5])
    assert backend.batched_contains(keys) == 5 == asyncio.run(backend.batched_async_contains("lookup", keys))
    got = backend.batched_get_blocking(keys)
    assert got[5] is None and all((one.tensor == number).all() for number, one in enumerate(got[:5]))
    assert got[0].tensor.shape == (2, 4, 64, 32)
    assert (backend.get_non_blocking(keys[1]).result(60).tensor == 1).all()

    async def ahead():
        await backend.async_batched_submit_put_task(keys[5:], chunks[5:])
        return await backend.batched_get_non_blocking("lookup", [keys[5], Key(77), keys[0]])

    # Only what precedes the first missing chunk is of use; the memory of the rest is given back.
    leading = asyncio.run(ahead())
    assert len(leading) == 1 and (leading[0].tensor == 5).all()
    assert [one.references for one in allocator.made[-2:]].count(0) == 1
    assert backend.contains(keys[2], pin=True) and not backend.remove(keys[2], force=False)
    assert backend.unpin(keys[2]) and backend.remove(keys[2], force=False) and not backend.contains(keys[2])
    assert backend.get_allocator_backend() is allocator
    allocator.room = 0
    assert backend.get_blocking(keys[0]) is None
    backend.close()
    # The scheduler has no allocator, and looks chunks up beside the worker.
    worker, scheduler = lmcache(region.name, Allocator()), lmcache(region.name, None)
    assert eventually("the chunks are seen", lambda: scheduler.batched_contains(keys)) == 2 and scheduler.batched_submit_put_task(keys, chunks) is None
    worker.close()
    scheduler.close()


def test_lmcache_is_told_what_its_configuration_lacks(rig, region):
    with pytest.raises(ValueError, match="lacks cxloe.region"):
        lmcache("", Allocator())
    with pytest.raises(ValueError, match=r"2 workers cannot write to one store: .* as cache-\{worker_id\}"):
        lmcache("cache", Allocator(), world_size=2)
    with pytest.raises(kv.StoreError, match="contains no store"):
        lmcache(region.name, Allocator(), **{"cxloe.create": False})


def sglang(region, rank=0, ranks=1, mla=False, **options):
    """The backend as SGLang's factory makes it."""
    from cxloe.sglang import HiCacheCxloe

    extra = {"backend_name": "cxloe", "module_path": "cxloe.sglang", "class_name": "HiCacheCxloe", "region": region}
    config = SimpleNamespace(
        tp_rank=rank,
        tp_size=ranks,
        pp_rank=0,
        pp_size=1,
        is_mla_model=mla,
        model_name="a/model",
        extra_config={**extra, **options},
    )
    return HiCacheCxloe(config, {})


def page(number):
    return Tensor(numpy.full((2, 3, 512), number, numpy.float16))


def test_sglang_sets_looks_up_and_gets(rig, region):
    backend = sglang(region.name)
    assert all(callable(getattr(backend, name)) for name in SGLANG_METHODS)
    keys = [f"{number:064x}" for number in range(5)]
    assert backend.batch_set(keys[:4], [page(number) for number in range(4)])
    assert backend.set(keys[0], page(0)), "what is there need not be written again"
    assert backend.batch_exists(keys) == 4 and backend.exists(keys[3]) and not backend.exists(keys[4])
    targets = [page(-1) for _ in keys]
    got = backend.batch_get(keys, targets)
    assert got[4] is None and all(got[number] is targets[number] for number in range(4))
    assert all((targets[number].array == number).all() for number in range(4))
    # A page of another size is no hit.
    assert backend.get(keys[0], Tensor(numpy.zeros(4096, numpy.float16))) is None
    assert backend.get(keys[0], Tensor(numpy.zeros(10, numpy.float16))) is None
    backend.clear()
    assert backend.batch_exists(keys) == 0
    backend.close()


def test_ranks_that_hold_the_same_pages_share_a_store(rig, region):
    first, second = sglang(region.name, 0, 2, mla=True), sglang(region.name, 1, 2, mla=True)
    assert first.set("k", page(7)) and not second.set("k", page(8))
    target = page(0)
    # A reader looks for keys that it does not know at intervals.
    assert eventually("the page is seen", lambda: second.get("k", target)) is target
    assert (target.array == 7).all()
    first.close()
    second.close()
    with pytest.raises(ValueError, match="2 ranks cannot write to one store"):
        sglang("cache", 0, 2)
    with pytest.raises(ValueError, match="does not serve interface_v1"):
        sglang(region.name, interface_v1=1)
    with pytest.raises(ValueError, match="lacks `region`"):
        sglang("")
