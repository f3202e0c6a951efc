"""Stage the documentation site into _proc/ as `nbdev-docs` does, without rendering it (which needs Quarto).

    python scripts/stage_docs.py

Fails where nbdev's processing of a notebook fails; that executes every cell with an import and all exported cells. A notebook
that did not change is not staged again, unless its module was exported since: its links name lines of the module.
"""
from nbdev.config import get_config
from nbdev.quarto import nbdev_sidebar, proc_nbs, refresh_quarto_yml


def forget_outdated():
    "Remove staged notebooks that are older than their modules"
    config = get_config()
    for staged in (config.config_path / "_proc").glob("[0-9]*.ipynb"):
        module = config.lib_path / f"{staged.stem.split('_', 1)[1]}.py"
        if module.exists() and module.stat().st_mtime > staged.stat().st_mtime:
            staged.unlink()


if __name__ == "__main__":  # the notebooks are processed in worker processes
    refresh_quarto_yml()
    nbdev_sidebar.__wrapped__()
    forget_outdated()
    print(f"staged in {proc_nbs()}")
