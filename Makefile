# Each target installs what it needs, so `make test` works in a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# two per core, because the tests mostly wait
WORKERS ?= $(shell expr $$(nproc) \* 2)
# idle workers take over the remaining tests of busy ones
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
test: install ## run unit, property and role tests, without cluster or network (EXAMPLES=n per property)
	EXAMPLES=$(or $(EXAMPLES),40) $(BIN)/python -m pytest $(PARALLEL) -m 'not processes'

.PHONY: test-charts
test-charts: install ## check the helm chart: what it renders, rights, policies, alerts
	$(BIN)/python -m pytest $(PARALLEL) tests/charts

.PHONY: test-golden
test-golden: install ## compare with 24,000 recorded verdicts of Kubernetes
	$(BIN)/python -m pytest $(PARALLEL) tests/golden

.PHONY: test-processes
test-processes: install ## run tests that start processes or wait for seconds: dev, sandbox, kill -9, documentation pages
	$(BIN)/python -m pytest $(PARALLEL) -m processes tests/unit

.PHONY: test-examples
test-examples: install ## run the tests of the GPU driver, without a GPU, and of the CPU and NIC drivers
	for example in gpu cpu; do \
	  (cd examples/$$example-driver && PYTHONPATH=src $(abspath $(BIN))/python -m pytest $(PARALLEL)) || exit; done
	@# few tests: more workers would only start more clusters
	cd examples/nic-driver && PYTHONPATH=src $(abspath $(BIN))/python -m pytest -n 2 --dist worksteal

.PHONY: test-gpu
test-gpu: install ## run the tests of examples/gpu-driver on a machine with a GPU; changes no setting
	cd examples/gpu-driver && PYTHONPATH=src $(abspath $(BIN))/python -m pytest -m gpu -rs tests/gpu

.PHONY: try-upstream
try-upstream: install ## run public drivers in the sandbox (UPSTREAM=folder, see docs/explanation/public-drivers.md); ONLY=names
	$(BIN)/python -m tests.upstream try "$(UPSTREAM)" --only "$(ONLY)" --reports "$(or $(REPORTS),build/upstream)"

.PHONY: judge-upstream
judge-upstream: install ## judge public drivers by conformance checks (UPSTREAM=folder as above); ONLY=names, CHECKS=ids, REPORTS=folder
	$(BIN)/python -m tests.upstream judge "$(UPSTREAM)" --only "$(ONLY)" --checks "$(CHECKS)" --reports "$(or $(REPORTS),build/conformance)"

.PHONY: test-conformance
test-conformance: install ## run the examples' drivers, and drivers with one fault each, through the conformance checks (ALL=1: by all of a group)
	@# the drivers mostly wait for deadlines
	CONFORMANCE_ALL=$(ALL) $(BIN)/python -m pytest -n 8 --dist worksteal tests/conformance

.PHONY: test-crash
test-crash: install ## kill -9 at each durable step, a thousand random runs (SEEDS=n), 300 corrupt bytes
	CRASH_SEEDS=$(or $(SEEDS),1000) CRASH_CORRUPTIONS=300 $(BIN)/python -m pytest $(PARALLEL) tests/crash

.PHONY: test-hostile
test-hostile: install ## attack files, sandbox, webhook, state and output (docs/explanation/security.md); 50 bursts of pods
	BURST_ROUNDS=50 $(BIN)/python -m pytest -rs --ignore tests/hostile/test_access_control.py tests/hostile \
	  tests/unit/sandbox/cluster/scheduler/test_bursts.py
	@# a separate process: its server runs in the test process, and child processes count the memory of their parent
	$(BIN)/python -m pytest -rs tests/hostile/test_access_control.py

.PHONY: test-page
test-page: install ## test the page of the sandbox in a headless Chromium; skipped where it is not installed
	$(BIN)/python -m pytest -rs -n 2 tests/page

.PHONY: test-scaffold
test-scaffold: install ## install the wheel in a fresh environment and test each kind of project (4 minutes)
	$(BIN)/python -m pytest tests/scaffold

