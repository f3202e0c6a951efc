"""Give every notebook the cell that installs the package where it is missing, and, once settings.ini names the repository, its link to Colab.

    python scripts/colab.py [NOTEBOOK ...]

Both stand behind title and introduction, in front of all other code. Run it for a new notebook, and when `user`, `git_url` or
`branch` in settings.ini change; a notebook that has what it should have is left alone.
"""
import importlib.util
import json
import sys
from configparser import ConfigParser
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("build_site", ROOT / "scripts/site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)

PIP = "%pip install -q eagle2_nb"
INSTALL = f"""#| hide
try: import eagle2_nb
except ImportError: # on Colab, for example
    {PIP}"""


def link(name):
    "What the notebook's link to Colab says, by settings.ini; empty where it names no repository on GitHub"
    parser = ConfigParser(delimiters=["="], interpolation=None)
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    settings = parser["DEFAULT"]
    address = site.colab(site.repository(settings), settings.get("branch", "main"), f"nbs/{name}")
    return f"{site.COLAB}({address})" if address else ""


def first_cells(name, link):
    "The link, if there is one, and the cell that installs; their ids follow from the notebook's name"
    made = [("markdown", link)] * bool(link) + [("code", INSTALL)]
    more = dict(markdown={}, code=dict(execution_count=None, outputs=[]))
    cells = [dict(cell_type=kind, id=f"{crc32(f'{name} {kind}'.encode()):08x}", metadata={}, source=text.splitlines(keepends=True), **more[kind]) for kind, text in made]
    return [dict(sorted(cell.items())) for cell in cells]  # in the order in which `nbdev-clean` leaves them


def prepared(cells, name, link):
    "The cells of a notebook with its first cells where they belong, former ones taken out"
    others = [cell for cell in cells if PIP not in "".join(cell["source"]) and not "".join(cell["source"]).startswith(site.COLAB)]
    place = next((number for number, cell in enumerate(others) if cell["cell_type"] == "code"), len(others))
    return [*others[:place], *first_cells(name, link), *others[place:]]


def sources(cells):
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def main():
    for path in [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "nbs").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = prepared(notebook["cells"], path.name, link(path.name))
        if sources(cells) != sources(notebook["cells"]):
            path.write_text(json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{path.name}: written")


if __name__ == "__main__":
    main()
