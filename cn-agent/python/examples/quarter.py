"""An array in the region `scratch`, of which a quarter is in this machine at a time."""

import sys

import cxloe
import numpy

name = sys.argv[1] if len(sys.argv) > 1 else "scratch"
with cxloe.connect() as node:
    region = node.region(name)
    with node.map(region, local=region.size // 4) as memory:
        array = numpy.frombuffer(memory, dtype=numpy.float64)
        array[:] = numpy.arange(array.size)
        array *= 0.5
        # Returns when the memory nodes have the bytes.
        memory.flush()
        print(array.sum(), "pages evicted:", memory.counters()["evicted"])
        # A mapping is not closed as long as arrays use its memory.
        del array
