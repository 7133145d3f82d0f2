"""Failures: the words of the command line, kinds and numbers for programs."""

import os
import subprocess

import cxloe
import pytest


def of_command_line(socket, *arguments):
    """What `cn-agent` writes on standard error when it fails."""
    command = [os.environ["CXLOE_CN_AGENT"], *arguments]
    environment = {**os.environ, "CXLOE_AGENT": str(socket)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done
    return done.stderr


def test_no_agent(tmp_path):
    nowhere = tmp_path / "agent.sock"
    with pytest.raises(cxloe.AgentError) as failed:
        cxloe.connect(nowhere)
    assert (failed.value.kind, failed.value.code) == ("no_agent", None)
    assert isinstance(failed.value, cxloe.Error)
    assert str(failed.value) in of_command_line(nowhere, "list")


def test_addresses_without_a_region_and_between_lines(node, region):
    nowhere = region.address + (1 << 44)
    with pytest.raises(cxloe.AccessError) as failed:
        node.read(nowhere, 64)
    assert (failed.value.kind, failed.value.code) == ("unmapped", 17)
    assert str(failed.value) == f"no region holds HPA {nowhere:#x}; `cn-agent list` shows what is attached"
    between = region.address + 1
    for call in (lambda: node.write(between, bytes(64)), lambda: node.read_into(between, bytearray(64))):
        with pytest.raises(cxloe.AccessError, match="is not a multiple of 64") as failed:
            call()
        assert failed.value.kind == "unaligned"
    # The connection goes on after a failure.
    assert node.read(region.address, 64) == bytes(64)


def test_sizes_and_buffers(node, region):
    with pytest.raises(ValueError, match="10 bytes are not whole lines of 64"):
        node.read(region.address, 10)
    with pytest.raises(ValueError, match="2 lines are 128 bytes, and the buffer has 64"):
        node.read_lines([region.address, region.address + 64], bytearray(64))
    with pytest.raises(BufferError):
        node.read_into(region.address, bytes(64))
    with pytest.raises(TypeError):
        node.write(region.address, "text")
    with pytest.raises(OverflowError):
        node.read(2**64 - 64, 128)
    with pytest.raises(BufferError):
        # Every second byte is no contiguous memory.
        node.write(region.address, memoryview(bytes(128))[::2])


def test_regions_that_are_not_there_or_cannot_be_mapped(node, region):
    for call in (node.region, node.map):
        words = "no region `nothing` is attached; `cn-agent list` shows what is"
        with pytest.raises(cxloe.AgentError, match=words) as failed:
            call("nothing")
        assert failed.value.kind == "no_region"
    with pytest.raises(cxloe.AgentError, match="bytes have to be resident") as failed:
        node.map(region, local=4096)
    assert failed.value.kind == "limit"
    for wait in (-1, 1e9, float("nan")):
        with pytest.raises(ValueError, match="lost_wait of .* seconds: choose 0 to 31622400"):
            node.map(region, lost_wait=wait)
        with pytest.raises(ValueError, match="agent_wait of"):
            node.map(region, agent_wait=wait)
    with node.map(region), pytest.raises(cxloe.AccessError, match="is mapped into programs at present") as failed:
        node.read(region.address, 64)
    assert failed.value.kind == "mapped"


def test_a_closed_connection(region):
    node = cxloe.connect()
    mapping = node.map(region)
    node.close()
    node.close()
    assert node.closed
    for call in (node.flush, node.regions, lambda: node.read(region.address, 64), lambda: node.map(region)):
        with pytest.raises(cxloe.AgentError, match="the connection to the agent is closed") as failed:
            call()
        assert failed.value.kind == "closed"
    with memoryview(mapping) as view:
        view[0] = 1
    mapping.close()
