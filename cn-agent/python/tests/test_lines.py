"""Lines, single and many, and bulk transfers."""

import random
import threading

import cxloe
import pytest
from conftest import REGION


def content(seed, size):
    return random.Random(seed).randbytes(size)


def test_lines_are_read_as_they_were_written(node, region):
    assert (region.size, region.state, region.served_by) == (REGION, "active", "ethernet")
    assert node.region(region.name).address == region.address
    assert node.read(region.address, 128) == bytes(128)
    data = content(1, 64 * 1000)
    node.write(region.address, data)
    node.flush()
    assert node.read(region.address, len(data)) == data
    assert node.read(region.address + 64 * 999, 128) == data[-64:] + bytes(64)
    with cxloe.connect() as other:
        assert other.read(region.address, len(data)) == data


def test_buffers_are_filled_and_written_as_they_are(node, region):
    numpy = pytest.importorskip("numpy")
    there = numpy.frombuffer(content(2, REGION), dtype=numpy.float64)
    # Another type than bytes, and a part of an object: neither is copied by the caller.
    assert node.write_from(region.address, there) == REGION
    here = numpy.zeros_like(there)
    assert node.read_into(region.address, here) == REGION
    assert here.tobytes() == there.tobytes()
    part = bytearray(256)
    with memoryview(part)[64:192] as middle:
        assert node.read_into(region.address + 4096, middle) == 128
    assert part == bytes(64) + there.tobytes()[4096 : 4096 + 128] + bytes(64)


def test_scattered_lines(node, region):
    addresses = [region.address + 64 * (i * 7919 % 4096) for i in range(600)]
    data = content(3, 64 * len(addresses))
    node.write_lines(addresses, data)
    node.flush()
    back = bytearray(len(data))
    node.read_lines(list(reversed(addresses)), back)
    lines = [bytes(back[at : at + 64]) for at in range(0, len(back), 64)]
    assert b"".join(reversed(lines)) == data


def test_threads_take_turns_on_a_connection(node, region):
    wrong = []

    def work(number):
        at, data = region.address + number * 65536, content(number, 65536)
        for _ in range(5):
            node.write(at, data)
            if node.read(at, len(data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
