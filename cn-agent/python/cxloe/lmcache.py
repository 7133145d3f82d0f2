"""A storage plug-in for LMCache: chunks of key-value caches as objects of a ``cxloe.kv`` store.

LMCache's configuration names it::

    local_cpu: true
    max_local_cpu_size: 5
    storage_plugins: [cxloe]
    extra_config:
      storage_plugin.cxloe.module_path: cxloe.lmcache
      storage_plugin.cxloe.class_name: CxloeBackend
      cxloe.region: "cache-{worker_id}"

| key of ``extra_config`` | is |
|---|---|
| ``cxloe.region`` | name of the region; ``{worker_id}`` stands for the worker's number, as each worker has a store of its own |
| ``cxloe.agent`` | path of the agent's socket; as for ``cxloe.connect`` unless given |
| ``cxloe.create`` | whether to make a store in a region that contains none; true unless given |
| ``cxloe.read_only`` | whether others write the store, as in a sealed region; false unless given |
| ``cxloe.checksums`` | whether to check the bytes of each chunk; false unless given |
| ``cxloe.connections`` | connections to the agent, and chunks that are transferred at a time; 4 unless given |

Written against LMCache 0.5.6 (``StoragePluginInterface``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from . import kv
from ._errors import Error

_log = logging.getLogger(__name__)


class CxloeBackend(StoragePluginInterface):
    """Chunks in a region. A worker writes; the scheduler, which has no allocator, only looks chunks up."""

    def __init__(
        self,
        dst_device: str = "cpu",
        config: Any = None,
        metadata: Any = None,
        local_cpu_backend: Any = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(
            dst_device=dst_device, config=config, metadata=metadata, local_cpu_backend=local_cpu_backend, loop=loop
        )
        options = dict(getattr(config, "extra_config", None) or {})
        pattern = options.get("cxloe.region")
        if not pattern:
            raise ValueError("extra_config lacks cxloe.region: name the region of the store, as cache-{worker_id}")
        workers = int(getattr(metadata, "world_size", 1) or 1)
        if workers > 1 and "{worker_id}" not in pattern and local_cpu_backend is not None:
            raise ValueError(
                f"{workers} workers cannot write to one store: name a region for each in cxloe.region, as "
                f"{pattern}-{{worker_id}}"
            )
        connections = int(options.get("cxloe.connections", 4))
        read_only = bool(options.get("cxloe.read_only", False)) or local_cpu_backend is None
        self._store = kv.open(
            pattern.format(worker_id=getattr(metadata, "worker_id", 0)),
            options.get("cxloe.agent"),
            read_only=read_only,
            create=bool(options.get("cxloe.create", True)) and not read_only,
            checksums=bool(options.get("cxloe.checksums", False)),
            connections=connections,
        )
        self._threads = ThreadPoolExecutor(connections, "cxloe-lmcache")
        self._puts: set[str] = set()
        self._puts_lock = threading.Lock()

    def __str__(self) -> str:
        return f"CxloeBackend({self._store.region})"

    # Looking chunks up.

    def contains(self, key: Any, pin: bool = False) -> bool:
        name = key.to_string()
        return self._store.pin(name) if pin else self._store.exists(name)

    def batched_contains(self, keys: list[Any], pin: bool = False) -> int:
        names = [key.to_string() for key in keys]
        count = self._store.leading(names)
        if pin:
            # One may have been evicted since.
            for index, name in enumerate(names[:count]):
                if not self._store.pin(name):
                    return index
        return count

    async def batched_async_contains(self, lookup_id: str, keys: list[Any], pin: bool = False) -> int:
        return self.batched_contains(keys, pin)

    def exists_in_put_tasks(self, key: Any) -> bool:
        with self._puts_lock:
            return key.to_string() in self._puts

    def pin(self, key: Any) -> bool:
        return self._store.pin(key.to_string())

    def unpin(self, key: Any) -> bool:
        return self._store.unpin(key.to_string())

    def touch_cache(self) -> None:
        """A get makes its chunk the most recently used one."""

    # Putting.

    def batched_submit_put_task(
        self,
        keys: Sequence[Any],
        objs: list[Any],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> list[Future[None]] | None:
        if self._store.read_only:
            return None
        futures = []
        for key, chunk in zip(keys, objs, strict=True):
            name = key.to_string()
            with self._puts_lock:
                if name in self._puts:
                    continue
                self._puts.add(name)
            # The allocator must not use the chunk's memory again before it is sent.
            chunk.ref_count_up()
            futures.append(self._threads.submit(self._put, key, name, chunk, on_complete_callback))
        return futures

    async def async_batched_submit_put_task(
        self,
        keys: Sequence[Any],
        objs: list[Any],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> None:
        futures = self.batched_submit_put_task(keys, objs, transfer_spec, on_complete_callback)
        await asyncio.gather(*map(asyncio.wrap_future, futures or []))

    def _put(self, key: Any, name: str, chunk: Any, done: Callable[[Any], None] | None) -> None:
        try:
            self._store.put(name, chunk.byte_array, note=_note(chunk.metadata))
            if done is not None:
                done(key)
        except Exception as failed:
            # A cache without this chunk is right, too: the engine computes it again.
            _log.warning("chunk %s was not stored: %s", name, failed)
        finally:
            chunk.ref_count_down()
            with self._puts_lock:
                self._puts.discard(name)

    # Getting.

    def get_blocking(self, key: Any) -> Any | None:
        name = key.to_string()
        try:
            note = self._store.note(name)
            chunk = None if note is None else self._allocate(note)
            if chunk is None:
                return None
            try:
                size = self._store.get_into(name, chunk.byte_array)
            except BaseException:
                chunk.ref_count_down()
                raise
        except Error as failed:
            _log.warning("chunk %s was not read: %s", name, failed)
            return None
        if size is None:
            chunk.ref_count_down()
            return None
        return chunk

    def batched_get_blocking(self, keys: list[Any]) -> list[Any | None]:
        return list(self._threads.map(self.get_blocking, keys))

    def get_non_blocking(self, key: Any, location: str | None = None) -> Future[Any] | None:
        return self._threads.submit(self.get_blocking, key)

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any], transfer_spec: Any = None) -> list[Any]:
        futures = [asyncio.wrap_future(self._threads.submit(self.get_blocking, key)) for key in keys]
        chunks = await asyncio.gather(*futures)
        leading = chunks.index(None) if None in chunks else len(chunks)
        for chunk in chunks[leading:]:
            if chunk is not None:
                chunk.ref_count_down()
        return chunks[:leading]

    def _allocate(self, note: bytes) -> Any | None:
        shapes, dtypes, fmt = _described(note)
        return self.local_cpu_backend.allocate(shapes, dtypes, fmt)

    def remove(self, key: Any, force: bool = True) -> bool:
        name = key.to_string()
        if self._store.read_only or (not force and self._store.is_pinned(name)):
            return False
        return self._store.delete(name)

    def get_allocator_backend(self) -> Any:
        return self.local_cpu_backend

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self._store.close()


def _note(metadata: Any) -> bytes:
    """Shapes, types and format of a chunk."""
    shapes = metadata.shapes or [metadata.shape]
    dtypes = metadata.dtypes or [metadata.dtype]
    record = {
        "shapes": [list(shape) for shape in shapes],
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in dtypes],
        "format": metadata.fmt.name,
    }
    return json.dumps(record).encode()


def _described(note: bytes) -> tuple[Any, Any, Any]:
    record = json.loads(note)
    shapes = [torch.Size(shape) for shape in record["shapes"]]
    dtypes = [getattr(torch, name) for name in record["dtypes"]]
    fmt = MemoryFormat[record["format"]]
    return (shapes[0], dtypes[0], fmt) if len(shapes) == 1 else (shapes, dtypes, fmt)
