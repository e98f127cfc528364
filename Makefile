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
test: install ## unit, property and role tests (no cluster, no network); EXAMPLES=n for each property
	EXAMPLES=$(or $(EXAMPLES),40) $(BIN)/python -m pytest $(PARALLEL) -m 'not processes'

.PHONY: test-golden
test-golden: install ## 13,000 verdicts recorded from Kubernetes: ours are the same
	$(BIN)/python -m pytest $(PARALLEL) tests/golden

.PHONY: test-processes
test-processes: install ## commands and drivers as processes of their own: dev, sandbox, kill -9, pages of the documentation
	$(BIN)/python -m pytest $(PARALLEL) -m processes tests/unit

.PHONY: test-examples
test-examples: install ## tests of examples/gpu-driver, without a GPU
	cd examples/gpu-driver && PYTHONPATH=src $(abspath $(BIN))/python -m pytest $(PARALLEL)

.PHONY: test-gpu
test-gpu: install ## of examples/gpu-driver, on a machine with a GPU: as nvidia-smi shows it; no setting is changed
	cd examples/gpu-driver && PYTHONPATH=src $(abspath $(BIN))/python -m pytest -m gpu -rs tests/gpu

.PHONY: test-crash
test-crash: install ## kill -9 at every durable step, a thousand random runs (SEEDS=n), 300 damaged bytes
	CRASH_SEEDS=$(or $(SEEDS),1000) CRASH_DAMAGE=300 $(BIN)/python -m pytest $(PARALLEL) tests/crash

.PHONY: test-hostile
test-hostile: install ## attack every door: files, sandbox, webhook, state, output (docs/explanation/security.md); 50 bursts of pods
	BURST_ROUNDS=50 $(BIN)/python -m pytest -rs --ignore tests/hostile/test_door.py tests/hostile \
	  tests/unit/sandbox/cluster/scheduler/test_bursts.py
	@# its server is in this process, and the memory of a process that is started counts from that of its parent
	$(BIN)/python -m pytest -rs tests/hostile/test_door.py

.PHONY: test-scaffold
test-scaffold: install ## the wheel in an environment of its own, and every kind of project that it makes (4 minutes)
	$(BIN)/python -m pytest tests/scaffold

.PHONY: first-hour
first-hour: install ## a transcript, timed: from nothing but the wheel to a driver of one's own on a real node
	$(BIN)/python -m tests.scaffold.first_hour

# its tests wait more than they work; not WORKERS, which counts for tests that work
CLUSTER_WORKERS ?= 3

.PHONY: test-cluster
test-cluster: install ## real kubelet, scheduler and containers (STORY=name for one story, CLUSTER_WORKERS=n)
	$(BIN)/python -m $(if $(STORY),pytest -rs 'tests/cluster/test_stories.py::test_story[$(STORY)]',tests.cluster --workers $(CLUSTER_WORKERS))

.PHONY: test-cluster-long
test-cluster-long: install ## the scenarios of a real node that take minutes each (by hand)
	$(BIN)/python -m pytest -rs -m long tests/cluster $(if $(REPORT),--junit-xml="$(REPORT)")

.PHONY: demo
demo: install ## watch a pizza being ordered, in a cluster of one process
	$(BIN)/dra-kit sandbox examples/pizza-driver --story examples/pizza-driver/stories/order-by-claim

.PHONY: demo-gpu
demo-gpu: export PYTHONPATH := $(CURDIR)/examples/gpu-driver/src
demo-gpu: SHELL := /bin/bash
demo-gpu: .SHELLFLAGS := -o pipefail -c
demo-gpu: install ## watch a pretended GPU being divided for claims, and made whole again
	@folder="$$(mktemp -d)"; mkdir "$$folder/gpus"; : > "$$folder/gpus/gpu-0"; \
	tail --pid=$$$$ -F "$$folder/gpus/gpu-0" 2>/dev/null \
	  | sed -un 's/^\(MIG mode: off\|memory slices.*\|partition.*\)/    GPU 0 | \1/p' & \
	$(BIN)/dra-kit sandbox examples/gpu-driver --story examples/gpu-driver/stories/10-dynamic-mig --fake-gpus h100 \
	  --dynamic-mig --fake-folder "$$folder" | tee "$$folder/all" | grep --line-buffered \
	  -E 's (Pod|scheduler|kubelet .* calls|left|story)|^ +GPU_.*_UUID=|FAIL|failed'; \
	code=$$?; [ $$code = 0 ] || tail -n 40 "$$folder/all"; rm -rf "$$folder"; exit $$code

