"""A plain `pytest` runs every notebook's tests too, one item a notebook, each in a process of its own."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--flags", default="", help='flagged cells to run as well: "slow cuda"')


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".ipynb" and file_path.parent == ROOT / "nbs":
        return Notebook.from_parent(parent, path=file_path)


class Notebook(pytest.File):
    def collect(self):
        yield NotebookTests.from_parent(self, name=self.path.stem)


class NotebookTests(pytest.Item):
    def runtest(self):
        command = [Path(sys.executable).parent / "nbdev-test", self.path, "--do-print", "--timing", "--n-workers", "0",
                   "--flags", self.config.getoption("--flags")]
        done = subprocess.run(command, cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}, capture_output=True, text=True)
        self.add_report_section("call", "output", done.stdout)
        if done.returncode:
            raise NotebookFailed(done.stderr[-6000:])

    def repr_failure(self, excinfo):
        return str(excinfo.value) if isinstance(excinfo.value, NotebookFailed) else super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, 0, self.path.name


class NotebookFailed(Exception):
    "A cell of the notebook raised"
