# make demo   set everything up and take one model through the whole pipeline
# make test   set everything up and run all checks
#
# Needs Python 3.11 or newer with pip, nothing else. Everything lands in .venv and build.
# Variables: PYTHON (interpreter to start from), VENV (environment to use).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
TYPES := build/types/dnnp
RESULT := build/demo.dnnp
EXTRAS ?= test
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? cores + 1 : 4)))
MODEL ?= bert-small
PIPELINE := dnnp-import build/models/$(MODEL).onnx | dnnp-coarsen | dnnp-profile --device cpu-here \
  | dnnp-partition -k $(or $(K),2) | dnnp-run --verify > $(RESULT)
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images of containers set it: each process of the tests would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint page-bundle bench truth gpu-check agree attack fuzz man docs install-man models-check weights-check warm warm-check wheel clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' Makefile | expand -t 14

# Python 3.11 or newer: $(PYTHON) if set, else the first that is found.
define find_python
for p in $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python); do \
  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; exit; fi; \
done; echo "make: needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1
endef

# Where the venv module cannot install pip by itself (Debian without python3-venv), the
# interpreter's own pip does.
$(READY): pyproject.toml | $(TYPES)
	@python=$$($(find_python)); \
	if ! $(BIN)/python -c '' 2>/dev/null; then \
	  echo "creating $(VENV) with $$($$python --version)"; \
	  $$python -m venv --clear $(VENV) 2>/dev/null || { \
	    $$python -m venv --clear --without-pip $(VENV); \
	    $$python -m pip --python $(BIN)/python install --quiet pip; }; \
	fi; \
	echo "installing dnnp and what it needs into $(VENV): 1.3 GB, of which the solver CBC is 0.6; a minute"; \
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'; \
	$(BIN)/python -c 'import sys, sysconfig; from pathlib import Path; \
	  Path(sysconfig.get_path("purelib"), "dnnp-tree.pth").write_text(sys.argv[1] + "\n")' '$(abspath $(dir $(TYPES)))'; \
	touch $@

# Editors and mypy cannot follow the package-dir mapping of an editable install: for them the package
# is also a tree of links, which the environment has on its path.
$(TYPES): Makefile $(wildcard core/api/*)
	@rm -rf $@; mkdir -p $@
	@for d in cmds core formats samples $(filter-out %/__pycache__,$(wildcard core/api/*)); do \
	  ln -s ../../../$$d $@/$${d##*/}; \
	done

# Kernels are compiled first: tests that run side by side would compile the same ones at once. Tests
# wait for processes now and then, so that one more of them than there are cores leaves none idle.
test: $(READY) $(TYPES) ## run ruff, mypy and all tests
	@$(MAKE) --no-print-directory --jobs 2 lint warm
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST)

