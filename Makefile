# `make demo` and `make test` are all that a newcomer needs; both install what is missing first.
PYTHON_BIN := .venv/bin
# Debian's release whose OVN is tried beside the machine's; empty: none. And which tests: those marked lab, or ovn, a part.
OVN ?= trixie
OVN_TESTS ?= lab
SOURCES := src tests scripts benchmarks
# Where the quick tests have their stores and databases: a thousand of them wait for a disk otherwise.
MEMORY := $(wildcard /dev/shm)
# How many examples a property test takes: brief (30, the same in each run) or patient (100, at random).
EXAMPLES := brief
# Workers of the end-to-end tests: each has labs of its own, and waits for OVN half of the time. WORKERS: of all other tests.
LABS ?= 2
WORKERS ?= $(shell nproc)
# What `make check` runs: tests that need nothing but Python, and the stories of each dataplane.
PURE := $(addprefix tests/,cases changes compilers dataplane model native reconciler toy haproxy/test_stories.py) \
	$(wildcard tests/test_*.py)
TIMED := $(firstword $(wildcard /usr/bin/python3) python3) scripts/timed
PYTEST := PYTEST_DEBUG_TEMPROOT=$(MEMORY) HYPOTHESIS_PROFILE=$(EXAMPLES) $(PYTHON_BIN)/pytest
TOGETHER := -n $(LABS) --dist loadfile --no-loadscope-reorder

# What Python has compiled is kept, whatever the environment says: every test process compiles all of it otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-octavia demo-native down check format-check prose types pure newest test unit end-to-end test-all \
	parts flaky test-long test-random test-package test-octavia test-ovn test-ovn-sid test-kernels test-neutron cases mutants mutants-changed \
	fuzz siege tempest octavia-api wheel bench scale lab clean format killed killed-nodes ha

help: ## this list
	@sed -n 's/^\([a-z-]*\): ## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## install what is missing
	@scripts/setup lab

demo: ## two compute nodes on this machine, a load balancer made with the stock client, real connections
	@scripts/setup demo
	@$(PYTHON_BIN)/python scripts/demo.py

demo-octavia: ## the same inside an OpenStack: a real Keystone, Neutron (ML2/OVN) and Octavia, Fairlead its provider; minutes
	@scripts/setup lab
	@scripts/octavia
	@scripts/neutron-server
	@$(PYTHON_BIN)/python -W ignore scripts/demo_octavia.py

demo-native: ## without OVN: three plain Linux hosts and two routers, VIPs that hosts announce, and what breaks no flow; needs root
	@scripts/setup demo
	@$(PYTHON_BIN)/python scripts/demo_native.py

down: ## end the demo and remove all of it
	@for lab in demo native; do $(PYTHON_BIN)/fairlead lab down --name $$lab; done

check: ## format, lint, types, import contracts, unit tests and stories: under a minute, no root
	@scripts/setup
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types pure

format-check:
	@$(TIMED) 'check: format, lint' sh -c '$(PYTHON_BIN)/ruff format --check --quiet $(SOURCES) && $(PYTHON_BIN)/ruff check --quiet $(SOURCES)'

prose:
	@$(TIMED) 'check: prose' $(PYTHON_BIN)/python scripts/prose.py

types: format-check prose ## types and import contracts
	@$(TIMED) 'check: types, contracts' sh -c '$(PYTHON_BIN)/mypy --no-error-summary && { \
		$(PYTHON_BIN)/lint-imports --no-cache >/dev/null || $(PYTHON_BIN)/lint-imports --no-cache; }'

pure: ## the tests of `make check` alone
	@$(TIMED) 'check: pure tests' env $(PYTEST) -n $(WORKERS) --dist worksteal -m 'not end_to_end and not extended and not thorough' $(PURE)

newest: ## the pure tests on the newest Python that is here
	@PYTEST_DEBUG_TEMPROOT=$(MEMORY) HYPOTHESIS_PROFILE=$(EXAMPLES) scripts/newest

