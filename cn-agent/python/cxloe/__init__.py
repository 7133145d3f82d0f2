"""Memory of other servers over Ethernet (CXL over Ethernet), for Python programs.

    import cxloe

    with cxloe.connect() as node, node.map("scratch", local=256 << 20) as memory:
        with memoryview(memory) as view:
            view[:5] = b"hello"
        memory.flush()

``connect`` opens a connection to the agent of this machine (``cn-agent run``), which reads and writes lines of 64 bytes
and maps regions. ``cxloe.manager`` makes, lists and destroys regions, and ``cxloe.aio`` has the calls for ``asyncio``.

No wait in a call holds the interpreter's lock: other threads run meanwhile. Touching a page of a mapping that is not in
this machine is no call: a thread that does so holds the lock until the page is there, as with every page fault.
"""

from importlib.metadata import version as _version

from . import manager
from ._cxloe import Mapping, Node, Region, connect
from ._errors import AccessError, AgentError, Error, ManagerError

__all__ = [
    "AccessError",
    "AgentError",
    "Error",
    "ManagerError",
    "Mapping",
    "Node",
    "Region",
    "connect",
    "manager",
]

#: Version of the package; the agent has to be of the same release.
__version__ = _version("cxloe")
