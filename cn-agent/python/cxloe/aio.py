"""``Node`` and ``Mapping`` in ``asyncio``: other tasks run while a call waits.

    import asyncio
    from cxloe import aio

    async def main():
        async with aio.connect() as node:
            region = await node.region("scratch")
            await node.write(region.address, b"a line".ljust(64))
            lines = await asyncio.gather(*(node.read(region.address + 64 * i, 64) for i in range(1000)))

    asyncio.run(main())

Each node and each mapping has a thread of its own, which carries calls out one after the other, in the order of their
submission. A call is submitted when it is awaited, or when its task begins; tasks begin in the order in which they were
made. Short reads that wait next to each other are carried out as one call, with many lines on their way at a time.

A call raises what the call of ``Node`` or ``Mapping`` raises.

Cancelling a call that has not begun takes it back: nothing of it is done. One that has begun is not interrupted:

* A call with a buffer of the caller (``read_into``, ``write``, …) raises CancelledError when it has ended, so the buffer
  is the caller's again. A long ``read_into`` or ``write_from`` ends after the 64 MiB under way; the rest is not
  transferred.
* Any other call raises CancelledError at once, and its result is dropped.
* ``close`` raises CancelledError at once, and is carried out in either case.

Touching a page of a mapping that is not in this machine is no call: it stops all tasks until the page is there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ._cxloe import Mapping, Node, Region
from ._cxloe import connect as _connect_node

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._cxloe import Counters

__all__ = ["AsyncMapping", "AsyncNode", "Opening", "connect"]

_LINE = 64
#: Longest read in bytes that is carried out together with others.
_SHORT = 4096
#: Most lines that are read together: the rings of a port have as many entries.
_TOGETHER_MAX = 256
#: Bytes of a bulk transfer between two looks whether it was cancelled.
_PART = 64 << 20

_T = TypeVar("_T")
_Opened = TypeVar("_Opened", "AsyncNode", "AsyncMapping")


class _Call(Generic[_T]):
    """A call for the thread, and the future that its task awaits."""

    def __init__(self, work: Callable[[_Call[_T]], _T], lines: range | None, certain: bool) -> None:
        self.work = work
        #: Addresses of a short read; None: the call is carried out by itself.
        self.lines = lines
        #: Whether the call is carried out even if it is cancelled before it begins.
        self.certain = certain
        self.loop = asyncio.get_running_loop()
        #: None once the outcome has arrived, so that an error does not hold itself by way of its traceback.
        self.future: asyncio.Future[Any] | None = self.loop.create_future()
        #: These two change under the queue's lock.
        self.begun = False
        self.cancelled = False

    def attempt(self) -> tuple[_T | None, BaseException | None]:
        """Carry the call out, on the thread. Returns its result or its error."""
        try:
            result = self.work(self)
        except BaseException as error:
            return None, error
        # A result that nobody awaits, as a mapping, is dropped by the thread, not by the loop.
        return (None if self.cancelled else result), None

    def end(self, result: _T | None, error: BaseException | None) -> None:
        """Pass the outcome on, in the loop."""
        future, self.future = self.future, None
        if future is None or future.done():
            return
        if error is None or self.cancelled:
            future.set_result(result)
        else:
            future.set_exception(error)


def _end_all(outcomes: list[tuple[_Call[Any], Any, BaseException | None]]) -> None:
    for call, result, error in outcomes:
        call.end(result, error)


class _Queue:
    """Calls in order of submission, and the thread that carries them out. It begins with the first call."""

    def __init__(self, name: str, read_together: Callable[[list[range]], list[bytes]] | None = None) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._read_together = read_together
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[_Call[Any]] = deque()
        #: Whether the thread is carrying calls out, or about to.
        self._running = False
        #: Whether the thread takes no more calls.
        self.ended = False

    async def call(
        self,
        work: Callable[[_Call[_T]], _T],
        *,
        lines: range | None = None,
        lent: bool = False,
        certain: bool = False,
    ) -> _T:
        """Submit a call, and wait for its outcome.

        ``lent``: the call uses a buffer of the caller, so that it has to end before this does.
        """
        call = _Call(work, lines, certain)
        if self._pid != os.getpid() or not self._submit(call):
            # There is no thread after the end, nor in a child of fork, where the lock may be held for good. The object,
            # closed or of the parent, refuses without a wait.
            return work(call)
        assert call.future is not None
        try:
            result: _T = await call.future
            return result
        except asyncio.CancelledError:
            if self._cancel(call) and lent:
                while call.future is not None:
                    call.future = call.loop.create_future()
                    with suppress(asyncio.CancelledError):
                        await call.future
            raise

    def _submit(self, call: _Call[Any]) -> bool:
        """False if the thread takes no more calls."""
        with self._lock:
            if self.ended:
                return False
            if not self._running:
                self._executor.submit(self._run)
                self._running = True
            self._waiting.append(call)
            return True

    def _cancel(self, call: _Call[Any]) -> bool:
        """Mark a call as cancelled. Returns whether it has begun."""
        with self._lock:
            call.cancelled = True
            return call.begun

    def _run(self) -> None:
        """Carry out the calls that wait, on the thread."""
        while calls := self._next():
            outcomes = self._together(calls) or [(call, *call.attempt()) for call in calls]
            with suppress(RuntimeError):  # The loop is closed, and nobody waits.
                calls[0].loop.call_soon_threadsafe(_end_all, outcomes)
            del calls, outcomes

    def _next(self) -> list[_Call[Any]]:
        """The next call, or several short reads of one loop; none if none waits."""
        taken: list[_Call[Any]] = []
        count = 0
        with self._lock:
            while self._waiting:
                call = self._waiting[0]
                if call.cancelled and not call.certain:
                    self._waiting.popleft()
                    continue
                more = len(call.lines) if call.lines is not None else _TOGETHER_MAX
                if taken and (count + more > _TOGETHER_MAX or call.loop is not taken[0].loop):
                    break
                count += more
                call.begun = True
                taken.append(self._waiting.popleft())
            self._running = bool(taken)
        return taken

    def _together(self, calls: list[_Call[Any]]) -> list[tuple[_Call[Any], Any, BaseException | None]] | None:
        """Carry out several short reads as one; None if that fails, as then each has an outcome of its own."""
        spans = [call.lines for call in calls if call.lines is not None]
        if len(calls) == 1 or self._read_together is None:
            return None
        try:
            return [(call, data, None) for call, data in zip(calls, self._read_together(spans), strict=True)]
        except Exception:
            return None

    def end(self) -> None:
        """Take no more calls. Those that wait are carried out, and the thread ends."""
        with self._lock:
            self.ended = True
        self._executor.shutdown(wait=False)


def _read_together(node: Node, spans: list[range]) -> list[bytes]:
    addresses = [address for span in spans for address in span]
    data = bytearray(len(addresses) * _LINE)
    node.read_lines(addresses, data)
    found, at = [], 0
    for span in spans:
        found.append(bytes(data[at : at + len(span) * _LINE]))
        at += len(span) * _LINE
    return found


def _short_read(address: int, size: int) -> range | None:
    """Addresses of the lines of a short read; None for a long one, and for one that ``Node`` refuses by itself."""
    if not isinstance(address, int) or not isinstance(size, int):
        return None
    if size % _LINE or not 0 < size <= _SHORT or not 0 <= address <= 2**64 - size:
        return None
    return range(address, address + size, _LINE)


def _long_bytes(buffer: Buffer) -> memoryview | None:
    """The bytes of a long buffer; None for a short one, and for one that cannot be divided or ``Node`` refuses."""
    try:
        with memoryview(buffer) as whole:
            return whole.cast("B") if whole.nbytes > _PART and whole.nbytes % _LINE == 0 else None
    except (BufferError, TypeError, ValueError):
        return None


def _transfer(move: Callable[[int, Buffer], int], address: int, buffer: Buffer, call: _Call[int]) -> int:
    """A bulk transfer, which ends early if it is cancelled."""
    view = _long_bytes(buffer)
    if view is None:
        return move(address, buffer)
    with view:
        if address + len(view) > 2**64:
            return move(address, buffer)
        for at in range(0, len(view), _PART):
            if call.cancelled:
                break
            with view[at : at + _PART] as part:
                move(address + at, part)
        return len(view)


class Opening(Coroutine[Any, Any, _Opened]):
    """Result of ``connect`` and of ``AsyncNode.map``: ``await`` it, or use it in ``async with``, which closes what was
    opened. It is a coroutine, so a task can be made of it."""

    def __init__(self, opening: Coroutine[Any, Any, _Opened]) -> None:
        self._opening: Coroutine[Any, Any, _Opened] = opening

    def __await__(self) -> Generator[Any, Any, _Opened]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        """As of any coroutine."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """As of any coroutine."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """As of any coroutine."""
        self._opening.close()

    async def __aenter__(self) -> _Opened:
        self._opened: _Opened = await self._opening
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.close()


class AsyncNode:
    """A connection to the agent, in ``asyncio``. ``connect`` makes one; ``AsyncNode(node)`` takes over a ``Node``.

    Addresses, sizes and errors are those of ``Node``. Tasks share a connection, and their calls take turns; a task that
    should not wait for the others connects itself.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queue = _Queue("cxloe-node", partial(_read_together, node))

    @property
    def socket(self) -> str:
        """Path of the agent's socket."""
        return self._node.socket

    @property
    def closed(self) -> bool:
        """Whether ``close`` has closed the connection."""
        return self._queue.ended

    async def regions(self) -> list[Region]:
        """Regions that the agent has attached, in order of their addresses."""
        return await self._queue.call(lambda _: self._node.regions())

    async def region(self, name: str) -> Region:
        """The region named ``name``."""
        return await self._queue.call(lambda _: self._node.region(name))

    async def read(self, address: int, size: int) -> bytes:
        """Read ``size`` bytes (whole lines) from ``address`` on, through the agent's line cache. Reads of up to 4096
        bytes that wait next to each other are carried out together."""
        return await self._queue.call(lambda _: self._node.read(address, size), lines=_short_read(address, size))

    async def write(self, address: int, data: Buffer) -> None:
        """Write ``data`` (whole lines) from ``address`` on, into the agent's line cache; ``flush`` waits until the
        memory nodes have it."""
        await self._queue.call(lambda _: self._node.write(address, data), lent=True)

    async def read_into(self, address: int, buffer: Buffer) -> int:
        """Fill ``buffer`` (whole lines) with the bytes from ``address`` on, past the line cache and without a copy.
        Returns their number. The buffer must not be used meanwhile."""
        move = partial(_transfer, self._node.read_into, address, buffer)
        return await self._queue.call(move, lent=True)

    async def write_from(self, address: int, buffer: Buffer) -> int:
        """Write the bytes of ``buffer`` (whole lines) from ``address`` on, past the line cache and without a copy; they
        are at the memory nodes when this returns. Returns their number. The buffer must not be changed meanwhile."""
        move = partial(_transfer, self._node.write_from, address, buffer)
        return await self._queue.call(move, lent=True)

    async def read_lines(self, addresses: Sequence[int], buffer: Buffer) -> None:
        """Read the lines at ``addresses`` into ``buffer``, one after the other; many are on their way at a time."""
        await self._queue.call(lambda _: self._node.read_lines(addresses, buffer), lent=True)

    async def write_lines(self, addresses: Sequence[int], data: Buffer) -> None:
        """Write the lines of ``data`` to ``addresses``; many are on their way at a time. Lines of one address are
        written in order."""
        await self._queue.call(lambda _: self._node.write_lines(addresses, data), lent=True)

    async def flush(self) -> None:
        """Wait until every line that was written earlier through this agent is at its memory node."""
        await self._queue.call(lambda _: self._node.flush())

    def map(
        self,
        region: str | Region,
        *,
        local: int = 67108864,
        prefetch: bool = True,
        fresh: bool = False,
        lost_wait: float | None = None,
        agent_wait: float | None = None,
    ) -> Opening[AsyncMapping]:
        """Map a region: ``await node.map(…)``, or ``async with node.map(…) as mapping``. The options are those of
        ``Node.map``. The mapping has a thread of its own, and outlives the connection."""

        async def opened() -> AsyncMapping:
            mapping = await self._queue.call(
                lambda _: self._node.map(
                    region,
                    local=local,
                    prefetch=prefetch,
                    fresh=fresh,
                    lost_wait=lost_wait,
                    agent_wait=agent_wait,
                )
            )
            return AsyncMapping(mapping)

        return Opening(opened())

    async def close(self) -> None:
        """Close the connection when the calls that were submitted before have ended. Later ones raise AgentError of the
        kind ``closed``. Mappings stay."""

        def close(_: _Call[None]) -> None:
            self._node.close()
            self._queue.end()

        await self._queue.call(close, certain=True)

    async def __aenter__(self) -> AsyncNode:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<cxloe.aio.AsyncNode at {self.socket}>"