test: ## all that a change needs before it is merged: every capability once, on the real programs; at most 20 minutes
	@$(TIMED) --clear
	@SERVICES=later $(TIMED) 'environment: packages' scripts/setup lab
	@log=$$(mktemp); $(TIMED) 'environment: services' scripts/setup lab >$$log 2>&1 & services=$$!; \
		$(MAKE) --no-print-directory check && $(MAKE) --no-print-directory unit; checked=$$?; \
		wait $$services; services=$$?; cat $$log; rm $$log; [ $$checked = 0 ] && [ $$services = 0 ]
	@$(MAKE) --no-print-directory end-to-end

unit: ## the tests in this process, with real databases and proxies: all but the end-to-end tests and those of `make check`
	@scripts/setup
	@$(TIMED) 'unit tests' env $(PYTEST) -n $$(($(WORKERS) + 1)) --dist worksteal \
		-m 'not end_to_end and not extended and not alone and (thorough or not pure)' tests

end-to-end: ## every capability once: OVN, HAProxy, etcd, Keystone, Barbican, the stock clients, plain hosts with FRR
	@scripts/setup lab
	@$(TIMED) 'end-to-end tests' env $(PYTEST) $(TOGETHER) --durations=20 -m 'end_to_end and not extended and not alone' tests

test-all: ## everything else, in parts: all of them, or PART="octavia fuzz"; `make parts` prints which ones a change needs
	@scripts/setup
	@$(PYTHON_BIN)/python scripts/parts.py run $(PART)

parts: ## the parts of `make test-all` that the files changed since main need; BASE=revision
	@scripts/setup
	@$(PYTHON_BIN)/python scripts/parts.py needed $(BASE:%=--base=%)

flaky: ## every test that waits for something, 20 times beside four busy processes; goes on where it was ended
	@scripts/setup lab
	@$(PYTHON_BIN)/python scripts/flaky.py $(FLAKY)

test-long: ## part long: longer tests of what `make test` covers, rare topologies, upgrades
	@scripts/setup lab
	COUNT_STEPS=1 $(PYTEST) $(TOGETHER) --durations=20 -m 'extended and not alone' tests

test-random: ## part random: property tests with many examples, which differ from run to run
	@scripts/setup
	$(PYTEST) --hypothesis-profile=patient -n $$(($(WORKERS) + 1)) --dist worksteal -m 'not end_to_end and not alone' tests

test-package: ## part package: the wheel, the image, three hosts as in the example
	@scripts/setup lab
	$(PYTEST) -m package tests/package

test-octavia: ## part octavia: the provider driver in a real Octavia
	@scripts/setup lab
	@scripts/octavia
	$(PYTEST) tests/octavia_plugin/test_octavia.py tests/octavia_plugin/test_adopt.py

test-ovn: ## part ovn: the lab's tests on another OVN: that of ROOT=DIR, or of a Debian release that is made here: OVN=trixie
	@scripts/setup ovn
	@root=$${ROOT:-$$(scripts/tree $(OVN))} && chroot "$$root" ovn-northd --version | head -1 && \
		FAIRLEAD_LAB_ROOT=$$root $(PYTEST) $(TOGETHER) -m '$(OVN_TESTS)' $(TESTS)

test-ovn-sid: ## part ovn-sid: the lab's tests of OVN's rows and flows on the newest OVN that Debian has
	@$(MAKE) --no-print-directory test-ovn OVN=sid OVN_TESTS='ovn and not extended'

test-kernels: ## part kernels: tests marked kernel on the kernels of Debian 12, 13 and Ubuntu 24.04, in virtual machines: KERNELS="bookworm"
	@scripts/setup kernels
	@$(PYTHON_BIN)/python scripts/kernels.py $(KERNELS)

test-neutron: ## part neutron: a real Keystone, Neutron (ML2/OVN) and Octavia in the lab: minutes, needs root
	@scripts/setup lab
	@scripts/octavia
	@scripts/neutron-server
	$(PYTEST) -m neutron tests/neutron_lab

cases: ## rewrite the expected rows of the case files; read the diff
	@scripts/setup
	$(PYTHON_BIN)/python scripts/rewrite_cases.py

mutants: ## part mutants: plant every bug and see that the tests kill it
	@scripts/setup
	$(PYTHON_BIN)/python scripts/mutate.py

