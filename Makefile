# make setup, demo, test: each sets up everything on a machine that has only Python, pip and make.
SHELL := /bin/sh
PY := .venv/bin/python
STUDY ?= ./demo

.PHONY: setup setup-tpu demo test test-all lint lock

setup: .venv/.installed

.venv/.installed: requirements.lock pyproject.toml setup.sh
	sh setup.sh
	touch $@

setup-tpu: setup .venv/.installed-tpu

.venv/.installed-tpu: requirements.lock
	sh setup.sh --tpu
	touch $@

demo: setup
	JAX_PLATFORMS=cpu .venv/bin/foretell demo --out $(STUDY)

test: setup
	JAX_PLATFORMS=cpu $(PY) -m pytest -n 2 --dist worksteal

test-all: setup
	JAX_PLATFORMS=cpu $(PY) -m pytest -n 2 --dist worksteal -m ""

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# One file with hashes for all extras and platforms; no index or file address is written into it.
lock: setup
	.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --all-extras \
		--python .venv/bin/python pyproject.toml --output-file requirements.lock