.PHONY: first-hour
first-hour: install ## record a timed transcript: from the wheel to a new driver on a real node
	$(BIN)/python -m tests.scaffold.first_hour

# separate from WORKERS, because these tests mostly wait
CLUSTER_WORKERS ?= 4

.PHONY: test-cluster
test-cluster: install ## run tests on a real kubelet, scheduler and containers (STORY=name for one story, CLUSTER_WORKERS=n)
	$(BIN)/python -m $(if $(STORY),pytest -rs 'tests/cluster/test_stories.py::test_story[$(STORY)]',tests.cluster --workers $(CLUSTER_WORKERS))

.PHONY: test-cluster-long
test-cluster-long: install ## run what takes minutes each on a real node, and the rest of the tests on other releases
	$(BIN)/python -m tests.cluster --long --workers $(CLUSTER_WORKERS)
	$(BIN)/python -m tests.cluster --other-releases

.PHONY: demo
demo: install ## watch a pod get a device, in a one-process cluster
	$(BIN)/dra-kit sandbox examples/pizza-driver --story examples/pizza-driver/stories/order-by-claim

.PHONY: demo-gpu
demo-gpu: export PYTHONPATH := $(CURDIR)/examples/gpu-driver/src
demo-gpu: SHELL := /bin/bash
demo-gpu: .SHELLFLAGS := -o pipefail -c
demo-gpu: install ## watch a fake GPU being partitioned for claims and restored
	@folder="$$(mktemp -d)"; mkdir "$$folder/gpus"; : > "$$folder/gpus/gpu-0"; \
	tail --pid=$$$$ -F "$$folder/gpus/gpu-0" 2>/dev/null \
	  | sed -un 's/^\(MIG mode: off\|memory slices.*\|partition.*\)/    GPU 0 | \1/p' & \
	$(BIN)/dra-kit sandbox examples/gpu-driver --story examples/gpu-driver/stories/10-dynamic-mig --fake-gpus h100 \
	  --dynamic-mig --fake-folder "$$folder" | tee "$$folder/all" | grep --line-buffered \
	  -E 's (Pod|scheduler|kubelet .* calls|left|story)|^ +GPU_.*_UUID=|FAIL|failed'; \
	code=$$?; [ $$code = 0 ] || tail -n 40 "$$folder/all"; rm -rf "$$folder"; exit $$code

EXAMPLE ?= pizza-driver
IN_EXAMPLE := $(MAKE) --directory examples/$(EXAMPLE) VIRTUAL_ENV=$(abspath $(VENV))

.PHONY: kind-up
kind-up: ## start a cluster in Docker (docs/how-to/kind.md; EXAMPLE=gpu-driver for that one)
	$(IN_EXAMPLE) kind-up

.PHONY: kind-demo
kind-demo: install ## install the driver in that cluster and run a pod with a device
	$(IN_EXAMPLE) image kind-load kind-demo

.PHONY: test-kind
test-kind: install ## run all four examples and a new project in real clusters of kind (20 minutes; run it manually)
	$(BIN)/python -m pytest -v tests/kind

.PHONY: kind-down
kind-down: ## delete that cluster
	$(IN_EXAMPLE) kind-down

.PHONY: bench
bench: install ## measure speed and memory against a real API server, with budgets (JSON=file, RIVAL=binary)
	$(BIN)/python -m benchmarks $(if $(JSON),--json "$(JSON)") $(if $(RIVAL),--rival "$(RIVAL)")

.PHONY: bench-gpu
bench-gpu: install ## measure each way of sharing a GPU (JSON=file); without a GPU only starts, on fake ones
	cd examples/gpu-driver && PYTHONPATH=src $(abspath $(BIN))/python -m tests.gpu.sharing \
	  $(if $(JSON),--json "$(abspath $(JSON))")

.PHONY: lint
lint: install ## check with ruff and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: mypy pyright ## check types with mypy --strict and pyright (make -j2: both at the same time)

