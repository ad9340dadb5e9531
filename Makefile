# Kvasir: one place for every command. `make` alone prints this list.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Where an environment forbids it, each of the hundreds of processes that tests start compiles its modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Torch in several test processes at once must not ask for more threads than there are cores.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# Extra arguments for pytest: make test PYTEST_ARGS="-k scheduler"
PYTEST_ARGS ?=
KUBELET_STATE := .kvasir/kubelet
# Fewer cases on real nodes: make test-kubelet KUBELET_TESTS=tests/outside/real_nodes/test_network.py
KUBELET_TESTS ?= tests/outside/real_nodes/test_*.py
# Fewer cases of arm64: make test-arm64 ARM64_TESTS=tests/kvasir_runtime/kernels/cpu/test_linear.py
ARM64_TESTS ?= tests/kvasir_runtime/kernels/cpu --ignore tests/kvasir_runtime/kernels/cpu/test_build.py
# make images DOCKER=podman IMAGE_REGISTRY=registry.example/team/
DOCKER ?= docker
IMAGE_REGISTRY ?=
# make images IMAGE_BUILD_ARGS="--build-arg PYTHON_IMAGE=python@sha256:… --build-arg TORCH_INDEX_URL=…"
IMAGE_BUILD_ARGS ?=
IMAGE_TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: help setup demo demo-hub demo-kubelet demo-model demo-down test test-unit test-e2e test-faults test-changes test-idle test-away test-kubelet test-arm64 test-soak test-resume test-clients test-families test-cases test-long check fmt lint types floors fresh generate lock bench bench-peers bench-scaling bench-host-tier bench-speculation bench-neighbours bench-operator bench-autoscaling bench-routing bench-gateway bench-roles bench-start bench-download bench-wake bench-gpu test-gpu fuzz-api images deploy clean

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.project  ## Fill .venv with everything, from the pinned list (a second run is instant)

$(VENV)/.uv: constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: install Python 3.11 or newer, or say make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) -V) is too old: Kvasir needs 3.11 or newer, say make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments: install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "setup: making $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "setup: installing uv, checked by hash"
	@awk '/^[^ ]/ {keep = /^uv==/} keep' constraints.txt | $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement /dev/stdin
	@touch $@

$(VENV)/.packages: $(VENV)/.uv constraints.txt
	@echo "setup: installing the pinned packages, checked by hash (the first time several GB with torch)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --compile-bytecode --require-hashes --requirement constraints.txt
	@touch $@