EXAMPLE := $(MAKE) --directory examples/pizza-driver VIRTUAL_ENV=$(abspath $(VENV))

.PHONY: kind-up
kind-up: ## a cluster in Docker, for kind-demo (docs/how-to/kind.md)
	$(EXAMPLE) kind-up

.PHONY: kind-demo
kind-demo: install ## the example in that cluster: image, helm, a pod with a pizza
	$(EXAMPLE) image kind-load kind-demo

.PHONY: kind-down
kind-down: ## delete that cluster
	$(EXAMPLE) kind-down

.PHONY: bench
bench: install ## speed and memory against a real API server, budget beside figure (JSON=file, RIVAL=binary)
	$(BIN)/python -m benchmarks $(if $(JSON),--json "$(JSON)") $(if $(RIVAL),--rival "$(RIVAL)")

.PHONY: lint
lint: install ## ruff, formatting and the layers of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: install ## mypy strict and pyright; every type of the package known
	$(BIN)/mypy
	MYPYPATH=examples/pizza-driver/src $(BIN)/mypy -p pizza_driver
	MYPYPATH=examples/gpu-driver/src $(BIN)/mypy -p gpu_driver
	$(BIN)/pyright --pythonpath $(BIN)/python
	@# it names all 600 modules, too; it asks the python on the PATH for packages, whatever --pythonpath says
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=. $(BIN)/pyright --verifytypes dra_kit --ignoreexternal >$(VENV)/types.txt \
	  || { grep -v '^   dra_kit' $(VENV)/types.txt; exit 1; }
	@grep 'completeness' $(VENV)/types.txt
	$(BIN)/python -m pytest tests/typing

.PHONY: format
format: install ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

DOCS := .venv-docs
# the driver's roles are imported for the reference, but not installed
DOCS_PYTHON := PYTHONPATH=$(CURDIR) $(DOCS)/bin/python
SPHINX := $(DOCS_PYTHON) -m sphinx --fail-on-warning --keep-going --fresh-env --doctree-dir build/docs/doctrees

$(DOCS)/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --require-hashes --no-deps -r requirements/docs.txt
	@touch $@

.PHONY: docs
docs: $(DOCS)/.installed ## the documentation site: build/docs/html/index.html; a warning is an error
	$(SPHINX) --builder html docs build/docs/html

.PHONY: docs-links
docs-links: $(DOCS)/.installed ## do the links to other sites still lead somewhere (needs the internet)
	$(SPHINX) --builder linkcheck docs build/docs/links

.PHONY: demo-svg
demo-svg: $(DOCS)/.installed ## the picture in the README, of what `make demo` prints
	$(DOCS_PYTHON) docs/site_parts/demo.py

.PHONY: proto
proto: install ## generate dra_kit/kubelet/proto/*_pb2* from the .proto files
	$(BIN)/python dra_kit/kubelet/proto/generate.py

.PHONY: golden-projects
golden-projects: install ## after a change of templates/: the projects below tests/data anew, and the examples' update
	$(BIN)/python -m tests.unit.project.projects
	$(BIN)/dra-kit update --force examples/pizza-driver
	$(BIN)/dra-kit update --force examples/gpu-driver

.PHONY: chart
chart: install ## the chart's values.schema.json, the tables of its README, the examples' values, what helm template makes
	$(BIN)/python -m dra_kit.project.chart_schema
	for example in pizza gpu; do \
	  $(BIN)/dra-kit chart examples/$$example-driver --values examples/$$example-driver/values.yaml || exit; done
	$(BIN)/python -m tests.unit.charts.snapshots

.PHONY: schema
schema: install ## the API server's schema table: SERVER (kubectl proxy), API and APIMACHINERY (the Go modules)
	$(BIN)/python -m dra_kit.kubernetes.resource.schema.generate --server "$(SERVER)" --api "$(API)" --apimachinery "$(APIMACHINERY)"

PIN := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
  --no-header

.PHONY: lock
lock: ## pin the development environment again, and what images are built of (needs uv on the PATH)
	$(PIN) --group dev --extra otel --output-file requirements/dev.txt pyproject.toml
	$(PIN) --constraints requirements/dev.txt --output-file requirements/runtime.txt pyproject.toml
	$(BIN)/python -m dra_kit.project.sbom
	$(PIN) --extra otel --constraints requirements/dev.txt --output-file requirements/otel.txt pyproject.toml
	$(PIN) --group docs --constraints requirements/dev.txt --output-file requirements/docs.txt pyproject.toml
	echo hatchling | $(PIN) --constraints requirements/dev.txt --output-file requirements/build.txt -
