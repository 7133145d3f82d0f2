"""Calls in `asyncio`: order, calls carried out together, cancelling, errors, the end."""

import ast
import asyncio
import gc
import inspect
import pathlib
import random
import threading

import cxloe
import pytest
from conftest import LIMIT, LOCAL, REGION, eventually
from cxloe import aio
from test_fork import in_child


def content(seed, size):
    return random.Random(seed).randbytes(size)


def line(number):
    return number.to_bytes(8, "little").ljust(64, b".")


class Gated:
    """A node or a mapping whose calls are recorded, and wait for a gate when they have begun."""

    def __init__(self, real):
        self.real = real
        self.gate, self.begun = threading.Event(), threading.Event()
        self.calls, self.threads = [], []

    def __getattr__(self, name):
        member = getattr(self.real, name)
        if not callable(member):
            return member

        def call(*arguments, **options):
            self.calls.append((name, *arguments))
            self.threads.append(threading.current_thread())
            self.begun.set()
            assert self.gate.wait(LIMIT), f"{name}: the gate stays shut"
            return member(*arguments, **options)

        return call

    def names(self):
        return [name for name, *_ in self.calls]

    async def until_begun(self):
        """Waits until a call has begun."""
        assert await asyncio.to_thread(self.begun.wait, LIMIT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gate.set()


def tasks_of(*calls):
    return [asyncio.create_task(call) for call in calls]


def turn():
    """Lets every task that is ready run once."""
    return asyncio.sleep(0)


def threads():
    return {one for one in threading.enumerate() if one.name.startswith(("cxloe-node", "cxloe-mapping"))}


@pytest.fixture
def ended():
    """Checks that the threads of the test end, also those of objects that were not closed."""
    before = threads()
    yield
    gc.collect()
    eventually("the threads have ended", lambda: threads() <= before)


def test_lines_buffers_and_mappings(node, region, ended):
    numpy = pytest.importorskip("numpy")

    async def main():
        async with aio.connect() as other:
            assert other.socket == node.socket and not other.closed
            assert region.name in [one.name for one in await other.regions()]
            assert (await other.region(region.name)).address == region.address
            await other.write(region.address, content(1, 6400))
            await other.flush()
            assert await other.read(region.address, 6400) == content(1, 6400)
            there = numpy.frombuffer(content(2, REGION), dtype=numpy.float32)
            assert await other.write_from(region.address, there) == REGION
            here = numpy.zeros_like(there)
            assert await other.read_into(region.address, here) == REGION
            assert here.tobytes() == there.tobytes()
            addresses = [region.address + 64 * (i * 7919 % 4096) for i in range(600)]
            await other.write_lines(addresses, content(3, 64 * 600))
            back = bytearray(64 * 600)
            await other.read_lines(addresses, back)
            assert back == content(3, 64 * 600)
        assert other.closed
        other = await aio.connect(node.socket)
        async with other:
            mapping = await other.map(region.name, local=LOCAL)
        # It outlives the connection.
        async with mapping:
            assert (mapping.region, len(mapping), mapping.closed) == (region.name, REGION, False)
            assert (mapping.space, mapping.kernel_faults) == (mapping.memory.space, mapping.memory.kernel_faults)
            with memoryview(mapping.memory) as view:
                view[4096:4101] = b"bytes"
                await mapping.flush()
                await mapping.hint(0, 8192, "will_read")
                await mapping.set_local(2 * LOCAL)
                assert (await mapping.counters())["resident"] <= REGION
                await mapping.discard(4096, 4096)
                assert view[4096:4101].tobytes() == bytes(5)
                with pytest.raises(BufferError):
                    await mapping.close()
                assert not mapping.closed
        assert mapping.closed
        with pytest.raises(cxloe.AgentError, match="the mapping is closed") as failed:
            await mapping.flush()
        assert failed.value.kind == "closed"

    asyncio.run(main())


def test_calls_are_carried_out_in_order_of_submission(node, region):
    async def main():
        async with aio.connect() as other:
            calls = []
            for number in range(50):
                calls += [other.write(region.address, line(number)), other.read(region.address, 64)]
            found = (await asyncio.gather(*calls))[1::2]
            assert found == [line(number) for number in range(50)]

    asyncio.run(main())


def test_short_reads_that_wait_are_carried_out_together(node, region):
    lines = [line(number) for number in range(1000)]
    node.write(region.address, b"".join(lines))

    async def main():
        with Gated(node) as gated:
            other = aio.AsyncNode(gated)
            first = asyncio.create_task(other.flush())
            await gated.until_begun()
            reads = tasks_of(*(other.read(region.address + 64 * number, 64) for number in range(1000)))
            longer = tasks_of(*(other.read(region.address + 4096 * page, 4096) for page in range(3)))
            [longest] = tasks_of(other.read(region.address, 8192))
            await turn()
            gated.gate.set()
            await first
            assert await asyncio.gather(*reads) == lines
            assert b"".join(await asyncio.gather(*longer)) == b"".join(lines)[: 3 * 4096]
            assert await longest == b"".join(lines)[:8192]
            counts = [len(arguments[0]) for name, *arguments in gated.calls if name == "read_lines"]
            assert sum(counts) == 1000 + 3 * 64 and max(counts) == 256, counts
            assert gated.names() == ["flush"] + ["read_lines"] * len(counts) + ["read"]
            await other.close()

    asyncio.run(main())


def test_one_error_among_reads_that_wait_is_of_its_call_alone(node, region):
    async def main():
        with Gated(node) as gated:
            other = aio.AsyncNode(gated)
            first = asyncio.create_task(other.flush())
            await gated.until_begun()
            nowhere = region.address + (1 << 44)
            addresses = [region.address, nowhere, region.address + 64, region.address + 1]
            reads = tasks_of(*(other.read(address, 64) for address in addresses))
            await turn()
            gated.gate.set()
            await first
            found = await asyncio.gather(*reads, return_exceptions=True)
            assert found[0] == found[2] == bytes(64)
            assert [type(found[index]) for index in (1, 3)] == [cxloe.AccessError, cxloe.AccessError]
            assert [found[index].kind for index in (1, 3)] == ["unmapped", "unaligned"]
            assert str(found[1]) == f"no region holds HPA {nowhere:#x}; `cn-agent list` shows what is attached"
            await other.close()

    asyncio.run(main())


def test_errors_are_those_of_a_node(node, region, tmp_path):
    async def refused(call):
        with pytest.raises(Exception) as failed:
            await call
        return type(failed.value), getattr(failed.value, "kind", None)

    async def main():
        assert await refused(aio.connect(tmp_path / "agent.sock")) == (cxloe.AgentError, "no_agent")
        async with aio.connect() as other:
            for call, error in (
                (other.read(region.address, 10), (ValueError, None)),
                (other.read(2**64 - 64, 128), (OverflowError, None)),
                (other.read_into(region.address, bytes(64)), (BufferError, None)),
                (other.read_into(region.address + 1, bytearray(64)), (cxloe.AccessError, "unaligned")),
                (other.write(region.address, "text"), (TypeError, None)),
                (other.write_from(region.address, "text"), (TypeError, None)),
                (other.read_lines([region.address], bytearray(128)), (ValueError, None)),
                (other.region("nothing"), (cxloe.AgentError, "no_region")),
                (other.map("nothing"), (cxloe.AgentError, "no_region")),
                (other.map(region, local=4096), (cxloe.AgentError, "limit")),
            ):
                assert await refused(call) == error
            async with other.map(region) as mapping:
                assert await refused(mapping.discard(1, 4096)) == (cxloe.AgentError, "range")
                assert await refused(mapping.hint(0, 4096, "perhaps")) == (ValueError, None)
            # The connection goes on after failures.
            assert (await other.region(region.name)).name == region.name

    asyncio.run(main())


def test_an_error_is_freed_with_what_it_holds(node, region):
    """No cycle of an error, its traceback and its call keeps a buffer until the next collection."""

    class Buffer(bytearray):
        freed = 0

        def __del__(self):
            Buffer.freed += 1

    async def main():
        async with aio.connect() as other:
            for move in (other.read_into, other.write_from, other.read_lines):
                with pytest.raises(cxloe.AccessError):
                    at = region.address + 1
                    await move([at] if move == other.read_lines else at, Buffer(64))

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        eventually("the buffers are freed", lambda: Buffer.freed == 3)
    finally:
        gc.enable()


def test_a_call_that_is_cancelled_before_it_begins_is_not_carried_out(node, region):
    async def main():
        with Gated(node) as gated:
            other = aio.AsyncNode(gated)
            first = asyncio.create_task(other.flush())
            await gated.until_begun()
            write, read, after = tasks_of(
                other.write(region.address, b"w" * 64),
                other.read(region.address, 64),
                other.read_into(region.address, bytearray(64)),
            )
            await turn()
            for task in (write, read):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    # At once: the gate is shut.
                    await task
            gated.gate.set()
            await first
            assert await after == 64
            assert gated.names() == ["flush", "read_into"]
            assert await other.read(region.address, 64) == bytes(64)
            await other.close()

    asyncio.run(main())


def test_a_cancelled_call_that_has_begun_gives_its_buffer_back_when_it_has_ended(node, region):
    node.write_from(region.address, b"w" * 4096)

    async def main():
        with Gated(node) as gated:
            other = aio.AsyncNode(gated)
            buffer = bytearray(4096)
            read = asyncio.create_task(other.read_into(region.address, buffer))
            await gated.until_begun()
            for _ in range(3):
                read.cancel()
                await turn()
                await turn()
            assert not read.done()
            gated.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await read
            assert buffer == b"w" * 4096
            # A failure of a call that was cancelled is not reported.
            gated.gate.clear()
            gated.begun.clear()
            failing = asyncio.create_task(other.read_into(region.address + 1, buffer))
            await gated.until_begun()
            failing.cancel()
            await turn()
            gated.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await failing
            # A limit of time ends with the call, too, and is reported as such.
            gated.gate.clear()
            gated.begun.clear()
            limits = []

            async def limited():
                async with asyncio.timeout(None) as limit:
                    limits.append(limit)
                    await other.write(region.address, b"t" * 64)

            write = asyncio.create_task(limited())
            await gated.until_begun()
            limits[0].reschedule(asyncio.get_running_loop().time())
            for _ in range(3):
                await turn()
            assert not write.done()
            gated.gate.set()
            with pytest.raises(TimeoutError):
                await write
            await other.close()

    asyncio.run(main())


def test_a_cancelled_call_without_a_buffer_is_left_at_once(node, region):
    node.write_from(region.address, b"w" * 64)

    async def left(call):
        with Gated(cxloe.connect()) as gated:
            other = aio.AsyncNode(gated)
            task = asyncio.create_task(call(other))
            await gated.until_begun()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                # The gate is shut.
                await task
            gated.gate.set()
            await other.close()

    asyncio.run(left(lambda other: other.read(region.address, 64)))
    asyncio.run(left(lambda other: other.map(region)))

    def unmapped():
        try:
            return node.read(region.address, 64)
        except cxloe.AccessError as error:
            assert error.kind == "mapped", error
            return None

    # Nobody has the mapping that was made, so it is gone.
    assert eventually("the region is unmapped", unmapped) == b"w" * 64


def test_a_result_that_nobody_awaits_is_dropped_by_the_thread(node):
    dropped = []

    class Dropped:
        def __del__(self):
            dropped.append(threading.current_thread())

    async def main():
        with Gated(node) as gated:
            gated.flush = lambda flush=gated.flush: flush() or Dropped()
            other = aio.AsyncNode(gated)
            task = asyncio.create_task(other.flush())
            await gated.until_begun()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gated.gate.set()
            await other.close()
            assert dropped == gated.threads[:1]

    asyncio.run(main())


def test_a_mapping_with_views_is_not_closed(node, region):
    async def main():
        with Gated(node.map(region, local=LOCAL)) as gated:
            gated.gate.set()
            mapping = aio.AsyncMapping(gated)
            with memoryview(mapping.memory.real) as view:
                with pytest.raises(BufferError):
                    await mapping.close()
                view[:5] = b"hello"
                await mapping.flush()
                assert not mapping.closed
            await mapping.close()
            assert mapping.closed and gated.names() == ["close", "flush", "close"]
            # Also after the failure no call ran on the thread of the loop.
            assert threading.current_thread() not in gated.threads
            await mapping.close()

    asyncio.run(main())


def test_a_long_transfer_ends_early_if_it_is_cancelled(node, region, monkeypatch):
    monkeypatch.setattr(aio, "_PART", REGION // 4)
    data = content(4, REGION)

    async def main():
        with Gated(node) as gated:
            gated.gate.set()
            other = aio.AsyncNode(gated)
            buffer = bytearray(REGION)
            assert await other.write_from(region.address, data) == REGION
            assert await other.read_into(region.address, buffer) == REGION
            assert buffer == data and len(gated.calls) == 8
            for wrong in (region.address + 1, 2**64 - 64):
                with pytest.raises((cxloe.AccessError, OverflowError)):
                    await other.write_from(wrong, data)
            # What the node refuses is refused before anything is transferred.
            with pytest.raises(OverflowError):
                await other.write_from(2**64 - REGION // 2, data)
            gated.calls.clear()
            gated.gate.clear()
            gated.begun.clear()
            write = asyncio.create_task(other.write_from(region.address, bytes(REGION)))
            await gated.until_begun()
            write.cancel()
            await turn()
            gated.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await write
            assert gated.names() == ["write_from"]
            await other.read_into(region.address, buffer)
            assert buffer == bytes(REGION // 4) + data[REGION // 4 :]
            await other.close()

    asyncio.run(main())


def test_close_comes_after_the_calls_that_were_submitted_before(node, region):
    async def main():
        with Gated(cxloe.connect()) as gated:
            other = aio.AsyncNode(gated)
            write = asyncio.create_task(other.write(region.address, b"w" * 64))
            await gated.until_begun()
            calls = tasks_of(other.flush(), other.read(region.address, 64), other.close(), other.close())
            late = asyncio.create_task(other.read(region.address, 64))
            await turn()
            assert not other.closed
            gated.gate.set()
            await write
            assert await asyncio.gather(*calls) == [None, b"w" * 64, None, None]
            with pytest.raises(cxloe.AgentError, match="the connection to the agent is closed") as failed:
                await late
            assert failed.value.kind == "closed" and other.closed
            for call in (other.flush(), other.read(region.address, 64), other.map(region), other.regions()):
                with pytest.raises(cxloe.AgentError, match="the connection to the agent is closed"):
                    await call
            await other.close()

    asyncio.run(main())


def test_a_cancelled_close_is_carried_out(node, region, ended):
    async def main():
        with Gated(cxloe.connect()) as gated:
            other = aio.AsyncNode(gated)
            write = asyncio.create_task(other.write(region.address, b"w" * 64))
            await gated.until_begun()
            close = asyncio.create_task(other.close())
            await turn()
            close.cancel()
            with pytest.raises(asyncio.CancelledError):
                await close
            gated.gate.set()
            await write
            with pytest.raises(cxloe.AgentError) as failed:
                await other.flush()
            assert failed.value.kind == "closed" and gated.real.closed

    asyncio.run(main())


def test_a_loop_may_end_before_its_calls_and_another_go_on(node, region):
    with Gated(node) as gated:
        other = aio.AsyncNode(gated)

        async def leave():
            read = asyncio.create_task(other.read(region.address, 64))
            await gated.until_begun()
            read.cancel()

        asyncio.run(leave())
        gated.gate.set()
        assert asyncio.run(other.read(region.address, 64)) == bytes(64)
        asyncio.run(other.close())


def test_a_child_of_fork_is_refused_without_a_wait(node, region):
    other = aio.AsyncNode(cxloe.connect())
    asyncio.run(other.write(region.address, b"p" * 64))

    async def child():
        for call in (other.flush(), other.read(region.address, 64), other.close()):
            with pytest.raises(cxloe.AgentError, match="not of its child by fork") as failed:
                await call
            assert failed.value.kind == "forked"
        async with aio.connect() as own:
            assert await own.read(region.address, 64) == b"p" * 64

    assert in_child(lambda: asyncio.run(child())) == (0, "")
    assert asyncio.run(other.read(region.address, 64)) == b"p" * 64
    asyncio.run(other.close())


def test_every_call_of_a_node_and_of_a_mapping_is_there_with_its_options():
    written = ast.parse((pathlib.Path(cxloe.__file__).parent / "_cxloe.pyi").read_text())
    classes = {one.name: one for one in written.body if isinstance(one, ast.ClassDef)}
    for name, other in (("Node", aio.AsyncNode), ("Mapping", aio.AsyncMapping)):
        for one in classes[name].body:
            if not isinstance(one, ast.FunctionDef) or one.name in ("__enter__", "__exit__", "__buffer__"):
                continue
            here = vars(other)[one.name]
            if isinstance(here, property):
                assert any(ast.unparse(mark) == "property" for mark in one.decorator_list), one.name
                continue
            assert inspect.iscoroutinefunction(here) or one.name in ("map", "__len__"), one.name
            parameters = inspect.signature(here).parameters.values()
            assert [parameter.name for parameter in parameters] == [
                argument.arg for argument in one.args.args + one.args.kwonlyargs
            ], one.name
            assert [one.default for one in parameters if one.default is not inspect.Parameter.empty] == [
                ast.literal_eval(default) for default in one.args.kw_defaults if default is not None
            ], one.name


def test_everything_public_is_documented():
    for name in aio.__all__:
        public = getattr(aio, name)
        assert inspect.getdoc(public), name
        if inspect.isclass(public):
            for member, one in vars(public).items():
                if not member.startswith("_"):
                    assert inspect.getdoc(one), f"{name}.{member}"
