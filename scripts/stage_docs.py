"""Stage the documentation site into _proc/ as `nbdev-docs` does, without rendering it (which needs Quarto).

    python scripts/stage_docs.py

Fails where nbdev's processing of a notebook fails; that executes every cell with an import and all exported cells.
"""
from nbdev.quarto import nbdev_sidebar, proc_nbs, refresh_quarto_yml

if __name__ == "__main__":  # the notebooks are processed in worker processes
    refresh_quarto_yml()
    nbdev_sidebar.__wrapped__()
    print(f"staged in {proc_nbs()}")
