# Plain verbs.  Each is a short script in scripts/ that says what it does.
# PYTHON=...         the interpreter that .venv is made with (default: python3, at least 3.10)
# TORCH_VERSION=...  the torch to install (default 2.13.0; empty: whatever fits, at least 2.1)
# TENSORFLOW_VERSION=...  the TensorFlow that the tests use (default 2.21.0; empty: none, its tests are skipped)
PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
export PYTHON TORCH_VERSION
ifdef TENSORFLOW_VERSION
export TENSORFLOW_VERSION
endif
.DEFAULT_GOAL := help
.PHONY: help setup demo lint type test native bench proto docs verify up down compose-test clean

help:          ## list the verbs
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+): .*## /\1\t/' | expand -t 14

setup:         ## make .venv and install the package in editable form, with all tools
	scripts/setup

demo:          ## make .venv, install the package, train a small network on two ranks
	scripts/demo

lint:          ## ruff and codespell
	scripts/lint

type:          ## mypy, strict
	scripts/type

test:          ## install what the tests need and run them
	scripts/test

native:        ## the engine's own tests, plain and under the sanitizers
	scripts/native-test
	scripts/native-test thread
	scripts/native-test address

bench:         ## measure against torch Gloo and Open MPI
	scripts/bench

proto:         ## generate the message modules from proto/*.proto
	scripts/proto

docs:          ## write docs/metrics.md from the tables in the code
	scripts/metrics-doc

verify:        ## everything that is checked before a change is taken
	.ci/run

up:            ## build the image and start a cluster in containers
	scripts/token
	scripts/compose up --build --detach

down:          ## remove the containers and what they have kept
	scripts/compose down --volumes

compose-test:  ## make up with an engine of its own, train, cut hosts off, make down
	scripts/compose-test

clean:         ## remove what was built
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
