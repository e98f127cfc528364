# Every target sets up what it needs: a fresh clone and `make test` is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# two for each core: much of the tests' time is waiting
WORKERS ?= $(shell expr $$(nproc) \* 2)
# the last tests of one worker are taken over by those that have none left
PARALLEL := -n $(WORKERS) --dist worksteal
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## create the virtual environment with the pinned tools and this package

$(STAMP): requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: test
test: install ## unit, property, golden and role tests (no cluster, no network)
	$(BIN)/python -m pytest $(PARALLEL)

.PHONY: test-crash
test-crash: install ## kill -9 at every durable step, a thousand random runs (SEEDS=n), 300 damaged bytes
	CRASH_SEEDS=$(or $(SEEDS),1000) CRASH_DAMAGE=300 $(BIN)/python -m pytest $(PARALLEL) tests/crash

.PHONY: test-hostile
test-hostile: install ## attack every door: files, sandbox, webhook, state, output (docs/security.md); 50 bursts of pods
	BURST_ROUNDS=50 $(BIN)/python -m pytest -rs tests/hostile tests/unit/sandbox/scheduler/test_bursts.py

.PHONY: test-scaffold
test-scaffold: install ## the wheel in an environment of its own, and every kind of project that it makes (4 minutes)
	$(BIN)/python -m pytest tests/scaffold

.PHONY: test-cluster
test-cluster: install ## real kubelet, scheduler and containers (STORY=name for one story, REPORT=junit.xml)
	$(BIN)/python -m pytest -rs -m 'not long' $(if $(STORY),'tests/cluster/test_stories.py::test_story[$(STORY)]',tests/cluster) \
	  $(if $(REPORT),--junit-xml="$(REPORT)")

.PHONY: test-cluster-long
test-cluster-long: install ## the scenarios of a real node that take minutes each (by hand)
	$(BIN)/python -m pytest -rs -m long tests/cluster $(if $(REPORT),--junit-xml="$(REPORT)")

.PHONY: demo
demo: install ## watch a pizza being ordered, in a cluster of one process
	$(BIN)/dra-kit sandbox examples/pizza-driver --story examples/pizza-driver/stories/order-by-claim

.PHONY: bench
bench: install ## speed and memory against a real API server, budget beside figure (JSON=file, RIVAL=binary)
	$(BIN)/python -m benchmarks $(if $(JSON),--json "$(JSON)") $(if $(RIVAL),--rival "$(RIVAL)")

.PHONY: lint
lint: install ## ruff, formatting and the layers of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: install ## mypy strict and pyright
	$(BIN)/mypy
	MYPYPATH=examples/pizza-driver/src $(BIN)/mypy -p pizza_driver
	$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: format
format: install ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: proto
proto: install ## generate dra_kit/proto/*_pb2* from the .proto files
	$(BIN)/python dra_kit/proto/generate.py

.PHONY: golden-projects
golden-projects: install ## after a change of templates/: the projects below tests/data anew, and the example's update
	$(BIN)/python -m tests.unit.scaffold.projects
	$(BIN)/dra-kit update --force examples/pizza-driver

.PHONY: schema
schema: install ## the API server's schema table: SERVER (kubectl proxy), API and APIMACHINERY (the Go modules)
	$(BIN)/python -m dra_kit.resource.schema.generate --server "$(SERVER)" --api "$(API)" --apimachinery "$(APIMACHINERY)"

PIN := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
  --no-header

.PHONY: lock
lock: ## pin the development environment again, and what images are built of (needs uv on the PATH)
	$(PIN) --group dev --output-file requirements/dev.txt pyproject.toml
	$(PIN) --constraints requirements/dev.txt --output-file requirements/runtime.txt pyproject.toml
	echo hatchling | $(PIN) --constraints requirements/dev.txt --output-file requirements/build.txt -
