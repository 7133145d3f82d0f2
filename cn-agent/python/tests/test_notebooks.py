"""The notebooks run from their first cell to the last, each in a fresh interpreter, and are kept without output."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
NOTEBOOKS = sorted((HERE.parent / "examples").glob("*.ipynb"))
NAMES = {"array", "cache", "lines"}


def run(notebook, folder, **variables):
    """Executes a notebook in an empty folder, with these variables beside those of the tests."""
    command = [sys.executable, HERE / "run_notebook.py", notebook]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def notebook_of(path, *sources):
    cells = [{"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources]
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_all_notebooks_are_here():
    assert {one.stem for one in NOTEBOOKS} == NAMES


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_each_cell_runs(notebook, region, tmp_path):
    done = run(notebook, tmp_path, CXLOE_EXAMPLE_REGION=region.name)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_the_size_is_set_by_a_variable(notebook, region, tmp_path):
    done = run(notebook, tmp_path, CXLOE_EXAMPLE_REGION=region.name, CXLOE_EXAMPLE_BYTES=str(1 << 20))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_the_form_is_that_of_a_notebook_without_output(notebook):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    cells = content["cells"]
    # Words and code take turns.
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code"] * (len(cells) // 2)
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)
    for cell in cells:
        assert isinstance(cell["source"], list) and cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]
            # Each is short enough to be read at a glance.
            assert len(cell["source"]) <= 12, cell["id"]


def test_a_cell_that_fails_is_named(tmp_path):
    good = notebook_of(tmp_path / "good.ipynb", "a = 1", "import asyncio\nawait asyncio.sleep(0)", "assert a == 1")
    done = run(good, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for source, words in (("await wrong(a)", "NameError"), ("a = = 1", "SyntaxError"), ("1 / (a - 1)", "ZeroDivision")):
        bad = notebook_of(tmp_path / "bad.ipynb", "a = 1", source, "print('not reached')")
        done = run(bad, tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr and source in done.stderr
        assert done.stderr.endswith("bad.ipynb: cell 2 failed\n")
