"""Executes the code cells of a notebook in order and in one namespace, without Jupyter. Cells may await, as there.

    run_notebook.py NOTEBOOK

Exits with 1 and the number of the cell, counted among the code cells, if one raises an exception.
"""

import ast
import asyncio
import inspect
import json
import linecache
import pathlib
import sys
import traceback


def run(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for number, source in enumerate(sources, 1):
            file = f"<{path.name}, cell {number}>"
            # For the lines of a traceback.
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            try:
                code = compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                awaited = eval(code, names)
                if inspect.iscoroutine(awaited):
                    runner.run(awaited)
            except Exception:
                traceback.print_exc()
                sys.exit(f"{path.name}: cell {number} failed")


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]))
