"""A compute node of the CXLoE protocol in another language and over other libraries than the project's own. All that it does
stands on the protocol's page and in the book: where the two implementations differ, one of them or the page is wrong.

    client.py vectors PAGE                        compute the page's worked examples
    client.py join --manager URL ...              become a node of a fabric, with the token in CXLOE_TOKEN
    client.py work --manager URL ... STEP...      use a region of this node
    client.py work --mn MAC ... STEP...           use the first bytes of a memory node with a map of its own

Steps: rules, turn, fill:SEED, verify:SEED. Needs Python 3.10, python3-cryptography, and the right to open packet sockets."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import checks
import manager
import vectors
from frame import PAGE
from handshake import Access
from link import Link, LossyLink
from session import Session


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def reached(options: argparse.Namespace, link: Link) -> tuple[bytes, Access, int, int]:
    """The memory node, with what frames to it are protected, and the CMem to use there."""
    if options.manager:
        region = manager.register(options.manager, link.mac, options.name, options.folder)[options.region]
        access = Access(own=manager.own_key(options.folder), mn_key=region.mn_key)
        return region.mn, access, region.cmem, region.size
    pre_shared = options.pre_shared.read_bytes().strip() if options.pre_shared else None
    return options.mn, Access(pre_shared), 0, options.size


def work(options: argparse.Namespace) -> None:
    link = LossyLink(options.interface, options.loss) if options.loss else Link(options.interface)
    mn, access, base, size = reached(options, link)
    session = Session(link, mn, access)
    for step in options.steps:
        name, _, seed = step.partition(":")
        if name == "rules":
            for at, check in enumerate(checks.CHECKS):
                check(session, base + at * PAGE)
                print(check.__name__)
        elif name == "turn":
            checks.numbers_come_round(session, base)
            print(checks.numbers_come_round.__name__)
        elif name == "fill":
            checks.fill(session, base, size, int(seed))
        elif name == "verify":
            checks.verify(session, base, size, int(seed))
        else:
            raise SystemExit(f"there is no step {step!r}")
    session.end()
    print(f"{type(session.trailer).__name__}: {dict(session.counted)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("vectors")
    page.add_argument("page", type=Path)
    node = argparse.ArgumentParser(add_help=False)
    node.add_argument("--interface", required=True)
    node.add_argument("--manager", metavar="URL")
    node.add_argument("--folder", type=Path, help="where the keys are kept that a node has joined with")
    joining = commands.add_parser("join", parents=[node])
    joining.add_argument("--authority", type=Path, help="the certificate of the manager's authority")
    working = commands.add_parser("work", parents=[node])
    working.add_argument("--name", default="python")
    working.add_argument("--region")
    working.add_argument("--mn", type=mac, metavar="MAC")
    working.add_argument("--pre-shared", type=Path, metavar="FILE")
    working.add_argument("--size", type=int)
    working.add_argument("--loss", type=float, help="the share of frames to lose; for fill and verify alone")
    working.add_argument("steps", nargs="+", metavar="STEP")
    options = parser.parse_args()
    if options.command == "vectors":
        wrong = vectors.check(options.page.read_text())
        sys.exit("\n".join(["the page has another", *wrong]) if wrong else 0)
    if options.command == "join":
        authority, own = options.authority.read_text(), Link(options.interface).mac
        manager.join(options.manager, authority, os.environ["CXLOE_TOKEN"], own, options.folder)
    else:
        work(options)


if __name__ == "__main__":
    main()
