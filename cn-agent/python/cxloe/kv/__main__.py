"""Makes, lists and measures stores from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from statistics import median

import cxloe

from . import Store, format, open
from .layout import LINE


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python3 -m cxloe.kv", description="Stores of objects in regions.")
    made.add_argument("--agent", help="path of the agent's socket (default: CXLOE_AGENT, or the agent's default)")
    commands = made.add_subparsers(dest="command", required=True)
    command = commands.add_parser("format", help="make an empty store; what the region contains is lost")
    command.add_argument("region")
    command.add_argument("--entries", type=int, help="most objects (default: one for each 64 KiB)")
    command = commands.add_parser("list", help="objects, least recently used first")
    command.add_argument("region")
    command.add_argument("--json", action="store_true", help="as JSON")
    command = commands.add_parser("stats", help="objects, capacity and free bytes, as JSON")
    command.add_argument("region")
    command = commands.add_parser("measure", help="time puts, gets and lookups; makes objects and deletes them")
    command.add_argument("region")
    command.add_argument("--size", type=int, default=4 << 20, help="bytes of an object (default: 4 MiB)")
    command.add_argument("--count", type=int, default=16, help="objects (default: 16)")
    command.add_argument("--trials", type=int, default=8, help="times that each is put and got (default: 8)")
    return made


def measure(store: Store, size: int, count: int, trials: int) -> dict[str, float]:
    """Medians over the trials: MB/s of puts, gets, and plain reads of as many bytes; microseconds of a lookup of 1,000
    keys, half of which exist."""
    keys = [f"measure-{number}-{os.getpid()}" for number in range(count)]
    data, buffer = os.urandom(size), bytearray(size)
    whole_lines = memoryview(buffer)[: size // LINE * LINE]
    puts, gets, plain, lookups = [], [], [], []
    region = store.region

    def rate(began: float) -> float:
        return count * size / (time.perf_counter() - began) / 1e6

    asked = [keys[number // 2 % count] if number % 2 else f"missing-{number}" for number in range(1000)]
    with cxloe.connect(store.agent) as node:
        start = node.region(region).address
        for _ in range(trials):
            began = time.perf_counter()
            for key in keys:
                store.put(key, data)
            puts.append(rate(began))
            began = time.perf_counter()
            for key in keys:
                store.get_into(key, buffer)
            gets.append(rate(began))
            if buffer != data:
                raise SystemExit("an object is not as it was put")
            began = time.perf_counter()
            for _ in keys:
                node.read_into(start, whole_lines)
            plain.append(rate(began))
            began = time.perf_counter()
            store.exists_many(asked)
            lookups.append((time.perf_counter() - began) * 1e6)
    for key in keys:
        store.delete(key)
    return {
        "put_mb_s": median(puts),
        "get_mb_s": median(gets),
        "plain_read_mb_s": median(plain),
        "exists_1000_us": median(lookups),
    }


def main() -> int:
    arguments = parser().parse_args()
    try:
        if arguments.command == "format":
            with cxloe.connect(arguments.agent) as node:
                format(node, arguments.region, entries=arguments.entries)
        elif arguments.command == "measure":
            if min(arguments.size, arguments.count, arguments.trials) < 1:
                raise ValueError("sizes and counts are at least 1")
            with open(arguments.region, arguments.agent) as store:
                print(json.dumps(measure(store, arguments.size, arguments.count, arguments.trials)))
        else:
            with open(arguments.region, arguments.agent, read_only=True) as store:
                if arguments.command == "stats":
                    print(json.dumps(store.stats()))
                    return 0
                objects = [{"key": key, "size": store.size(key)} for key in store.keys()]
                if arguments.json:
                    print(json.dumps(objects))
                else:
                    for one in objects:
                        print(f"{one['size']:>12}  {one['key']}")
    except (cxloe.Error, ValueError) as failed:
        print(f"cxloe.kv: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
