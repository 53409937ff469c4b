# `make demo` and `make test` are all that a newcomer needs; both install what is missing first.
PYTHON_BIN := .venv/bin
# Debian's release whose OVN is tried beside the machine's; empty: none. And which tests: those marked lab, or ovn, a part.
OVN ?= trixie
OVN_TESTS ?= lab
# Where the quick tests have their stores and databases: a thousand of them wait for a disk otherwise.
MEMORY := $(wildcard /dev/shm)
# How many examples a test of properties tries: brief, or patient.
EXAMPLES := brief
# Processes that run the long tests, each with a lab of its own: one waits for OVN most of the time.
LABS ?= 2
TOGETHER := -n $(LABS) --dist loadfile --no-loadscope-reorder
MARKED := not lab and not siege and not client and not fuzz and not slow

.PHONY: help setup demo down test check quick newest long test-ovn cases mutants fuzz siege tempest bench scale lab clean format

help: ## this list
	@sed -n 's/^\([a-z-]*\): ## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## install what is missing
	@scripts/setup lab

demo: ## two compute nodes on this machine, a load balancer made with the stock client, real connections
	@scripts/setup lab
	@$(PYTHON_BIN)/python scripts/demo.py

down: ## end the demo and remove all of it
	@$(PYTHON_BIN)/fairlead lab down --name demo

check: ## format, lint, types, import contracts, unit tests and cases: under a minute, no root
	@scripts/setup
	$(PYTHON_BIN)/ruff format --check --quiet src tests scripts benchmarks
	$(PYTHON_BIN)/ruff check --quiet src tests scripts benchmarks
	$(PYTHON_BIN)/mypy --no-error-summary
	$(PYTHON_BIN)/lint-imports --no-cache >/dev/null || $(PYTHON_BIN)/lint-imports --no-cache
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target quick newest

quick: ## the unit tests and cases alone
	PYTEST_DEBUG_TEMPROOT=$(MEMORY) HYPOTHESIS_PROFILE=$(EXAMPLES) $(PYTHON_BIN)/pytest -n auto --dist worksteal -m "$(MARKED)" --ignore=tests/fuzz

newest: ## the pure ones of them on the newest Python that is here
	@PYTEST_DEBUG_TEMPROOT=$(MEMORY) HYPOTHESIS_PROFILE=$(EXAMPLES) scripts/newest

test: ## everything, the end-to-end tests in the lab and the mutants of the case harness included
	@scripts/setup ovn
	@[ -z "$(OVN)" ] || scripts/tree $(OVN) >/dev/null 2>&1 & # it is needed at the end; who asks for it then waits for it
	@$(MAKE) --no-print-directory check EXAMPLES=patient
	@$(MAKE) --no-print-directory long
	@[ -z "$(OVN)" ] || $(MAKE) --no-print-directory test-ovn OVN_TESTS=ovn

long: ## the tests that take long; while they wait for OVN, the mutants, which are told in the end
	@scripts/setup lab
	@log=$$(mktemp); nice -n 19 $(PYTHON_BIN)/python scripts/mutate.py >$$log 2>&1 & mutants=$$!; \
		$(PYTHON_BIN)/pytest $(TOGETHER) -m 'lab or client or fuzz or slow or siege'; tests=$$?; \
		wait $$mutants; mutants=$$?; cat $$log; rm $$log; [ $$tests = 0 ] && [ $$mutants = 0 ]

test-ovn: ## the lab's tests on another OVN: that of ROOT=DIR, or of a Debian release that is made here: OVN=trixie
	@scripts/setup ovn
	@root=$${ROOT:-$$(scripts/tree $(OVN))} && chroot "$$root" ovn-northd --version | head -1 && \
		FAIRLEAD_LAB_ROOT=$$root $(PYTHON_BIN)/pytest $(TOGETHER) -m '$(OVN_TESTS)' $(TESTS)

cases: ## rewrite the expected rows of the case files; read the diff
	@scripts/setup
	$(PYTHON_BIN)/python scripts/rewrite_cases.py

mutants: ## plant bugs and see that the cases kill them
	@scripts/setup
	$(PYTHON_BIN)/python scripts/mutate.py

fuzz: ## call every operation of the doors' OpenAPI documents with good and bad input; FUZZ_CALLS=5000 for long
	@scripts/setup lab
	$(PYTHON_BIN)/pytest -s -m fuzz

siege: ## all that strangers and tenants were seen to throw at a server, while a tenant works: a table; minutes
	@scripts/setup lab
	SIEGE_SECONDS=30 SIEGE_SHARE=1 SIEGE_EACH=each $(PYTHON_BIN)/pytest -s -m siege

tempest: ## OpenStack's own tests of Octavia's API; tests/conformance/*.txt say how many pass, and why others are skipped
	@scripts/setup lab
	$(PYTHON_BIN)/pytest tests/conformance

bench: ## data plane: the VIP beside the direct path, OVN's own load balancer and a proxy; how evenly it spreads
	@scripts/setup bench
	$(PYTHON_BIN)/python benchmarks/dataplane.py
	$(PYTHON_BIN)/python benchmarks/evenness.py

scale: ## control plane: up to 10,000 load balancers, with the real OVN; the OVSDB client. 15 minutes, needs root
	@scripts/setup bench
	$(PYTHON_BIN)/python benchmarks/scale.py

lab: ## start a lab with a Fairlead server, to try things by hand
	@scripts/setup lab
	$(PYTHON_BIN)/fairlead lab up --serve

format: ## format the sources
	@scripts/setup
	$(PYTHON_BIN)/ruff format --quiet src tests scripts benchmarks
	$(PYTHON_BIN)/ruff check --fix --quiet src tests scripts benchmarks

clean: ## remove labs, the Python environment and caches
	@for lab in lab demo test bench scale; do [ ! -x $(PYTHON_BIN)/fairlead ] || $(PYTHON_BIN)/fairlead lab down --name $$lab; done
	rm -rf .venv .venv-newest .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
