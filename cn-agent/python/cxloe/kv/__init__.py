"""A store of objects in a region, for key-value caches: 64 KiB to 16 MiB each, put and got whole.

    from cxloe import kv

    with kv.open("cache", create=True) as store:
        store.put("prefix-1", tensor, note=b"float16 2x32x256x128")
        store.get_into("prefix-1", buffer)

One process of a compute node writes; others read beside it, and compute nodes that share a sealed region read, too. What
was put survives the process, its agent and, in a mirrored region, a memory node. The least recently used objects make
room for new ones.

``python3 -m cxloe.kv --help`` makes, lists and measures stores.
"""

from .store import Stats, Store, StoreError, format, open

__all__ = ["Stats", "Store", "StoreError", "format", "open"]
