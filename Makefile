# Everything sets itself up: on a fresh Debian 12 with `make`, and root or sudo, `make demo` and `make test` need nothing more.
# The Python that makes the environment, where the environment goes, and where unpacked programs and a real engine go.
PYTHON ?= python3
VENV ?= .venv
TOOLS ?= .tools
ENGINE ?= .engine
# Inputs for each of the two checks that are fuzzed.
FUZZ_RUNS ?= 1000000

python := $(VENV)/bin/python
image ?= vllm-sidecar
version = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' exporter/__init__.py)
buildah = buildah --storage-driver vfs --root $(TOOLS)/images --runroot $(TOOLS)/images/run

export TOOLS := $(abspath $(TOOLS))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz chaos soak audit licences test-engine check bench bench-load bench-fleet docs chart format lock sbom dist image \
  tools clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 13

demo: $(VENV)/.lab ## start a simulated engine under a bursty load with the sidecar beside it, and show its signals until Ctrl-C
	$(VENV)/bin/vllm-sidecar demo $(DEMO)

test: $(VENV)/.dev tools ## run every test; PYTEST_ADDOPTS chooses
	$(python) -m pytest

fuzz: $(VENV)/.dev tools ## try new inputs: the property tests, then parser and pipeline guided by coverage, FUZZ_RUNS each
	$(python) -m pytest -m hypothesis --hypothesis-profile default
	$(python) -m fuzz.run parser -max_len=600 -runs=$(FUZZ_RUNS)
	$(python) -m fuzz.run pipeline -max_len=1200 -runs=$(FUZZ_RUNS)

chaos: $(VENV)/.dev ## play 200 acts of a simulated engine that breaks at random beside a real sidecar (10 minutes)
	$(python) -m tests.chaos.rig $(CHAOS)

soak: $(VENV)/.dev ## watch memory, descriptors and tasks of two sidecars for an hour, or SOAK_SECONDS
	$(python) bench/soak.py

audit: $(VENV)/.dev ## look up known vulnerabilities of everything in the image (asks pypi.org)
	$(VENV)/bin/pip-audit --require-hashes --disable-pip --strict --requirement requirements/runtime.txt

licences: $(VENV)/.dev ## redo docs/licences.md from what the environment holds
	.ci/licences $(python) > docs/licences.md

test-engine: $(VENV)/.dev ## run the tests beside a real vLLM, which is set up in .engine (3 GB, minutes)
	tests/real_engine/setup $(ENGINE)
	ENGINE=$(ENGINE) $(python) -m pytest tests/real_engine/shapes.py

check: $(VENV)/.dev ## lint, formatting, types, spelling, the hosted workflows, of all that is code
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --explicit-package-bases alerts docs examples fuzz/checks.py
	$(VENV)/bin/codespell
	$(VENV)/bin/yamllint --strict .
	$(VENV)/bin/shellcheck --severity warning .ci/* tests/real_engine/setup
	$(VENV)/bin/hadolint Dockerfile compose/lab.Dockerfile
	$(VENV)/bin/zizmor --offline --quiet --min-severity medium .github/workflows

bench: $(VENV)/.dev ## measure against the budgets, beside real baselines
	@.ci/system-packages prometheus wrk
	$(python) bench/bench.py

bench-load: $(VENV)/.dev ## measure whether readers of our endpoints delay the scraping
	@.ci/system-packages wrk
	$(python) bench/load.py

bench-fleet: $(VENV)/.dev ## measure 500 engines at once for ten minutes, a fifth of them slow or failing
	$(python) bench/fleet.py

docs: $(VENV)/.dev ## regenerate what is made from the code: documents, alert rules, dashboards
	$(python) docs/generate.py
	$(python) alerts/build.py
	$(python) alerts/reference.py
	$(python) -m grafana.build

chart: $(VENV)/.dev ## bring the Helm chart's copies and tables up to date with what they are made from
	$(python) -m helm.build

format: $(VENV)/.dev ## put the code into its one format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

lock: $(VENV)/.dev ## redo requirements/*.txt from pyproject.toml; UPGRADE=1 takes newer releases
	.ci/lock $(VENV)/bin/uv

sbom: $(VENV)/.dev ## write the software bill of materials of the image's Python packages to dist/
	mkdir -p dist
	.ci/sbom dist/vllm-sidecar-$(version).cdx.json $(VENV)

dist: $(VENV)/.dev ## build the wheel and the bill of materials into dist/, with their checksums
	rm -rf dist
	$(python) -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir dist .
	$(MAKE) --no-print-directory sbom
	cd dist && sha256sum *.whl *.json > SHA256SUMS

image: ## build the image with buildah; BASE=stand-in builds it over Debian packages, without a registry (as root)
	@.ci/system-packages buildah debootstrap
	$(if $(filter stand-in,$(BASE)),.ci/base-image $(TOOLS)/images)
	$(buildah) bud --isolation chroot $(if $(filter stand-in,$(BASE)),--pull-never) --build-arg VERSION=$(version) \
	  --build-arg REVISION=$$(git rev-parse HEAD) --tag $(image):$(version) .

tools: $(VENV)/.dev ## install and unpack the programs that the tests run
	@.ci/system-packages buildah chromium debootstrap git prometheus prometheus-alertmanager
	@.ci/newer-monitoring $(TOOLS)/monitoring
	@.ci/kubernetes-tools $(TOOLS)/kubernetes $(python)

clean: ## remove what the other targets made
	rm -rf $(VENV) $(TOOLS) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

$(python):
	@command -v $(PYTHON) >/dev/null || .ci/system-packages python3-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/system-packages python3-venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements/build.txt requirements/runtime.txt pyproject.toml | $(python)
	$(python) -m pip install -qq --require-hashes --requirement requirements/build.txt --requirement requirements/runtime.txt
	$(python) -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.lab: requirements/lab.txt $(VENV)/.runtime
	$(python) -m pip install -qq --require-hashes --requirement requirements/lab.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.lab
	$(python) -m pip install -qq --require-hashes --requirement requirements/dev.txt
	@touch $@
