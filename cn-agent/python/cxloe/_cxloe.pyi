from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, TypedDict, final

from typing_extensions import Buffer

class Counters(TypedDict):
    """Counts since a region was mapped."""

    faults: int
    """Faults on absent pages."""
    zero_fills: int
    """Of these, on pages never written before."""
    fetched: int
    """Pages fetched for a waiting thread."""
    prefetched: int
    """Pages fetched ahead."""
    prefetch_hits: int
    """Of these, used afterwards."""
    evicted: int
    """Pages evicted."""
    refaulted: int
    """Of these, fetched again later."""
    written_back: int
    """Modified pages written back."""
    lines_written_back: int
    """Lines of 64 bytes sent for these pages."""
    resident: int
    """Bytes resident at present."""

@final
class Region:
    """A region that the agent has attached."""

    @property
    def name(self) -> str:
        """Name of the region, unique in the fabric."""
    @property
    def address(self) -> int:
        """Address of the region's first byte, for reads and writes of lines (its HPA)."""
    @property
    def size(self) -> int:
        """Size in bytes, as far as the region has addresses."""
    @property
    def uid(self) -> int | None:
        """User on this node that may use the region; None: all who may use the agent."""
    @property
    def created_ms(self) -> int:
        """Time of creation in milliseconds since the Unix epoch."""
    @property
    def state(self) -> str:
        """State in the manager's last answer: ``active``, ``degraded``, ``lost``, …"""
    @property
    def attachment(self) -> str:
        """Whether the region can be used here: ``attached``, ``connecting``, …"""
    @property
    def served_by(self) -> str:
        """What backs the region: ``ethernet``, or a CXL device."""
    @property
    def note(self) -> str | None:
        """Why the region waits, or why its device cannot be used."""

@final
class Node:
    """A connection to the agent. Threads take turns; one that should not wait for others connects itself.

    Addresses are those of regions (``region.address``), multiples of 64; sizes are whole lines of 64 bytes. A child of
    ``fork`` connects itself: what belongs to its parent is refused there.
    """

    @property
    def socket(self) -> str:
        """Path of the agent's socket."""
    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
    def regions(self) -> list[Region]:
        """Regions that the agent has attached, in order of their addresses."""
    def region(self, name: str) -> Region:
        """The region named ``name``."""
    def read(self, address: int, size: int) -> bytes:
        """Read ``size`` bytes (whole lines) from ``address`` on, through the agent's line cache."""
    def write(self, address: int, data: Buffer) -> None:
        """Write ``data`` (whole lines) from ``address`` on, into the agent's line cache; ``flush`` waits until the
        memory nodes have it."""
    def read_into(self, address: int, buffer: Buffer) -> int:
        """Fill ``buffer`` (whole lines) with the bytes from ``address`` on, past the line cache. Returns their
        number."""
    def write_from(self, address: int, buffer: Buffer) -> int:
        """Write the bytes of ``buffer`` (whole lines) from ``address`` on, past the line cache; they are at the memory
        nodes when this returns. Returns their number."""
    def read_lines(self, addresses: Sequence[int], buffer: Buffer) -> None:
        """Read the lines at ``addresses`` into ``buffer``, one after the other; many are on their way at a time."""
    def write_lines(self, addresses: Sequence[int], data: Buffer) -> None:
        """Write the lines of ``data`` to ``addresses``; many are on their way at a time. Lines of one address are
        written in order."""
    def flush(self) -> None:
        """Wait until every line that was written earlier through this agent is at its memory node."""
    def map(
        self,
        region: str | Region,
        *,
        local: int = 67108864,
        prefetch: bool = True,
        fresh: bool = False,
        lost_wait: float | None = None,
        agent_wait: float | None = None,
    ) -> Mapping:
        """Map a region: its pages are fetched on first touch.

        ``local``: limit of resident bytes; if several processes map one region, that of the first applies.
        ``prefetch``: whether pages are fetched ahead of accesses in constant strides.
        ``fresh``: the region was never written, so that its pages are zeros without a fetch.
        ``lost_wait``: longest outage of memory nodes in seconds, after which an access to their pages ends the program
        by SIGBUS.
        ``agent_wait``: longest wait for a successor of an agent that died, in seconds, after which the program is
        aborted (30 seconds).
        """
    def close(self) -> None:
        """Close the connection. Mappings stay."""
    def __enter__(self) -> Node: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class Mapping:
    """A mapped region, with the buffer protocol: ``memoryview(mapping)``, ``numpy.frombuffer(mapping)``.

    A child of ``fork`` has no mapping of its parent: new views are refused there, and touching an older one ends the
    child by SIGSEGV, with a line on standard error. It can map regions itself.
    """

    @property
    def region(self) -> str:
        """Name of the region."""
    @property
    def space(self) -> int:
        """Number of the region's space, as ``cn-agent paging`` prints it."""
    @property
    def kernel_faults(self) -> bool:
        """Whether system calls may touch absent pages; if not, such a call fails with EFAULT: use another buffer, and
        copy."""
    @property
    def closed(self) -> bool:
        """Whether the mapping is closed."""
    def flush(self) -> None:
        """Wait until all earlier writes are at the memory nodes."""
    def set_local(self, local: int) -> None:
        """Change the limit of resident bytes."""
    def discard(self, offset: int, size: int) -> None:
        """Discard the content of whole pages (4096 bytes), which read as zeros afterwards."""
    def hint(self, offset: int, size: int, hint: Literal["will_read", "will_write", "cold", "page_out"]) -> None:
        """Announce the use of a range. A hint changes when pages are fetched and evicted, never their content."""
    def counters(self) -> Counters:
        """Counts since the region was mapped, and the bytes resident at present."""
    def close(self) -> None:
        """Write all modified pages back and unmap the region, which is unmapped also when writing back fails.

        Raises BufferError as long as views (memoryviews, arrays) exist."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Mapping: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def connect(socket: str | PathLike[str] | None = None) -> Node:
    """Connect to the agent of this machine.

    ``socket``: path of the agent's socket; None: that of the variable ``CXLOE_AGENT``, else the agent's default.
    """
