# `make demo` and `make test` are all that a newcomer needs; both install what is missing first.
PYTHON_BIN := .venv/bin
# Debian's release whose OVN is tried beside the machine's; empty: none. And which tests: those marked lab, or ovn, a part.
OVN ?= trixie
OVN_TESTS ?= lab
# Where the quick tests have their stores and databases: a thousand of them wait for a disk otherwise.
MEMORY := $(wildcard /dev/shm)
# How many examples a test of properties tries: brief, or patient.
EXAMPLES := brief
# What is checked, besides how it is written.
CHECKS := quick types
# Processes that run the long tests, each with a lab of its own: one waits for OVN half of the time, in which others and
# mutants work. With a third one on two processors tests met bounds of seconds.
LABS ?= 2
# Processes that run the quick tests: one more than there are processors, for some wait for a moment.
WORKERS ?= $(shell expr $$(nproc) + 1)
TOGETHER := -n $(LABS) --dist loadfile --no-loadscope-reorder
# On CI a test that fails is tried once more, and what it said is told in the end: its machines have others to serve, and
# a thousand tests with real programs meet them. What is wrong fails twice.
AGAIN := $(if $(CI),--reruns 1 --only-rerun .)
LONG := tests/fuzz tests/lab tests/neutron_lab tests/siege tests/conformance tests/keystone tests/barbican tests/package
MARKED := not lab and not siege and not client and not fuzz and not slow and not neutron and not package

# What Python has compiled is kept, whatever the environment says: every test process compiles all of it otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-octavia demo-native down test check quick types newest long test-ovn test-neutron cases mutants fuzz siege tempest wheel bench scale lab clean format killed killed-nodes ha

help: ## this list
	@sed -n 's/^\([a-z-]*\): ## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## install what is missing
	@scripts/setup lab

demo: ## two compute nodes on this machine, a load balancer made with the stock client, real connections
	@scripts/setup demo
	@$(PYTHON_BIN)/python scripts/demo.py

demo-octavia: ## the same inside an OpenStack: a real Keystone, Neutron (ML2/OVN) and Octavia, Fairlead its provider; minutes
	@scripts/setup lab
	@scripts/neutron-server
	@$(PYTHON_BIN)/python -W ignore scripts/demo_octavia.py

demo-native: ## without OVN: three plain Linux hosts and two routers, VIPs that hosts announce, and what breaks no flow; needs root
	@scripts/setup demo
	@$(PYTHON_BIN)/python scripts/demo_native.py

down: ## end the demo and remove all of it
	@for lab in demo native; do $(PYTHON_BIN)/fairlead lab down --name $$lab; done

check: ## format, lint, types, import contracts, unit tests and cases: under a minute, no root
	@scripts/setup
	$(PYTHON_BIN)/ruff format --check --quiet src tests scripts benchmarks
	$(PYTHON_BIN)/ruff check --quiet src tests scripts benchmarks
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(CHECKS)

types: ## types and import contracts
	$(PYTHON_BIN)/mypy --no-error-summary
	$(PYTHON_BIN)/lint-imports --no-cache >/dev/null || $(PYTHON_BIN)/lint-imports --no-cache

quick: ## the unit tests and cases alone
	PYTEST_DEBUG_TEMPROOT=$(MEMORY) HYPOTHESIS_PROFILE=$(EXAMPLES) $(PYTHON_BIN)/pytest $(AGAIN) -n $(WORKERS) --dist worksteal -m "$(MARKED)" $(LONG:%=--ignore=%)

newest: ## the pure ones of them on the newest Python that is here
	@PYTEST_DEBUG_TEMPROOT=$(MEMORY) HYPOTHESIS_PROFILE=$(EXAMPLES) scripts/newest

test: ## everything, the end-to-end tests in the lab and the mutants of the case harness included
	@SERVICES=later scripts/setup ovn
	@[ -z "$(OVN)" ] || scripts/tree $(OVN) >/dev/null 2>&1 & # it is needed at the end; who asks for it then waits for it
	@log=$$(mktemp); scripts/setup lab >$$log 2>&1 & services=$$!; \
		$(MAKE) --no-print-directory check EXAMPLES=patient CHECKS='quick types newest'; checked=$$?; \
		wait $$services; services=$$?; cat $$log; rm $$log; [ $$checked = 0 ] && [ $$services = 0 ]
	@$(MAKE) --no-print-directory long
	@[ -z "$(OVN)" ] || $(MAKE) --no-print-directory test-ovn OVN_TESTS=ovn

long: ## the tests that take long; while they wait for OVN, the mutants, which are told in the end
	@scripts/setup lab
	@log=$$(mktemp); nice -n 19 $(PYTHON_BIN)/python scripts/mutate.py >$$log 2>&1 & mutants=$$!; \
		$(PYTHON_BIN)/pytest $(AGAIN) $(TOGETHER) -m '(lab or client or fuzz or slow or siege or package) and not tempest'; tests=$$?; \
		wait $$mutants; mutants=$$?; cat $$log; rm $$log; [ $$tests = 0 ] && [ $$mutants = 0 ]

test-ovn: ## the lab's tests on another OVN: that of ROOT=DIR, or of a Debian release that is made here: OVN=trixie
	@scripts/setup ovn
	@root=$${ROOT:-$$(scripts/tree $(OVN))} && chroot "$$root" ovn-northd --version | head -1 && \
		FAIRLEAD_LAB_ROOT=$$root $(PYTHON_BIN)/pytest $(AGAIN) $(TOGETHER) -m '$(OVN_TESTS)' $(TESTS)

test-neutron: ## with a real Keystone, Neutron (ML2/OVN) and Octavia in the lab: minutes, needs root
	@scripts/setup lab
	@scripts/neutron-server
	$(PYTHON_BIN)/pytest -m neutron tests/neutron_lab

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

killed: ## 200 operations on a real Octavia, while its API, agents, Fairlead and ovsdb-server are killed and frozen; minutes
	@scripts/setup lab
	OCTAVIA_OPERATIONS=$${OCTAVIA_OPERATIONS:-200} $(PYTHON_BIN)/pytest -s tests/octavia_plugin/test_killed.py

killed-nodes: ## agents and the server killed and frozen at random, under traffic on two nodes; KILLED_SECONDS=600
	@scripts/setup lab
	KILLED_SECONDS=$${KILLED_SECONDS:-600} $(PYTHON_BIN)/pytest -s tests/lab/test_killed_nodes.py

ha: ## three servers, three members of etcd, OVN in three: killed, frozen and cut off while clients write; STEPS=1000
	@scripts/setup lab
	$(PYTHON_BIN)/python benchmarks/killed.py --steps $${STEPS:-1000}

tempest: ## OpenStack's own tests of Octavia's API, ours and a real Octavia's, and of Local IPs; tests/conformance/*.txt say how many pass, and why others are skipped
	@scripts/setup lab
	$(PYTHON_BIN)/pytest tests/conformance tests/barbican/test_through_octavia.py

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
	$(PYTHON_BIN)/ruff format --quiet src tests scripts benchmarks
	$(PYTHON_BIN)/ruff check --fix --quiet src tests scripts benchmarks

clean: ## remove labs, the Python environment and caches
	@for lab in lab demo openstack neutron test native bench scale; do [ ! -x $(PYTHON_BIN)/fairlead ] || $(PYTHON_BIN)/fairlead lab down --name $$lab; done
	rm -rf .venv .venv-newest .venv-keystone .venv-barbican .venv-neutron .venv-neutron-server .venv-octavia .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