class AsyncMapping:
    """A mapped region, in ``asyncio``. ``memory`` has the buffer protocol: ``memoryview(mapping.memory)``,
    ``numpy.frombuffer(mapping.memory)``.

    Touching an absent page stops all tasks until it is there: ``hint`` announces a range, so that its pages are fetched
    ahead, and ``asyncio.to_thread`` helps as far as the function that touches them gives the interpreter's lock away.
    """

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._queue = _Queue("cxloe-mapping")

    @property
    def memory(self) -> Mapping:
        """The mapping itself, which lends its memory to views and arrays."""
        return self._mapping

    @property
    def region(self) -> str:
        """Name of the region."""
        return self._mapping.region

    @property
    def space(self) -> int:
        """Number of the region's space, as ``cn-agent paging`` prints it."""
        return self._mapping.space

    @property
    def kernel_faults(self) -> bool:
        """Whether system calls may touch absent pages; if not, such a call fails with EFAULT: use another buffer, and
        copy."""
        return self._mapping.kernel_faults

    @property
    def closed(self) -> bool:
        """Whether the mapping is closed."""
        return self._mapping.closed

    async def flush(self) -> None:
        """Wait until all earlier writes are at the memory nodes."""
        await self._queue.call(lambda _: self._mapping.flush())

    async def set_local(self, local: int) -> None:
        """Change the limit of resident bytes."""
        await self._queue.call(lambda _: self._mapping.set_local(local))

    async def discard(self, offset: int, size: int) -> None:
        """Discard the content of whole pages (4096 bytes), which read as zeros afterwards."""
        await self._queue.call(lambda _: self._mapping.discard(offset, size))

    async def hint(
        self, offset: int, size: int, hint: Literal["will_read", "will_write", "cold", "page_out"]
    ) -> None:
        """Announce the use of a range. A hint changes when pages are fetched and evicted, never their content."""
        await self._queue.call(lambda _: self._mapping.hint(offset, size, hint))

    async def counters(self) -> Counters:
        """Counts since the region was mapped, and the bytes resident at present."""
        return await self._queue.call(lambda _: self._mapping.counters())

    async def close(self) -> None:
        """Write all modified pages back and unmap the region, which is unmapped also when writing back fails.

        Raises BufferError as long as views (memoryviews, arrays) exist; the mapping then stays as it is."""

        def close(_: _Call[None]) -> None:
            try:
                self._mapping.close()
            finally:
                if self._mapping.closed:
                    self._queue.end()

        await self._queue.call(close, certain=True)

    def __len__(self) -> int:
        return len(self._mapping)

    async def __aenter__(self) -> AsyncMapping:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<cxloe.aio.AsyncMapping of region {self.region!r}, {len(self)} bytes>"


def connect(socket: str | PathLike[str] | None = None) -> Opening[AsyncNode]:
    """Connect to the agent of this machine: ``await connect()``, or ``async with connect() as node``.

    ``socket``: path of the agent's socket; None: that of the variable ``CXLOE_AGENT``, else the agent's default.
    """

    async def opened() -> AsyncNode:
        return AsyncNode(await asyncio.to_thread(_connect_node, socket))

    return Opening(opened())
