"""Execute the notebooks as a reader would, top to bottom, flagged cells included.

    python scripts/execute.py [NOTEBOOK ...] [--save]

Prints the time of each and the total; exit status 1 if a cell fails. With --save the outputs are written into the
notebooks (then run `nbdev-clean`).
"""
import argparse
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NBS = Path(__file__).resolve().parent.parent / "nbs"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--save", action="store_true", help="write the outputs into the notebooks")
    args = parser.parse_args()
    began, failed = time.perf_counter(), 0
    for path in args.notebooks or sorted(NBS.glob("*.ipynb")):
        notebook, start = nbformat.read(path, as_version=4), time.perf_counter()
        try:
            NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(NBS)}}).execute()
        except CellExecutionError as e:
            failed += 1
            print(f"{path.name}: FAILED\n{str(e)[-3000:]}", flush=True)
            continue
        if args.save:
            nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{failed} failed, {time.perf_counter() - began:.0f} s in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
