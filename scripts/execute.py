"""Execute the notebooks as a reader would, top to bottom, flagged cells included.

    python scripts/execute.py [NOTEBOOK ...] [--save] [--workers N]

Prints the time of each and the total; exit status 1 if a cell fails. With --save the outputs are written into the
notebooks (then run `nbdev-clean`). Several workers need OMP_NUM_THREADS=1, or they nearly stop each other.
"""
import argparse
import functools
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NBS = Path(__file__).resolve().parent.parent / "nbs"


def execute(path, save):
    "Run one notebook -> did it fail, a line to print"
    notebook, began = nbformat.read(path, as_version=4), time.perf_counter()
    try:
        NotebookClient(notebook, timeout=900, kernel_name="python3", store_widget_state=False, resources={"metadata": {"path": str(NBS)}}).execute()
    except CellExecutionError as e:
        return True, f"{path.name}: FAILED\n{str(e)[-3000:]}"
    if save:
        nbformat.write(notebook, path)
    return False, f"{path.name}: {time.perf_counter() - began:.0f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--save", action="store_true", help="write the outputs into the notebooks")
    parser.add_argument("--workers", type=int, default=1, help="notebooks at a time")
    args = parser.parse_args()
    began, failed = time.perf_counter(), 0
    with ProcessPoolExecutor(args.workers) as pool:
        for wrong, line in pool.map(functools.partial(execute, save=args.save), args.notebooks or sorted(NBS.glob("*.ipynb"))):
            failed += wrong
            print(line, flush=True)
    print(f"{failed} failed, {time.perf_counter() - began:.0f} s in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