mutants-changed: ## only bugs in files that changed since main; BASE=revision
	@scripts/setup
	$(PYTHON_BIN)/python scripts/mutate.py --changed $(BASE:%=--base=%)

fuzz: ## call every operation of the doors' OpenAPI documents with good and bad input; FUZZ_CALLS=5000 for long
	@scripts/setup lab
	$(PYTHON_BIN)/pytest -s -m fuzz

siege: ## all that strangers and tenants were seen to throw at a server, while a tenant works: a table; minutes
	@scripts/setup lab
	SIEGE_SECONDS=30 SIEGE_SHARE=1 SIEGE_EACH=each $(PYTHON_BIN)/pytest -s -m siege

killed: ## 200 operations on a real Octavia, while its API, agents, Fairlead and ovsdb-server are killed and frozen; minutes
	@scripts/setup lab
	@scripts/octavia
	OCTAVIA_OPERATIONS=$${OCTAVIA_OPERATIONS:-200} $(PYTHON_BIN)/pytest -s tests/octavia_plugin/test_killed.py

killed-nodes: ## agents and the server killed and frozen at random, under traffic on two nodes; KILLED_SECONDS=600
	@scripts/setup lab
	KILLED_SECONDS=$${KILLED_SECONDS:-600} $(PYTHON_BIN)/pytest -s tests/lab/test_killed_nodes.py

ha: ## three servers, three members of etcd, OVN in three: killed, frozen and cut off while clients write; STEPS=1000
	@scripts/setup lab
	$(PYTHON_BIN)/python benchmarks/killed.py --steps $${STEPS:-1000}

tempest: ## OpenStack's own tests of Octavia's API, ours and a real Octavia's, and of Local IPs; tests/conformance/*.txt say how many pass, and why others are skipped
	@scripts/setup lab
	@scripts/neutron
	@scripts/octavia
	$(PYTHON_BIN)/pytest tests/conformance tests/barbican/test_through_octavia.py --ignore tests/conformance/test_functional.py

octavia-api: ## part octavia-api: Octavia's own functional tests of its API; tests/conformance/functional.txt says which pass, and why others do not
	@scripts/setup
	@scripts/octavia
	$(PYTEST) tests/conformance/test_functional.py

wheel: ## what `pip install` takes, in dist/
	@scripts/setup
	$(PYTHON_BIN)/python -m build --outdir dist

bench: ## data plane: the VIP beside the direct path, OVN's own load balancer and a proxy; how evenly it spreads
	@scripts/setup bench
	$(PYTHON_BIN)/python benchmarks/dataplane.py
	$(PYTHON_BIN)/python benchmarks/near.py
	$(PYTHON_BIN)/python benchmarks/proxies.py
	$(PYTHON_BIN)/python benchmarks/reloads.py
	$(PYTHON_BIN)/python benchmarks/reloads.py --connections new
	$(PYTHON_BIN)/python benchmarks/reloads.py --connections long
	$(PYTHON_BIN)/python benchmarks/moves.py
	$(PYTHON_BIN)/python benchmarks/evenness.py
	$(PYTHON_BIN)/python benchmarks/plain_hosts.py

scale: ## control plane: up to 10,000 load balancers, with the real OVN, and on a plain host; the OVSDB client. 15 minutes, needs root
	@scripts/setup bench
	$(PYTHON_BIN)/python benchmarks/scale.py
	$(PYTHON_BIN)/python benchmarks/agents.py
	$(PYTHON_BIN)/python benchmarks/hosts.py

lab: ## start a lab with a Fairlead server, to try things by hand
	@scripts/setup lab
	$(PYTHON_BIN)/fairlead lab up --serve

format: ## format the sources
	@scripts/setup
	$(PYTHON_BIN)/ruff format --quiet $(SOURCES)
	$(PYTHON_BIN)/ruff check --fix --quiet $(SOURCES)

clean: ## remove labs, the Python environment and caches
	@for lab in lab demo openstack native bench scale; do [ ! -x $(PYTHON_BIN)/fairlead ] || $(PYTHON_BIN)/fairlead lab down --name $$lab; done
	rm -rf .venv .venv-newest .venv-keystone .venv-barbican .venv-neutron .venv-neutron-server .venv-octavia .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
