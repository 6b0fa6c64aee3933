# Everything runs in .venv, which the first command sets up. Needs make, gcc, and Python 3.11 to 3.13 with its headers.
#
#     make demo                                       uses the first python3 that is new enough
#     make demo PYTHON=/opt/python3.13/bin/python3    uses this one

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
SET_UP := $(VENV)/set-up
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)
COMPOSE := docker-compose.yml $(wildcard configs/three-hosts/*/compose.yaml)
KUBERNETES := $(wildcard configs/three-hosts/*/kubernetes.yaml)
DOCKER := docker
PROTOS := $(wildcard protos/trilateral/common/pb/v1/*.proto)
# protoc searches the path for its mypy plugins.
PROTOC = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos

# Without the files of bytecode, each of the hundreds of processes that tests start would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test coverage lint docs picture format protos lock sbom fuzz sanitize faults chaos network engine-faults soak browser r-oracle binning-oracle monitoring compose-test bench clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

demo: $(SET_UP) ## Train with three processes on this machine, and show the result
	$(BIN)/trilateral demo

test: $(SET_UP) ## Run all tests in parallel
	$(BIN)/pytest -n auto --dist worksteal $(PYTEST_FLAGS)

coverage: $(SET_UP) ## Run all tests, and check that they cover enough of the code
	$(MAKE) test PYTEST_FLAGS=--cov

lint: $(SET_UP) ## Check style, types, layers, the image, YAML files, and that common/pb matches protos/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema -q --builtin-schema vendor.compose-spec $(COMPOSE)
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/kubernetes-validate --quiet --strict --kubernetes-version 1.29.0 $(KUBERNETES)
	$(BIN)/kubernetes-validate --quiet --strict $(KUBERNETES)
	rm -rf build/protos
	mkdir -p build/protos
	$(PROTOC) --python_out=build/protos --grpc_python_out=build/protos \
		--mypy_out=quiet:build/protos --mypy_grpc_out=quiet:build/protos $(PROTOS)
	@diff -r -x __pycache__ -x __init__.py build/protos/trilateral/common/pb common/pb || \
		{ echo "common/pb does not match protos/: run make protos" >&2; exit 1; }

docs: $(SET_UP) ## Build the documentation site in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -E -n -W --keep-going -j 2 -b html docs docs/_build/html

picture: $(SET_UP) ## Record the demo, and draw the diagrams of the documents
	$(BIN)/python docs/pictures/record.py docs/pictures/demo.svg
	$(BIN)/python docs/pictures/draw.py docs/pictures

format: $(SET_UP) ## Format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(SET_UP) ## Generate common/pb from protos/
	$(PROTOC) --python_out=src --grpc_python_out=src --mypy_out=quiet:src --mypy_grpc_out=quiet:src $(PROTOS)

lock: $(SET_UP) ## Lock the packages of pyproject.toml by their hashes; with UPGRADE=--upgrade, take the newest versions
	$(LOCK) pyproject.toml --extra report -o requirements.txt
	$(LOCK) pyproject.toml --extra dev -c requirements.txt -o requirements-dev.txt
	sed -n '/^requires = \["\(.*\)"\]$$/s//\1/p' pyproject.toml | $(LOCK) - -c requirements-dev.txt -o requirements-build.txt

sbom: $(SET_UP) ## Write the list of locked packages with their hashes, in CycloneDX, to dist/trilateral.cdx.json
	mkdir -p dist
	$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
		--sv 1.6 --of JSON -o dist/trilateral.cdx.json requirements.txt

fuzz: $(SET_UP) ## Fuzz the decoders for ten minutes, guided by coverage
	$(PIP) install -q 'atheris>=3'
	$(BIN)/python tests/fuzz/fuzz_decoders.py -max_total_time=600 -rss_limit_mb=1024 -timeout=5 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus

sanitize: $(SET_UP) ## Run the tests of the kernels under the sanitizers, with IFMA in plain C, and built by clang
	$(BIN)/python -m tests.fuzz.sanitize

faults: $(SET_UP) ## Put faults into the arithmetic of the kernel, and check that its tests catch each
	$(BIN)/python -m tests.fuzz.kernel_faults

chaos: $(SET_UP) ## Train 200 times while processes are killed at random, and report the outcome
	$(BIN)/python -m tests.faults.chaos 200

network: $(SET_UP) ## Train 100 times over networks that lose, delay, and cut, and report the outcome
	$(BIN)/python -m tests.faults.weather 50

engine-faults: $(SET_UP) ## Train 50 times on a Dask cluster while a worker is killed, and report the outcome
	$(BIN)/python -m tests.faults.engine 50

soak: $(SET_UP) ## Run 200 jobs in the same three processes, and check that they do not grow
	$(BIN)/python -m tests.faults.soak 200

browser: $(SET_UP) ## Test the pages in Chromium, which must be installed; with PICTURES=folder, photograph them
	$(BIN)/pytest tests/browser $(if $(PICTURES),--pictures $(PICTURES))

r-oracle: ## Compare tests/oracles/r/glm.json with R, which must be installed
	Rscript tests/oracles/r/glm.R | diff tests/oracles/r/glm.json -

binning-oracle: ## Compare tests/oracles/optbinning/bins.json with optbinning, in an environment of its own
	"$(PYTHON)" -m venv build/optbinning
	build/optbinning/bin/python -m pip install -q --disable-pip-version-check --only-binary :all: optbinning==1.0.0
	build/optbinning/bin/python tests/oracles/optbinning/bins.py | diff tests/oracles/optbinning/bins.json -

monitoring: $(SET_UP) ## Test configs/monitoring with Prometheus and with npm, which must be installed
	$(BIN)/python -m tests.monitoring.grafana_schema
	$(BIN)/python -m tests.monitoring.real_prometheus

compose-test: ## Train in the containers of docker-compose.yml; needs a running Docker Engine with Compose
	"$(PYTHON)" tests/deployment/compose.py "$(DOCKER)"

bench: $(SET_UP) ## Measure one round; benchmarks/README.md describes the other benchmarks
	$(BIN)/python benchmarks/round.py

clean: ## Remove everything that make made, including .venv
	rm -rf $(VENV) build dist demo-result *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		docs/_build docs/project docs/reference
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SET_UP): pyproject.toml requirements-dev.txt $(wildcard common/*/native/*.[ch])
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
		echo "'$(PYTHON)' is not Python 3.11, 3.12 or 3.13; name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@echo "setting up $(VENV) ..."
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install -q --require-hashes -r requirements-dev.txt
	@rm -f common/*/native/_kernel.*so # so that one of an older source does not stay if the build fails
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import trilateral.common.curve25519.native._kernel, trilateral.common.paillier.native._kernel, trilateral.common.shares.native._kernel' 2>/dev/null || echo "a kernel was not built, so" \
		"the arithmetic of alignments and of paillier is up to six and that of shares forty times slower: install gcc and the headers of Python (Debian: python3-dev), then run make clean"
	@touch $@
