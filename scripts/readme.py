"""Write README.md from nbs/index.ipynb: its text, its code and its saved outputs, pictures under nbs/images.

    python scripts/readme.py [--check]

With --check nothing is written; exit status 1 if README.md or a picture is not what the notebook says.
"""
import re
import sys
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent


def render():
    "What README.md and its pictures should hold: {path: bytes}"
    notebook = nbformat.read(ROOT / "nbs/index.ipynb", as_version=4)
    notebook.cells = [c for c in notebook.cells if not c.source.startswith(("#| hide", "[Open in Colab]"))]
    notebook.metadata["language_info"] = {"name": "python"}
    alternatives = [line.split(":", 1)[1].strip().strip('"') for cell in notebook.cells for line in cell.source.splitlines() if line.startswith("#| fig-alt:")]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("#|"))
    exporter = MarkdownExporter()
    text, resources = exporter.from_notebook_node(notebook, resources={"unique_key": "index", "output_files_dir": "nbs/images"})
    text = re.sub(r"\]\((\w+)\.ipynb", r"](nbs/\1.ipynb", text)  # links between notebooks, seen from the top level
    for alternative in alternatives:
        text = re.sub(r"\s*!\[png\]", f"\n\n![{alternative}]", text, count=1)
    files = {ROOT / name: data for name, data in resources.get("outputs", {}).items()}
    return {ROOT / "README.md": re.sub(r"\n{3,}", "\n\n", text).strip().encode() + b"\n", **files}


def main():
    stale = [path for path, data in render().items() if not path.exists() or path.read_bytes() != data]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what nbs/index.ipynb says; run: make readme")
        return 1 if stale else 0
    for path, data in render().items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
