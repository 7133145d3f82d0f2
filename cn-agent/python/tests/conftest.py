"""A region of its own for each test, in a fabric that somebody else has started.

CXLOE_AGENT is the agent's socket, CXLOE_MANAGER the manager's URL; CXLOE_OWNER is the compute node's name.
"""

import os
import time

import cxloe
import pytest
from cxloe.manager import Manager

#: Bytes of a region, and the most of it that is resident: a quarter.
REGION = 8 << 20
LOCAL = REGION // 4
#: Longest wait for daemons, in seconds.
LIMIT = 60


def eventually(what, look):
    """What ``look`` returns once that is true."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        seen = look()
        if seen:
            return seen
        time.sleep(0.01)
    pytest.fail(f"{what}: not within {LIMIT} seconds")


@pytest.fixture
def owner():
    return os.environ["CXLOE_OWNER"]


@pytest.fixture
def manager():
    return Manager(os.environ["CXLOE_MANAGER"])


@pytest.fixture
def node():
    with cxloe.connect() as node:
        yield node


@pytest.fixture
def region(manager, node, owner):
    """A new region of zeros, attached."""
    made = manager.create(None, REGION, owner)

    def attached():
        here = (one for one in node.regions() if one.name == made.name)
        return next((one for one in here if one.attachment == "attached"), None)

    yield eventually("the region is attached", attached)
    manager.destroy(made.name, force=True)
