# Two commands do everything: `make demo` and `make test`. Both set up `.venv` the first time and never again.
PYTHON ?= python3
BIN := .venv/bin
# one thread for each test worker: two torch processes with two threads each nearly stop each other
WORKERS ?= 2

.PHONY: demo test readme notebooks

demo: .venv/installed
	@$(BIN)/eagle2 generate --compare

test: .venv/installed-dev
	@$(BIN)/python -m pytest -n $(WORKERS) -v

.venv/installed: settings.ini setup.py pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv (once; a few minutes) ..." >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing the development tools into .venv (once) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# README.md is nbs/index.ipynb as Markdown
readme: .venv/installed-dev
	@$(BIN)/python scripts/readme.py

# execute every notebook as a reader would, saving the outputs
notebooks: .venv/installed-dev
	@$(BIN)/python scripts/execute.py --save
