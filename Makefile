# `make demo` and `make test` do all the set-up by themselves: they need Python 3.11 or newer with pip, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demo runs as a user has it: without the tools of the checks, and without timm, which brings torchvision.
DEMO_VENV := .venv-demo
DEMO_STAMP := $(DEMO_VENV)/.installed
DIST_VENV := .venv-dist
LOWEST_VENV := .venv-lowest
TORCH_VENV := .venv-torch-$(VERSION)
WORKERS ?= 2
# One thread per test worker: two workers with a pool of threads each would fight for the cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help install demo test slow lint types format clean bench dist docs claims lowest torch

help:  ## Say what there is.
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## Make .venv and install everything the checks need.

demo: $(DEMO_STAMP)  ## Run the main job: compare ten methods on real digits; two minutes on two cores.
	$(DEMO_VENV)/bin/pluribus compare

test: $(STAMP)  ## Run the suite, without the tests that take minutes.
	$(PYTEST) -m "not slow"

slow: $(STAMP)  ## Run the tests that take minutes.
	$(PYTEST) -m slow || [ $$? -eq 5 ]  # 5: there are none

bench: $(STAMP)  ## Measure every ratio of speed; ARGS="--full --json new.json" for more.
	$(BIN)/python benchmarks/speed.py $(ARGS)

docs: $(STAMP)  ## Build the site into site/, with no warning; with npm also the page in which one draws a digit.
	if command -v npm >/dev/null; then $(BIN)/python examples/browser/build.py; fi
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

claims: $(STAMP)  ## Draw the fair tests' figures and tables again, from docs/results.
	$(BIN)/python docs/fair_tests.py

dist: $(STAMP)  ## Build the sdist and the wheel, check them, and run the wheel in a new environment.
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/support/distribution.py dist
	rm -rf $(DIST_VENV) && $(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install -qq --constraint constraints.txt "$$(ls dist/*.whl)[all]"
	cd $(DIST_VENV) && bin/pluribus compare --data moons --methods single,packed --epochs 2 --out study

lowest:  ## Install the lowest versions that pyproject.toml allows, and try what each is needed for.
	rm -rf $(LOWEST_VENV) && $(PYTHON) -m venv $(LOWEST_VENV)
	$(PYTHON) tests/support/lowest.py > $(LOWEST_VENV)/lowest.txt
	$(LOWEST_VENV)/bin/python -m pip install -qq --constraint $(LOWEST_VENV)/lowest.txt \
		--editable '.[all,ray,sklearn,huggingface]'
	$(LOWEST_VENV)/bin/python tests/support/lowest.py try

torch:  ## Run the suite on another release of torch, in an environment of its own: make torch VERSION=2.15.0
	rm -rf $(TORCH_VENV) && $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install -qq "torch==$(VERSION)" $$($(PYTHON) tests/support/lowest.py needs)
	$(TORCH_VENV)/bin/python -m pip install -qq --no-deps --editable .
	$(MAKE) test VENV=$(TORCH_VENV) STAMP=pyproject.toml

lint: $(STAMP)  ## Check the style.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Check the types.
	$(BIN)/mypy

format: $(STAMP)  ## Put the code into its form.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environments and everything generated.
	rm -rf $(VENV) $(DEMO_VENV) $(DIST_VENV) $(LOWEST_VENV) .venv-torch-* build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: an install that was cut short starts again. Compiling takes longer than the rest of it: all cores
# do it, where pip would use one. (Some packages hold templates that are no Python, which is not an error here.)
$(STAMP): EXTRAS := dev
$(DEMO_STAMP): EXTRAS := all
%/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Pluribus needs Python 3.11 or newer, but $(PYTHON) is older. Try: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Making $* and installing (once; a few minutes)"
	@$(PYTHON) -m venv $*
	@$*/bin/python -m pip install -qq --no-compile --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@$*/bin/python -m compileall -qq -j 0 $*/lib src || true
	@touch $@
