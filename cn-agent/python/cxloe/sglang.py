"""A storage backend for SGLang's hierarchical cache: pages as objects of a ``cxloe.kv`` store.

SGLang is started with::

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "cxloe", "module_path": "cxloe.sglang", "class_name": "HiCacheCxloe",
      "region": "cache-{tp_rank}"}'

| key of the extra configuration | is |
|---|---|
| ``region`` | name of the region; ``{tp_rank}``, ``{pp_rank}`` and ``{dp_rank}`` stand for the worker's ranks, as each worker has a store of its own |
| ``agent`` | path of the agent's socket; as for ``cxloe.connect`` unless given |
| ``create`` | whether to make a store in a region that contains none; true unless given |
| ``read_only`` | whether others write the store, as in a sealed region; false unless given |
| ``checksums`` | whether to check the bytes of each page; false unless given |

Ranks of a model with multi-head latent attention hold the same pages: with a region name without ranks, the rank that
writes has the store open for writing, and the others read it. ``interface_v1`` is not served: leave it out.

Written against SGLang 0.5.23 (``HiCacheStorage``).
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from . import kv
from ._errors import Error

_log = logging.getLogger(__name__)


class HiCacheCxloe(HiCacheStorage):
    """Pages in a region."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        options = dict(storage_config.extra_config or {})
        pattern = options.get("region")
        if not pattern:
            raise ValueError("the extra configuration lacks `region`: name the region of the store, as cache-{tp_rank}")
        if options.get("interface_v1"):
            raise ValueError("cxloe does not serve interface_v1: leave it out of the extra configuration")
        tp_rank, tp_size = storage_config.tp_rank, storage_config.tp_size
        pp_rank, pp_size = storage_config.pp_rank, storage_config.pp_size
        ranks = {"tp_rank": tp_rank, "pp_rank": pp_rank, "dp_rank": getattr(storage_config, "dp_rank", 0)}
        region = pattern.format(**ranks)
        shared = storage_config.is_mla_model and "{tp_rank}" not in pattern
        if tp_size > 1 and "{tp_rank}" not in pattern and not shared:
            raise ValueError(f"{tp_size} ranks cannot write to one store: name a region for each, as {pattern}-{{tp_rank}}")
        writes = not shared or getattr(storage_config, "is_storage_writer", tp_rank == 0)
        read_only = bool(options.get("read_only", False)) or not writes
        self._store = kv.open(
            region,
            options.get("agent"),
            read_only=read_only,
            create=bool(options.get("create", True)) and not read_only,
            checksums=bool(options.get("checksums", False)),
        )
        # Pages of different models, and of different divisions of one, are different objects.
        model = (storage_config.model_name or "").replace("/", "-")
        division = "" if storage_config.is_mla_model else f"@{tp_rank}of{tp_size}"
        self._suffix = f"@{model}{division}@{pp_rank}of{pp_size}"

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any | None:
        if target_location is None:
            raise ValueError("cxloe reads pages into a tensor: give target_location")
        try:
            size = self._store.get_into(key + self._suffix, _bytes_of(target_location))
        except (Error, ValueError) as failed:
            _log.warning("page %s was not read: %s", key, failed)
            return None
        whole = target_location.numel() * target_location.element_size()
        return target_location if size == whole else None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any | None]:
        return [self.get(key, target) for key, target in zip(keys, target_locations or [None] * len(keys), strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        if value is None or self._store.read_only:
            return False
        name = key + self._suffix
        # The key is a hash of the tokens: what is there has the same content.
        if self._store.exists(name):
            return True
        try:
            self._store.put(name, _bytes_of(value.contiguous()))
        except (Error, ValueError) as failed:
            _log.warning("page %s was not stored: %s", key, failed)
            return False
        return True

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all([self.set(key, value) for key, value in zip(keys, values or [None] * len(keys), strict=True)])

    def exists(self, key: str) -> bool:
        return self._store.exists(key + self._suffix)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._store.leading([key + self._suffix for key in keys])

    def clear(self) -> None:
        if not self._store.read_only:
            self._store.clear()

    def get_stats(self) -> Any:
        return None

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _bytes_of(tensor: Any) -> memoryview:
    """Bytes of a contiguous tensor, in place: NumPy does not know all of its types."""
    return memoryview(tensor.view(torch.uint8).reshape(-1).numpy())