$(VENV)/.project: $(VENV)/.packages pyproject.toml hatch_build.py $(wildcard runtime/kvasir_runtime/kernels/cpu/*.cpp runtime/kvasir_runtime/kernels/cpu/*.h)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## Start a local cluster, serve a tiny model, stream a chat answer, watch it scale
	@$(BIN)/kvasir demo

demo-hub: setup  ## Serve the tiny model from a model hub on loopback and stream a chat answer
	@$(BIN)/kvasir demo --hub

demo-kubelet: setup  ## The same on a real node: kubelet, containerd and images of ours (needs root)
	@$(BIN)/kvasir demo --kubelet --state-dir $(KUBELET_STATE)

demo-model: setup  ## Train the demo's model again (two minutes; the result is part of the repository)
	@$(BIN)/python -m kvasir_local.demo.train operator/kvasir_local/demo/model

demo-down:  ## Stop what the demo left running
	@test ! -x $(BIN)/kvasir || { $(BIN)/kvasir local down; test ! -d $(KUBELET_STATE) || $(BIN)/kvasir local down --state-dir $(KUBELET_STATE); }

test: setup  ## Run every test on two workers: the unit suites, then end to end on real control planes
	@mkdir -p .kvasir
	@$(MAKE) test-unit EMPTY=5 2>&1 | tee .kvasir/test-unit.log
	@$(MAKE) test-e2e 2>&1 | tee .kvasir/test-e2e.log
	@! ( for half in unit e2e; do tail -n 1 .kvasir/test-$$half.log | grep -qE '^=* ?(no tests ran|[0-9]+ deselected)' || exit 1; done ) || { echo "error: no test was selected" >&2; exit 5; }
	@echo; tail -qn 1 .kvasir/test-unit.log .kvasir/test-e2e.log

test-unit: setup  ## Run only what needs no control plane
	@$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not e2e and not long" $(PYTEST_ARGS) || { code=$$?; test $$code -eq $(or $(EMPTY),0); }

test-e2e: setup  ## Run only what needs the control plane, in two lanes
	@$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadgroup -m e2e -o testpaths="tests/e2e tests/kvasir_local" $(PYTEST_ARGS) || { code=$$?; test $$code -eq 5; }

test-faults: setup  ## Do every kind of harm at every write of the operator, in five scenarios (LANES=…; see docs/faults.md)
	@KVASIR_FAULTS=all $(TEST_ENV) $(BIN)/python -m pytest -n $(or $(LANES),4) --dist worksteal tests/e2e/test_operator_faults.py tests/e2e/test_operator_watchdog.py $(PYTEST_ARGS)

test-changes: setup  ## Change live services at random and compare with new ones (CASES=… SEED=…; see docs/faults.md)
	@KVASIR_CASES=$(or $(CASES),200) KVASIR_SEED=$(or $(SEED),1) $(TEST_ENV) $(BIN)/python -m pytest tests/e2e/test_operator_changes.py $(PYTEST_ARGS)

test-idle: setup  ## Watch an operator with nothing to do for ten minutes: it must write nothing (SECONDS_IDLE=…)
	@KVASIR_IDLE_S=$(or $(SECONDS_IDLE),600) $(TEST_ENV) $(BIN)/python -m pytest -s tests/e2e/test_operator_idle.py $(PYTEST_ARGS)

test-soak: setup  ## Serve ten minutes with too little memory and a second tier; every answer must be the undisturbed one (SECONDS_SOAK=… SEED=…)
	@KVASIR_SOAK_S=$(or $(SECONDS_SOAK),600) KVASIR_SEED=$(or $(SEED),1) $(TEST_ENV) $(BIN)/python -m pytest -s tests/kvasir_runtime/engine/test_engine_host_tier.py $(PYTEST_ARGS)

test-kubelet: setup  ## Test our images on two real nodes: kubelet, containerd, kube-proxy (needs root, 40 GB; installs its Debian packages)
	@trap '$(BIN)/kvasir local down --state-dir $(KUBELET_STATE); tail -n 1 .kvasir/test-kubelet.log || true' EXIT; \
	  mkdir -p .kvasir; : >.kvasir/test-kubelet.log; $(BIN)/kvasir local up --kubelet --nodes 2 --owner-pid $$$$ --state-dir $(KUBELET_STATE); \
	  KVASIR_STATE_DIR=$(KUBELET_STATE) $(TEST_ENV) $(BIN)/python -m pytest $(KUBELET_TESTS) $(PYTEST_ARGS) | tee .kvasir/test-kubelet.log

test-arm64: setup  ## Test the C++ kernels of arm64 under emulation (root installs its Debian packages; PYTEST_ARGS="-k linear")
	@$(TEST_ENV) tests/outside/arm64.sh $(ARM64_TESTS) $(PYTEST_ARGS)

test-away: setup  ## Take the API server away from a running operator for five minutes (SECONDS_AWAY=…)
	@KVASIR_AWAY_S=$(or $(SECONDS_AWAY),300) $(TEST_ENV) $(BIN)/python -m pytest tests/e2e/test_operator_harm.py -k away $(PYTEST_ARGS)

check: fmt-check lint types floors fresh  ## Everything that reads the code without running it

.PHONY: fmt-check
fmt-check: setup
	@$(BIN)/ruff format --check --quiet . || { echo "error: not formatted: run make fmt" >&2; $(BIN)/ruff format --check .; exit 1; }

fmt: setup  ## Format, and fix what ruff can fix safely
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

lint: setup  ## Lint
	@$(BIN)/ruff check .

types: setup  ## Check the types (mypy, strict)
	@$(BIN)/mypy

floors: setup  ## Check who may import whom
	@$(BIN)/lint-imports

fresh: setup  ## Check that the generated files are fresh
	@$(BIN)/python -m kvasir_api.generate --check
	@$(BIN)/python -m kvasir_runtime.models.family_table --check
	@$(BIN)/python manifests/monitoring.py --check
	@$(BIN)/python manifests/chart.py --check

generate: setup  ## Write the CRD, the tables in the docs and the other generated files
	@$(BIN)/python -m kvasir_api.generate
	@$(BIN)/python -m kvasir_runtime.models.family_table
	@$(BIN)/python manifests/monitoring.py
	@$(BIN)/python manifests/chart.py
	@cd operator && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kvasir_gateway/proto/*.proto

lock: setup  ## Write constraints.txt from pyproject.toml: versions and hashes, no address
	@$(BIN)/uv pip compile pyproject.toml --all-extras --generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-header --quiet --output-file constraints.txt

bench: setup  ## Measure the engine on this machine's processors (see docs/benchmarks/cpu.md)
	@PYTHONPATH=tests $(BIN)/python -m bench.cpu $(BENCH_ARGS)

bench-peers: setup  ## The same beside the peers that are installed, in turns (three rounds; BENCH_ARGS=--write keeps them)
	@PYTHONPATH=tests $(BIN)/python -m bench.cpu --engines all --rounds 3 $(BENCH_ARGS)

bench-scaling: setup  ## Measure 1 to 32 streams against what memory and processors allow (BENCH_ARGS=--write keeps it)
	@PYTHONPATH=tests $(BIN)/python -m bench.scaling $(BENCH_ARGS)

bench-host-tier: setup  ## Measure the follow-up of a 32k prompt from the second tier against computing it, and write docs/benchmarks/host-tier.md (BENCH_ARGS="--dir /dev/shm")
	@PYTHONPATH=tests $(BIN)/python -m bench.host_tier --write $(BENCH_ARGS)

bench-speculation: setup  ## Measure what drafted tokens bring and cost (BENCH_ARGS=--write keeps it in docs/benchmarks/speculation.md)
	@PYTHONPATH=tests $(BIN)/python -m bench.speculation $(BENCH_ARGS)

bench-neighbours: setup  ## Measure what a thousand streams, aborts, slow readers, long prompts and overload do to others, and write docs/benchmarks/neighbours.md
	@PYTHONPATH=tests $(BIN)/python -m bench.neighbours --write $(BENCH_ARGS)

bench-operator: setup  ## Measure the operator with 500 services on stub nodes (BENCH_ARGS="--services 500 1000 --write")
	@PYTHONPATH=tests $(BIN)/python -m bench.operator_scale $(BENCH_ARGS)

bench-autoscaling: setup  ## Simulate the autoscaler beside rules of its peers, and write docs/benchmarks/autoscaling.*
	@PYTHONPATH=tests $(BIN)/python -m bench.autoscaling

bench-routing: setup  ## Simulate the gateway's choice of replicas on ten workloads, and write docs/benchmarks/gateway.*
	@PYTHONPATH=tests $(BIN)/python -m bench.routing

bench-gateway: setup  ## Measure what the real gateway takes and adds (BENCH_ARGS="--length 0.1 rate added"; --write keeps it)
	@PYTHONPATH=tests $(BIN)/python -m bench.gateway $(BENCH_ARGS)

bench-roles: setup  ## Measure a service with a replica for prompts beside one without, under mixed load (BENCH_ARGS=--write keeps it in docs/benchmarks/roles.md)
	@PYTHONPATH=tests $(BIN)/python -m bench.roles $(BENCH_ARGS)

bench-start: setup  ## Measure kvasir serve from its start until it is ready, with a warm startup cache (BENCH_ARGS="--shapes tiny")
	@PYTHONPATH=tests $(BIN)/python -m bench.start $(BENCH_ARGS)

bench-download: setup  ## Measure kvasir serve from the last byte of a model that a hub sends until it is ready (BENCH_ARGS="--before TREE" compares)
	@PYTHONPATH=tests $(BIN)/python -m bench.download $(BENCH_ARGS)

bench-wake: setup  ## Measure what waking a service adds to the start of its replica, and how true the announced times are (BENCH_ARGS="--rounds 5")
	@PYTHONPATH=tests $(BIN)/python -m bench.wake $(BENCH_ARGS)

bench-gpu: setup  ## Measure the engine on this machine's CUDA device, in ten minutes (see docs/benchmarks/gpu.md)
	@HF_HUB_OFFLINE=1 PYTHONPATH=tests $(BIN)/python -m bench.gpu.run $(BENCH_ARGS)

test-clients: setup  ## Run clients and suites that others wrote, from their packages, against real servers, and a registry with models (PYTEST_ARGS="-k instructor")
	@$(TEST_ENV) $(BIN)/python -m pytest tests/outside/*.py $(PYTEST_ARGS)

lock-clients: setup  ## Write the pins of the clients that test-clients runs: versions and hashes, no address
	@$(BIN)/uv pip compile tests/outside/python/requirements.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --output-file tests/outside/python/requirements.txt
	@cd tests/outside/node && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

test-resume: setup  ## Kill replicas under a hundred streams of each kind; every answer must be the undisturbed one (STREAMS=…)
	@KVASIR_TEST_STREAMS=$(or $(STREAMS),100) $(TEST_ENV) $(BIN)/python -m pytest --timeout 3600 tests/wiring/test_gateway_resume.py $(PYTEST_ARGS)

test-families: setup  ## Compute every family in every precision, whole, in chunks, cached, preempted and in batches, and with every drafter
	@KVASIR_FAMILY_MATRIX=all $(TEST_ENV) $(BIN)/python -m pytest tests/kvasir_runtime/models/test_family_matrix.py tests/kvasir_runtime/runner/test_drafts_families.py tests/kvasir_runtime/runner/test_draft_head.py $(PYTEST_ARGS)

test-cases: setup  ## Run the cases for which make test has quicker ones of the same fact
	@$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadgroup -m long $(PYTEST_ARGS)

test-long: test-clients test-soak test-resume test-families test-cases  ## Run what takes long and stays outside of `make test`

test-gpu: setup  ## Test kernels and whole models: on a CUDA device where there is one, else interpreted and compiled
	@$(TEST_ENV) $(BIN)/python -m pytest tests/kvasir_runtime/kernels tests/gpu $(PYTEST_ARGS)

fuzz-api: setup  ## Drive every route of /openapi.json with 20,000 requests (CASES=… SEED=…)
	@$(TEST_ENV) $(BIN)/python tests/fuzz/api.py $(or $(CASES),20000) $(or $(SEED),1)

images:  ## Build the container images (needs docker or podman)
	@for name in operator gateway runtime runtime-cpu; do \
	  $(DOCKER) build --file images/$$name.Dockerfile --tag $(IMAGE_REGISTRY)kvasir-$$name:$(IMAGE_TAG) \
	    --build-arg VERSION=$(IMAGE_TAG) --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null) $(IMAGE_BUILD_ARGS) . || exit 1; \
	done

deploy:  ## Install CRDs, operator and gateway where kubectl points to (COMPONENTS="network-policies" NAMESPACE=models)
	@manifests/overlay.sh .kvasir/deploy "$(IMAGE_REGISTRY)" "$(IMAGE_TAG)" "$(COMPONENTS)" "$(NAMESPACE)"
	@kubectl apply --server-side --kustomize .kvasir/deploy

clean: demo-down  ## Stop the local cluster; remove its state, caches and .venv
	@rm -rf .kvasir 2>/dev/null || echo ".kvasir has files of another user: remove them as that one"
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