.PHONY: mypy
mypy: install
	$(BIN)/mypy
	MYPYPATH=examples/pizza-driver/src $(BIN)/mypy -p pizza_driver
	MYPYPATH=examples/gpu-driver/src $(BIN)/mypy -p gpu_driver
	MYPYPATH=examples/nic-driver/src $(BIN)/mypy -p nic_driver
	MYPYPATH=examples/cpu-driver/src $(BIN)/mypy -p cpu_driver

.PHONY: pyright
pyright: install
	$(BIN)/pyright --pythonpath $(BIN)/python
	@# the output also lists all modules; pyright ignores --pythonpath here and uses the python on the PATH
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=. $(BIN)/pyright --verifytypes dra_kit --ignoreexternal >$(VENV)/types.txt \
	  || { grep -v '^   dra_kit' $(VENV)/types.txt; exit 1; }
	@grep 'completeness' $(VENV)/types.txt
	$(BIN)/python -m pytest tests/typing

.PHONY: format
format: install ## format the code and apply fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

DOCS := .venv-docs
# dra_kit is imported for the reference, but not installed
DOCS_PYTHON := PYTHONPATH=$(CURDIR) $(DOCS)/bin/python
SPHINX := $(DOCS_PYTHON) -m sphinx --fail-on-warning --keep-going --fresh-env --doctree-dir build/docs/doctrees

$(DOCS)/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --require-hashes --no-deps -r requirements/docs.txt
	@touch $@

.PHONY: docs
docs: $(DOCS)/.installed ## build the documentation in build/docs/html; warnings are errors
	$(SPHINX) --builder html docs build/docs/html

.PHONY: docs-links
docs-links: $(DOCS)/.installed ## check links to other sites (needs the internet)
	$(SPHINX) --builder linkcheck docs build/docs/links

.PHONY: demo-svg
demo-svg: $(DOCS)/.installed ## draw the picture in the README from the output of `make demo`
	$(DOCS_PYTHON) docs/site_parts/demo.py

.PHONY: page-pictures
page-pictures: install ## take the pictures of the sandbox's page for README and documentation (needs Chromium)
	$(BIN)/python -m docs.site_parts.page_pictures

.PHONY: proto
proto: install ## generate the *_pb2* of dra_kit/kubelet from its .proto files
	$(BIN)/python dra_kit/kubelet/proto/generate.py

.PHONY: golden-projects
golden-projects: install ## after a change of templates/: generate tests/data/projects and update the examples
	$(BIN)/python -m tests.unit.project.projects
	$(BIN)/dra-kit update --force examples/pizza-driver
	$(BIN)/dra-kit update --force examples/gpu-driver
	$(BIN)/dra-kit update --force examples/nic-driver
	$(BIN)/dra-kit update --force examples/cpu-driver

.PHONY: chart
chart: install ## after a change of the chart: generate its schema, README tables, example values and snapshots
	$(BIN)/python -m dra_kit.project.chart_values
	for example in pizza gpu nic cpu; do \
	  $(BIN)/dra-kit chart examples/$$example-driver --values examples/$$example-driver/values.yaml || exit; done
	PYTHONPATH=examples/cpu-driver/src $(BIN)/dra-kit chart examples/cpu-driver/memory \
	  --values examples/cpu-driver/memory/values.yaml
	$(BIN)/python -m tests.charts.snapshots

PIN := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
  --no-header

.PHONY: lock
lock: ## update the pinned versions of the development environment and of images (needs uv)
	$(PIN) --group dev --extra otel --output-file requirements/dev.txt pyproject.toml
	$(PIN) --constraints requirements/dev.txt --output-file requirements/runtime.txt pyproject.toml
	$(BIN)/python -m dra_kit.project.sbom
	$(PIN) --extra otel --constraints requirements/dev.txt --output-file requirements/otel.txt pyproject.toml
	$(PIN) --group docs --constraints requirements/dev.txt --output-file requirements/docs.txt pyproject.toml
	echo hatchling | $(PIN) --constraints requirements/dev.txt --output-file requirements/build.txt -
