# Every target creates the virtual environment it needs: nothing has to be installed by hand.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# One more than the cores that the suite is made for: tests of real servers wait a lot.
JOBS := 3

.PHONY: help help-all demo demo-tier demo-nodes test proofs test-fast search fuzz world kills interop browser cluster samples stores check format reference docs screenshots dist bench compare clean


$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name one with make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What stands behind ## is for everybody, what stands behind #+ for those who work on streamd.
LIST = @sed -nE 's/^([a-z-]+):.*$(1) (.*)/\1	\2/p' $(firstword $(MAKEFILE_LIST)) | \
	awk -F '	' '{ printf "make %-12s %s\n", $$1, $$2 }'
help: ## this
	$(call LIST,##)

help-all: ## all targets
	$(call LIST,#[#+])

# One stamp file per set of extras; they depend on pyproject.toml.
$(VENV)/.%: $(BIN)/python pyproject.toml
	@echo "installing streamd[$*] into $(VENV); the first time this takes a while"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(VENV)/.demo ## publish real flights, read only the wanted chunks, then tune; 90 seconds
	$(BIN)/streamd demo

# With gofakes3 as the object store where `make stores` has built it, else with a folder.
demo-tier: $(VENV)/.demo $(VENV)/.tier ## a stream ten times larger than its disk, a question over all of it, a lost disk, and a machine lost while somebody publishes; a minute
	$(BIN)/python -m benchmarks.tier.demo

demo-nodes: $(VENV)/.demo ## three servers that are one, and the leader killed while somebody publishes; a minute
	$(BIN)/python -m benchmarks.tier.demo_nodes

test: $(VENV)/.test ## the test suite
	$(BIN)/python -m pytest -n $(JOBS) --proofs none

proofs: $(VENV)/.test #+ the tests that try something at every step of something else: kills, power failures, lost answers, rights that go
	$(BIN)/python -m pytest -n $(JOBS) --proofs only

# New random examples instead of the fixed ones, until one fails: make search TIMES=20
TIMES := 5
search: $(VENV)/.test #+ the property tests with new random examples; TIMES=5 rounds
	for n in $$(seq $(TIMES)); do \
		$(BIN)/python -m pytest -q -n $(JOBS) --hypothesis-profile search -m "not slow and not interop and not browser and not cluster and not sample" \
			tests/segments tests/wire tests/net tests/auth tests/broker tests/connections tests/http_api || exit 1; done

# New inputs, grown from what reaches new code. What repeats a failure is printed.
fuzz: SECONDS := 60
fuzz: $(VENV)/.test $(VENV)/.fuzz #+ search for inputs that break the server, guided by coverage; SECONDS=60, SEED=another
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --jobs $(JOBS) $(if $(SEED),--seed $(SEED))

# Everything in one process: what goes wrong is chosen by the seed, what was promised is judged.
world: SECONDS := 60
world: $(VENV)/.test ## servers, their disks and clients at virtual time: kills, power failures, full disks, each promise watched; SECONDS=60, SEED, FAULTS=kill,power
	$(BIN)/python -m tests.world.run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

# A real server, real clients, kill -9; confirmed messages are checked after each kill.
kills: KILLS := 200
kills: $(VENV)/.test #+ repeated kill -9 under load, and a server that is paused at each request to its store; KILLS=200
	$(BIN)/python -m tests.broker.tier.paused
	$(BIN)/python -m tests.crash.tier_kills --kills $(KILLS)
	$(BIN)/python -m tests.crash.tier_kills --kills $(KILLS) --confirm store
	$(BIN)/python -m tests.crash.node_kills --kills $(KILLS) --takeover-seconds 3

test-fast: $(VENV)/.test #+ the test suite without the tests marked slow
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not interop and not browser and not cluster and not sample"

interop: $(VENV)/.test #+ clients in Python, JavaScript, Go and Java, those whose tools are installed
	$(BIN)/python -m pytest -m interop -rs tests/interop

browser: $(VENV)/.test #+ the console in a real browser, where Chromium is installed
	$(BIN)/python -m pytest -n $(JOBS) -m browser -rs tests/console/browser

# A master and two workers, which share nothing but an object store with the program.
cluster: $(VENV)/.test #+ Spark on a cluster of three processes, with a stream in an object store; some 60 seconds
	$(BIN)/python -m pytest -m cluster -rs tests/segments/spark/test_cluster.py

# What takes long as a whole, and whose parts `make test` proves.
samples: $(VENV)/.test #+ pages of the documentation that start Spark, and short runs of benchmarks; some three minutes
	$(BIN)/python -m pytest -n $(JOBS) -m sample -rs tests/e2e/test_documentation.py tests/benchmarks

# Each version is built once, into the user's cache; tests of those that are not there are skipped.
stores: $(VENV)/.test #+ object stores for the tests, built with Go, where it is installed; once
	$(BIN)/python -m tests.support.stores

check: $(VENV)/.check $(VENV)/.test ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.check #+ format the code with ruff
	$(BIN)/ruff format .

# The generated parts of pages are committed; a test holds them to the code.
reference: $(VENV)/.docs #+ what the pages of the documentation have from the code, written into them anew
	$(BIN)/python -m docs.generated

# No network: what it shows of other projects is a link. -E: pages that were taken away are missed.
docs: $(VENV)/.docs ## the documentation, in docs/_build/html
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

screenshots: $(VENV)/.test #+ pictures of the console, in docs/images; needs Chromium
	$(BIN)/python -m tests.console.screenshots

dist: $(VENV)/.dist #+ build wheels of server and client and an sdist in dist/, and try them out; the steps of the Containerfile, too
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python wheels.py dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.distribution dist
	$(BIN)/python -m tests.containerfile

bench: $(VENV)/.demo ## measure the server on this machine
	$(BIN)/python -m benchmarks

# Each is set up once: RabbitMQ, as root, with benchmarks/rabbitmq.sh setup; RocketMQ, where Maven
# and a JDK are, with benchmarks/rocketmq.sh setup.
COMPARE :=
compare: $(VENV)/.bench ## streamd beside RabbitMQ and RocketMQ: tables and compare.png; COMPARE='--rounds 1' is quicker
	$(BIN)/python -m benchmarks.compare --chart compare.png $(COMPARE)

clean: #+ remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
