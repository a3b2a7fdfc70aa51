# make demo: the main job, from an empty checkout to a page of recovered training images.
# make test: linters, types and tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow clean

demo: $(VENV)/.installed-run
	$(BIN)/python main.py pipeline --config configs/quickstart/pipeline.yaml

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --quiet --strict
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m slow

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
