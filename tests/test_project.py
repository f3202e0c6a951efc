"""What is said twice agrees, and the notebooks keep the project's rules."""
import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "nbs").glob("*.ipynb"))
MODULES = {p.stem.split("_", 1)[1]: int(p.stem[:2]) for p in NOTEBOOKS if p.stem[0].isdigit()}

parser = ConfigParser(delimiters=["="], interpolation=None)
parser.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = parser["DEFAULT"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

spec = importlib.util.spec_from_file_location("colab", ROOT / "scripts/colab.py")
colab = importlib.util.module_from_spec(spec)
spec.loader.exec_module(colab)


def cells(path, kind="code"):
    return ["".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]


def test_settings_pyproject_and_package_agree():
    project, nbdev = PYPROJECT["project"], PYPROJECT["tool"]["nbdev"]
    assert project["name"] == SETTINGS["lib_name"] and project["description"] == SETTINGS["description"]
    assert project["requires-python"] == f">={SETTINGS['min_python']}"
    for name in ("nbs_path", "lib_path", "doc_path", "tst_flags"):
        assert nbdev[name] == SETTINGS[name]
    assert nbdev["cell_timeout"] == int(SETTINGS["cell_timeout"])
    assert str(nbdev["jupyter_hooks"]) == SETTINGS["jupyter_hooks"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "eagle2_nb/__init__.py").read_text())[1]
    assert version == SETTINGS["version"]
    repository = colab.site.repository(SETTINGS)
    assert project.get("urls", {}).get("Repository", repository) == repository


def test_every_constraint_satisfies_its_requirement():
    from packaging.requirements import Requirement
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for text in (SETTINGS["requirements"] + " " + SETTINGS["dev_requirements"]).split():
        requirement = Requirement(text)
        assert requirement.name in pins, f"{requirement.name} is not pinned in constraints.txt"
        assert requirement.specifier.contains(pins[requirement.name]), f"{pins[requirement.name]} is not {text}"


def test_everything_that_the_package_imports_is_required():
    from packaging.requirements import Requirement
    required = {Requirement(text).name.replace("-", "_") for text in SETTINGS["requirements"].split()}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "eagle2_nb").glob("*.py")]
    found = {alias.name.split(".")[0] for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module.split(".")[0] for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert found - set(sys.stdlib_module_names) - required == {"eagle2_nb"}


def test_quarto_configuration_in_nbs_is_a_link_to_the_real_one():
    link = ROOT / "nbs/_quarto.yml"
    assert link.is_symlink() and link.resolve() == ROOT / "_quarto.yml"


@pytest.mark.parametrize("module", ["eagle2_nb", "eagle2_nb.cli"])
def test_import_is_silent_and_light(module):
    code = f"import {module}, sys; assert not {{'torch', 'transformers', 'matplotlib'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def imports(tree):
    "Modules of this package that a piece of code imports"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eagle2_nb."):
            yield node.module.split(".")[1]


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_modules_of_lower_number(module):
    tree = ast.parse((ROOT / f"eagle2_nb/{module}.py").read_text(encoding="utf-8"))
    if module == "target":  # `load_default` promises the head that ships, and fetches it from where it is defined
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "load_default"]
    above = {name for name in imports(tree) if MODULES[name] >= MODULES[module]}
    assert not above, f"{module} imports {above}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_keeps_the_rules(path):
    source = json.loads(path.read_text(encoding="utf-8"))
    code = cells(path)
    exported = [c for c in code if re.match(r"#\| exports?\b", c)]
    definitions = [(node, c) for c in exported for node in ast.parse(c).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    lines = {node.name: len([line for line in c.splitlines()[node.lineno - 1:node.end_lineno] if line.strip()]) for node, c in definitions}
    too_long = {name: n for name, n in lines.items() if n > 30}
    assert not too_long, f"exported definitions of more than 30 lines: {too_long}"
    outputs = [o for c in source["cells"] for o in c.get("outputs", [])]
    assert not [o for o in outputs if o["output_type"] == "error"], "an output shows an error"
    leaks = re.findall(r"/(?:tmp|root|home|work)/\w+", json.dumps(outputs) + "".join(code))
    assert not leaks, f"paths of one machine: {leaks}"
    for cell in code:
        if "#| fig-cap" in cell:
            assert "#| fig-alt" in cell and "#| label: fig-" in cell, "a figure without alternative text or label"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_first_code_cell_installs_the_package_where_it_is_missing(path):
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells(path)[0] == colab.INSTALL and cells(path)[1:].count(colab.INSTALL) == 0, "run: .venv/bin/python scripts/colab.py"
    wanted = colab.prepared(found, path.name, colab.link(path.name))
    assert colab.sources(found) == colab.sources(wanted), "run: .venv/bin/python scripts/colab.py"
    ids = [cell["id"] for cell in found]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("[0-9a-f]{8}", name) for name in ids)


def test_that_cell_installs_only_where_the_package_is_missing(monkeypatch, capsys):
    from IPython.core.inputtransformer2 import TransformerManager
    asked = []
    names = dict(get_ipython=lambda: SimpleNamespace(run_line_magic=lambda *line: asked.append(line)))
    code = TransformerManager().transform_cell(colab.INSTALL)
    exec(code, names)
    assert asked == [] and capsys.readouterr() == ("", "")
    monkeypatch.setitem(sys.modules, "eagle2_nb", None)  # now an import of it fails
    exec(code, names)
    assert asked == [("pip", "install -q eagle2_nb")]


def test_notebooks_get_their_link_to_colab_from_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(colab, "ROOT", tmp_path)
    plain = [dict(cell_type=kind, source=[text]) for kind, text in (("markdown", "# Title"), ("markdown", "Introduction"), ("code", "1"), ("code", "2"))]
    found = {}
    for user in ("", "user = somebody", "user = another\nbranch = next"):
        (tmp_path / "settings.ini").write_text(f"[DEFAULT]\nrepo = tiny\n{user}\n")
        found[user] = colab.prepared(found.get("user = somebody", plain), "00_first.ipynb", colab.link("00_first.ipynb"))
    none, somebody, another = map(colab.sources, found.values())
    assert none == [*colab.sources(plain[:2]), ("code", colab.INSTALL), *colab.sources(plain[2:])]
    for made, place in (somebody, "somebody/tiny/blob/main"), (another, "another/tiny/blob/next"):
        address = f"https://colab.research.google.com/github/{place}/nbs/00_first.ipynb"
        assert made == [*none[:2], ("markdown", f"[Open in Colab]({address})"), *none[2:]]
    assert colab.sources(colab.prepared(found["user = somebody"], "00_first.ipynb", "")) == none


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_committed_with_its_outputs(path):
    source = json.loads(path.read_text(encoding="utf-8"))
    printing = [c for c in source["cells"] if c["cell_type"] == "code" and re.search(r"^\s*print\(", "".join(c["source"]), re.M)
                and "#| export" not in "".join(c["source"]) and "cuda" not in "".join(c["source"]) and "def " not in "".join(c["source"])]
    assert all(c["outputs"] for c in printing)


def test_local_links_of_notebooks_and_readme_lead_somewhere():
    pages = {path: "\n".join(cells(path, "markdown")) for path in NOTEBOOKS} | {ROOT / "README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    for path, text in pages.items():
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
