# Everything runs in .venv, which the first command makes. Needs Python 3.11 or newer with its headers, make and gcc.
#
#     make demo                             uses the first python3 that is new enough
#     make demo PYTHON=/opt/python3.13/bin/python3

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
SET_UP := $(VENV)/set-up
COMPOSE := docker-compose.yml $(wildcard configs/three-hosts/*/compose.yaml)
PROTOS := $(wildcard protos/trilateral/common/pb/v1/*.proto)
# protoc finds its mypy plugins by the path.
PROTOC = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs picture format protos fuzz sanitize chaos network soak monitoring bench clean

help: ## Show these lines
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

demo: $(SET_UP) ## Train with three processes on this machine and show the result
	$(BIN)/trilateral demo

test: $(SET_UP) ## Run all tests, a worker on each processor
	$(BIN)/pytest -n auto --dist worksteal

lint: $(SET_UP) ## Check style, types, the image and compose files, and that the generated code is that of protos/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema -q --builtin-schema vendor.compose-spec $(COMPOSE)
	rm -rf build/protos
	mkdir -p build/protos
	$(PROTOC) --python_out=build/protos --grpc_python_out=build/protos \
		--mypy_out=quiet:build/protos --mypy_grpc_out=quiet:build/protos $(PROTOS)
	@diff -r -x __pycache__ -x __init__.py build/protos/trilateral/common/pb common/pb || \
		{ echo "common/pb is not what protos/ generates: run make protos" >&2; exit 1; }

docs: $(SET_UP) ## Build the documentation site in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -E -n -W --keep-going -j 2 -b html docs docs/_build/html

picture: $(SET_UP) ## Record the demo, and draw the diagrams of the documents
	$(BIN)/python docs/pictures/record.py docs/pictures/demo.svg
	$(BIN)/python docs/pictures/draw.py docs/pictures

format: $(SET_UP) ## Put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(SET_UP) ## Generate common/pb from protos/
	$(PROTOC) --python_out=src --grpc_python_out=src --mypy_out=quiet:src --mypy_grpc_out=quiet:src $(PROTOS)

fuzz: $(SET_UP) ## Feed the decoders for ten minutes with what a coverage-guided fuzzer makes up
	$(BIN)/python -m pip install -q --disable-pip-version-check 'atheris>=3'
	$(BIN)/python tests/fuzz/fuzz_decoders.py -max_total_time=600 -rss_limit_mb=1024 -timeout=5 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus

sanitize: $(SET_UP) ## Run the kernel's tests under the address and undefined-behaviour sanitizers
	$(BIN)/python tests/fuzz/sanitize.py

chaos: $(SET_UP) ## Kill processes of 200 trainings at random, and report how they ended
	$(BIN)/python -m tests.faults.chaos 200

network: $(SET_UP) ## Train 100 times over networks that lose, delay and cut, and report how it ended
	$(BIN)/python -m tests.faults.weather 50

soak: $(SET_UP) ## Run 200 jobs at the same three processes, and see that they have not grown
	$(BIN)/python -m tests.faults.soak 200

monitoring: $(SET_UP) ## Try configs/monitoring out with Prometheus itself, which must be installed
	$(BIN)/python -m tests.monitoring.real_prometheus

bench: $(SET_UP) ## Run the benchmark that needs no data from elsewhere
	$(BIN)/python benchmarks/round.py

clean: ## Remove all that was made here, .venv included
	rm -rf $(VENV) build dist demo-result *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		docs/_build docs/project docs/reference
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SET_UP): pyproject.toml constraints.txt $(wildcard common/paillier/native/*.[ch])
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, and '$(PYTHON)' is not that; name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@echo "setting up $(VENV) ..."
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -c 'import trilateral.common.paillier.native._kernel' 2>/dev/null || echo "the kernel was not built, and" \
		"everything is five times slower: install gcc and Python's headers (Debian: python3-dev), then make clean"
	@touch $@
