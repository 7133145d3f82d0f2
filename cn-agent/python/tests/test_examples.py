"""The examples run as they are in the book."""

import pathlib
import subprocess
import sys

from conftest import REGION

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def test_the_quarter(region):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "quarter.py", region.name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    total, *_, evicted = done.stdout.split()
    count = REGION // 8
    assert float(total) == count * (count - 1) / 4
    assert int(evicted) > REGION // 4096 // 2
