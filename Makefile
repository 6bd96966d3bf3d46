# Every target sets itself up: a virtual environment in .venv, the locked dependencies, the package itself.
# Another Python: make PYTHON=python3.12 test

PYTHON ?= python3
.DEFAULT_GOAL := help

# An environment of the caller's must not reach into ours.
unexport PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX

# The stamp says where and with what .venv was built: a copied or moved folder, or another PYTHON, builds it anew.
STAMP := .venv/built
BUILD := $(CURDIR) $(PYTHON)
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(BUILD))
.PHONY: $(STAMP)
endif

PIP_INSTALL := .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps

.PHONY: help reproduce beyond test bench lab notebooks lock clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 20

reproduce: $(STAMP) ## every figure and table of the paper at full size, into results/
	@.venv/bin/python -m qba reproduce

beyond: $(STAMP) ## the studies beyond the paper, calibration and robustness, into results/ (some 30 minutes)
	@.venv/bin/python -m qba reproduce --beyond

test: $(STAMP) ## all tests, and every notebook run again and compared with what it shows
	@.venv/bin/python -m pytest --nbval --nbval-current-env tests notebooks

bench: $(STAMP) ## how fast it is on this machine, beside C, SimPy and plain Python (ten minutes)
	@.venv/bin/python tests/benchmarks/speed.py

lab: $(STAMP) ## the notebooks in JupyterLab
	@.venv/bin/python -m jupyterlab notebooks

notebooks: $(STAMP) ## run the notebooks at their small size and write them back (after changing one)
	@.venv/bin/python -m qba.notebooks

lock: ## resolve requirements.lock anew (needs uv; LOCK_OPTIONS=--upgrade takes the newest releases)
	@command -v uv >/dev/null || { echo "make lock needs uv, which is not installed: pip install uv" >&2; exit 1; }
	@uv pip compile pyproject.toml --all-extras --group lock --output-file requirements.lock --quiet --no-config \
	    --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-emit-index-url \
	    --custom-compile-command "make lock" $(LOCK_OPTIONS)

clean: ## remove .venv, caches and downloaded data; results stay
	rm -rf .venv .pytest_cache .hypothesis build dist qba.egg-info
	find qba tests notebooks -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
	@git clean -fdXq data || echo "data/ is left as it is: without git, what was downloaded is not known"

NEEDED := Python 3.11 or newer is needed;
NAME_ONE := Name one: make PYTHON=python3.12 ...

$(STAMP): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "$(NEEDED) $(PYTHON) is not found. $(NAME_ONE)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(NEEDED) $(PYTHON) is $$("$(PYTHON)" -V 2>&1). $(NAME_ONE)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) lacks the venv module (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "setting up .venv (about a minute, once)"
	@"$(PYTHON)" -m venv --clear .venv
	@$(PIP_INSTALL) --require-hashes -r requirements.lock
	@$(PIP_INSTALL) --no-build-isolation --config-settings editable_mode=compat --editable .
	@printf '%s\n' "$(BUILD)" > $(STAMP)
