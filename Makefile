# Needs python3 (3.11 or newer, with venv) and make. Everything else comes from the hashed locks in requirements/.
#   PYTHON=python3.12 make test    chooses the interpreter of .venv
.DEFAULT_GOAL := help
.PHONY: help run check test conformance campaign reference simulate lint bench figures lock compat release clean core spark peers

VENV := .venv/bin/python
BOOTSTRAP = @$(or $(PYTHON),python3) tools/bootstrap.py $(if $(PYTHON),--chosen) --again "make $(MAKECMDGOALS)"
COMPILE = .venv/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
	--python-version 3.11 $(if $(UPGRADE),--upgrade)

# Processes that run tests: two for each core and one more, because tests wait for three quarters of their time, for servers,
# leases and processes. WORKERS=0 runs them in this one, one after the other.
WORKERS := $(or $(WORKERS),$(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2) + 1))))
PARALLEL = --numprocesses $(WORKERS) --dist loadscope

# Recipes `exec` their last command, so that it receives the signals, and not a shell in between.

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

run: spark ## the main job: the whole pipeline on a sample (N=50000 reports), every figure checked
	@exec $(VENV) -m conquiet.demo.main_job $(if $(N),--reports $(N))

check: lint ## before every commit: lint, types, import contracts; unit, parity and architecture tests (below 3 minutes)
	@exec $(VENV) -m pytest $(PARALLEL) tests/unit tests/parity tests/architecture $(ARGS)

test: spark ## the whole test suite (below 15 minutes); long campaigns at a twentieth of their size
	@$(VENV) -m tests.class_archive
	@exec $(VENV) -m pytest $(PARALLEL) $(ARGS)

conformance: spark ## the whole suite, then every clause with its tests and its verdict, and line coverage by room
	@rm -rf build/coverage
	@$(VENV) -m tests.class_archive
	@exec $(VENV) -m coverage run -m pytest --conformance $(PARALLEL) $(ARGS)

campaign: spark ## the long campaigns only, at full size, without a time limit per test
	@CONQUIET_CAMPAIGN=1 exec $(VENV) -m pytest -m campaign --timeout 0 $(ARGS)

reference: spark ## write docs/reference.md from the docstrings
	@exec $(VENV) tools/reference.py

simulate: core ## run schedules of the real code with faults, on a virtual clock (N=1000000 of them; SEED=17 shows one)
	@exec $(VENV) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(N),--count $(N)) $(ARGS)

lint: spark ## format, lint, types, import contracts
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

bench: spark peers ## every benchmark, against raw loops and peers (ARGS=--write puts the figures into the documentation)
	@exec $(VENV) -m bench $(ARGS)

figures: core ## put the figures of docs/figures.toml into the pages
	@exec $(VENV) -m bench.pages $(ARGS)

lock: core ## compile the locks again after a change of dependencies (UPGRADE=1 upgrades versions)
	$(COMPILE) --extra dev pyproject.toml -o requirements/core.txt
	$(COMPILE) --extra spark --extra java pyproject.toml -c requirements/core.txt -o requirements/spark.txt
	echo uv | $(COMPILE) - -c requirements/core.txt -o requirements/uv.txt
	$(COMPILE) requirements/bench.in -o requirements/bench.txt

compat: spark ## the tests of the queue with redis-py 5, 6, 7 and 8 (VERSIONS="5.0.1 7.4.1"); installs them below build/
	@exec $(VENV) tools/compat.py --workers $(WORKERS) $(VERSIONS)

release: core ## build wheel and sdist into dist/, and try the wheel in an empty environment with each extra
	@exec $(VENV) tools/release.py

clean: ## remove everything built here, and the virtual environments
	rm -rf .venv .venv-bench build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

core:
	$(BOOTSTRAP) core

spark:
	$(BOOTSTRAP) core spark

peers:
	$(BOOTSTRAP) bench