lint: $(READY) $(TYPES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy -p dnnp
	MYPYPATH=man $(BIN)/mypy man/build.py

bench: $(READY) ## measure, and update BENCHMARKS.md (BENCH="NAME ..." measures only these; BENCH="regress growth" BASE=REV compares with a version)
	$(BIN)/python tests/bench/run.py $(BENCH)

truth: $(READY) ## compare predicted with measured bottlenecks, by four ways to price, and judge choices; 20 minutes
	$(BIN)/python tests/tools/truth.py --modes analytic fitted measured calibrated $(TRUTH)
	$(BIN)/python tests/tools/truth.py --choices $(TRUTH)

agree: $(READY) ## compare solvers, slicing (1,000 graphs), bounds (2,000), latency (200), schedules (300), parallel plans (1,000) with brute force
	$(BIN)/python tests/tools/agree.py --count 1000
	$(BIN)/python tests/tools/agree.py --contract --count 2000
	$(BIN)/python tests/tools/agree.py --orders --count 1000
	$(BIN)/python tests/tools/agree_schedules.py --count 300
	$(BIN)/python tests/tools/agree_bounds.py --count 2000
	$(BIN)/python tests/tools/agree_latency.py --count 200
	$(BIN)/python tests/tools/agree_hybrid.py --count 1000

gpu-check: $(if $(WHEELS),,$(READY)) ## check everything on a GPU, and write tests/bench/results/gpu.json; WHEELS=DIR makes an environment of wheels
	@python=$(BIN)/python; $(if $(WHEELS),python=$$($(find_python));) \
	$$python tests/tools/gpu_check.py $(if $(WHEELS),--wheels $(WHEELS)) $(GPU)

attack: $(READY) ## forge the numbers of plans and schedules, end every command by 400 signals, and workers in 200 ways; two hours
	$(BIN)/python tests/tools/forge.py --count 29
	$(BIN)/python tests/tools/forge.py --structure --count 12 --most 130
	$(BIN)/python tests/tools/signals.py --count 100
	$(BIN)/python tests/tools/faults.py --count 200

models-check: $(READY) ## take many real models from import to a verified run
	$(BIN)/python tests/tools/models_check.py $(if $(MODELS),--models $(MODELS)) $(if $(NODES),--nodes) $(if $(PACKAGES),--packages $(PACKAGES))

weights-check: $(READY) ## export a model with 1 GiB of external weights, and load each stage alone
	$(BIN)/python tests/tools/weights_check.py --gib $(or $(GIB),1)

warm: $(READY) ## compile all kernels, so that no command has to
	$(BIN)/python -m dnnp.warm $(WARM)

warm-check: warm ## run the steps on small models, and list what is compiled all the same
	$(BIN)/python tests/tools/warm_check.py

wheel: $(READY) ## build a wheel in dist with all kernels, compiled for this processor
	DNNP_WARM=-q $(BIN)/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .

build/models/.built: $(READY)
	@$(BIN)/python -m dnnp.samples.build -o build/models
	@touch $@

demo: $(READY) ## set up, split a model for two cores and run it, verified; MODEL and K name others
	@echo "building sample models: seconds"
	@$(MAKE) --no-print-directory build/models/.built
	@echo "measuring the rates of this machine the first time: 20 seconds"
	@echo
	@printf '%s\n' '$$ $(PIPELINE)'
	@$(PIPELINE)
	@echo
	@echo "The stream with the plan and the measurements is in $(RESULT). A model of your own:"
	@echo "  . $(VENV)/bin/activate"
	@echo "  dnnp-import yours.onnx --dim batch=1 | dnnp-coarsen | dnnp-profile --device cpu-here \\"
	@echo "    | dnnp-partition -k 2 | dnnp-run --verify > ran.dnnp"

fuzz: $(READY) ## run 100,000 seeded mutations through every reader
	$(BIN)/python tests/fuzz/fuzz.py --count 100000

page-bundle: ## make core/view/web/libs.min.js, which pages hold, of packages of npm (needs node and npm)
	@rm -rf build/page; mkdir -p build/page; cp $(addprefix core/view/web/,package.json package-lock.json libs.js) build/page
	cd build/page && npm ci --no-audit --no-fund && npm run bundle
	@cd build/page/node_modules && for name in $$(ls -d d3-* @dagrejs/* internmap); do \
	  printf '%s %s\n\n' "$$name" "$$(sed -n 's/^  "version": "\(.*\)",$$/\1/p' $$name/package.json)"; cat $$name/LICENSE; printf '\n\n'; \
	done > ../LICENSES.txt
	@cp build/page/libs.min.js build/page/LICENSES.txt core/view/web

man: $(READY) ## rebuild the manual pages, the completion for shells, and the tables of methods in man/methods.md
	$(BIN)/python man/build.py

docs: $(READY) ## run the commands in README.md, tutorial and cookbook, and put in what they print
	$(BIN)/python tests/support/documents.py

install-man: ## copy the manual pages to MANDIR (default /usr/local/share/man)
	for page in man/man*/*; do \
	  install -D -m 644 $$page $(DESTDIR)$(or $(MANDIR),/usr/local/share/man)/$${page#man/}; \
	done

clean: ## remove what was built, and caches
	rm -rf build core/kernels/kernels.d *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	rm -rf .venv
