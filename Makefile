# Two commands do everything: `make demo` and `make test`. Both set up `.venv` the first time and never again.
PYTHON ?= python3
BIN := .venv/bin
# one thread for each test worker: two torch processes with two threads each nearly stop each other
WORKERS ?= 2

# named by what it was made from, so that it is made again when that changes, and only then
STAMP := .venv/installed-$(shell cat settings.ini setup.py pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)

.PHONY: demo test setup readme notebooks site

demo: $(STAMP)
	@$(BIN)/eagle2 generate --compare

test: $(STAMP)-dev
	@$(BIN)/python -m pytest -n $(WORKERS) -v

setup: $(STAMP)-dev

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv (once; a few minutes) ..." >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(STAMP)-dev: $(STAMP)
	@echo "Installing the development tools into .venv (once) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# README.md is nbs/index.ipynb as Markdown
readme: $(STAMP)-dev
	@$(BIN)/python scripts/readme.py

# execute every notebook as a reader would, saving the outputs
notebooks: $(STAMP)-dev
	@$(BIN)/python scripts/execute.py --save

# the book as web pages in _site/, every page checked; the last line counts pages and faults
site: $(STAMP)-dev
	@$(BIN)/python scripts/site.py
