# Everything a newcomer needs: `make demo` and `make test` set themselves up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Without bytecode each process of the tests, and pytest itself, would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
WEED_VERSION := 4.23
GENERATOR_VERSION := 0.29.1
MKDOCS_MATERIAL_VERSION := 9.8.2
CONFLUENT_KAFKA_VERSION := 2.16.1
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c

# Files stay together, since they share brokers, and all of Spark, which has one session; they go in the order of
# tests/support/tiers.py: what takes long first. WORKERS beyond two, for two cores: tests that start processes wait half of their time.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20 --durations-min=1 -q
WORKERS := 4
# Of some files a tier may have no test: pytest's exit status 5, a failure only if all tests were asked for.
SOME = $(TESTS) $(if $(TESTS),|| [ $$? -eq 5 ])

.PHONY: demo pipeline test test-fast test-all test-versions constraints mutants simulate soak chaos minio weed kafka kube prometheus generator chromium docs check sbom audit bench format wheel clean help

help:           ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/:/'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seaweedq needs Python 3.11 or newer; PYTHON=/path/to/python3.11 make ... chooses one")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## the main job on real data: publish, kill, recover, pull, read with Spark and DuckDB
	$(BIN)/seaweedq demo --flights $(DEMO)

pipeline: $(STAMP) ## flights through topics, Spark and back, with a picture, in three minutes; needs Java; PIPELINE='--speed 360'
	$(BIN)/python examples/flights/pipeline.py $(PIPELINE)

test-fast: WORKERS := 2
test-fast: $(STAMP) ## what needs no process, no service and no second broker, in a minute; TESTS='...' some of them, in every tier
	$(PYTEST) --tier fast $(SOME)

test: $(STAMP)  ## everything but what is deliberately long
	$(PYTEST) --tier default $(SOME)

test-all: $(STAMP) ## what `make test` leaves out: long tests, chaos, more examples of each property; SEED=... the same examples again
	$(PYTEST) --tier long $(if $(SEED),--hypothesis-seed=$(SEED)) $(SOME)

# What the tests themselves use is the newest in both; `all` has what is installed with seaweedq.
test-versions: $(STAMP) ## `make test` with each package at its lowest version that pyproject.toml allows, then at its newest
	$(BIN)/python -m pip install --quiet uv
	@set -eu; for which in lowest-direct highest; do \
	  other=$(VENV)-$$which; \
	  $(BIN)/uv venv --quiet --clear --python $(BIN)/python $$other; \
	  $(BIN)/uv pip compile --quiet --resolution $$which --extra all --output-file $$other/all.txt pyproject.toml; \
	  $(BIN)/uv pip install --quiet --python $$other/bin/python --constraint $$other/all.txt -e '.[dev]' pip; \
	  touch $$other/.installed; \
	  $(MAKE) test VENV=$$other; \
	done

constraints: $(STAMP) ## constraints.txt with the newest versions: those of .venv, so that no release of a package changes what CI says
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev --no-annotate \
	  --custom-compile-command 'make constraints' --output-file constraints.txt pyproject.toml

mutants: $(STAMP) ## the tests that find each rule's absence, over copies of the package without it; NAMES='...' some of them
	$(BIN)/python -m tests.mutants.run $(NAMES)

chaos: $(STAMP) ## a cluster under faults for SECONDS, drawn from SEED (a new one each time), and the judgement of its history
	$(BIN)/python -m tests.chaos.run --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(CHAOS)

simulate: $(STAMP) ## a simulated cluster under faults: SEEDS=10 of MINUTES=2 each; SEED=... one of them; FAULTS=kill,pause these kinds alone
	$(BIN)/python -m tests.simulation.run --seeds $(or $(SEEDS),$(if $(SEED),1,10)) --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults "$(FAULTS)")

soak: $(STAMP) ## half an hour of chaos, then twenty kills of each kind, both on a machine that is busy with 15 other processes; ten minutes with a mirrored journal; two versions in one cluster; a stream of Spark under kills; coordination that goes back; after `make kube`, an autoscaled release on Kubernetes
	$(BIN)/python -m tests.chaos.run --seconds 1800 --load 15 $(CHAOS)
	$(BIN)/python -m tests.chaos.run --faults kill --each 20 --load 15 $(CHAOS)
	$(BIN)/python -m tests.chaos.run --seconds 600 --journal mirrored $(CHAOS)
	$(BIN)/python -m tests.upgrade.run --seconds 60
	$(BIN)/python -m tests.spark.run --each 20
	$(BIN)/python -m pytest -q --tier soak $(TESTS)

weed: $(BIN)/weed ## SeaweedFS in .venv/bin, built with Go 1.25 or newer: with it `make test` also runs over SeaweedFS

$(BIN)/weed: | $(STAMP)
	GOBIN=$(abspath $(BIN)) go install github.com/seaweedfs/seaweedfs/weed@$(WEED_VERSION)

minio: $(BIN)/minio ## MinIO in .venv/bin, built with Go 1.24 or newer, which takes ten minutes or more: with it `make test` also runs over MinIO

$(BIN)/minio: | $(STAMP)
	GOBIN=$(abspath $(BIN)) go install github.com/minio/minio@$(MINIO_VERSION)

kafka: $(VENV)/kafka/.fetched ## Apache Kafka and librdkafka in .venv/kafka, of 43 and 20 MB, with Java and Maven: with them `python -m benchmarks kafka` measures both

$(VENV)/kafka/.fetched: scripts/kafka-pom.xml | $(STAMP)
	rm -rf $(VENV)/kafka  # else an older version would stay on its class path
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(abspath $(VENV))/kafka
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/kafka/python confluent-kafka==$(CONFLUENT_KAFKA_VERSION)
	@touch $@

kube: $(STAMP)  ## Kubernetes' API server, controllers and scheduler in .venv/bin, built with Go 1.25 or newer in ten minutes of CPU: with them `make test-all` runs the chart
	$(BIN)/python scripts/build_kube.py

prometheus: $(BIN)/promtool ## Prometheus and promtool in .venv/bin, out of Debian's package: with them `make test-all` tests the rules and the dashboard

# Unpacked and not installed: nothing is started, and the machine stays as it is.
$(BIN)/promtool: | $(STAMP)
	apt-get update -qq && folder=$$(mktemp -d) && cd $$folder && apt-get download -qq prometheus \
	  && dpkg-deb -x prometheus_*.deb . && install usr/bin/prometheus usr/bin/promtool $(abspath $(BIN)) && rm -r $$folder

generator: $(BIN)/generator ## a generator of clients in .venv/generator, apart since it wants older packages: with it `make test-all` tries a generated client

$(BIN)/generator: | $(STAMP)
	$(PYTHON) -m venv $(VENV)/generator
	$(VENV)/generator/bin/python -m pip install --quiet openapi-python-client==$(GENERATOR_VERSION)
	ln -sf ../generator/bin/openapi-python-client $(BIN)/generator

docs: $(BIN)/mkdocs ## the documentation as a site in build/site; a broken link is an error
	$(BIN)/python scripts/docs_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Apart from the rest, of whose packages it wants others.
$(BIN)/mkdocs: | $(STAMP)
	$(PYTHON) -m venv $(VENV)/site
	$(VENV)/site/bin/python -m pip install --quiet mkdocs-material==$(MKDOCS_MATERIAL_VERSION)
	ln -sf ../site/bin/mkdocs $(BIN)/mkdocs

chromium:       ## a browser, of Debian's packages, for the tests of the console; needs root if there is none
	@command -v chromium || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

check: $(STAMP) ## lint, format, types, import contracts, documentation links, the Helm chart, the image's locks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/unasync.py --check
	$(BIN)/python scripts/grpc_stubs.py --check
	$(BIN)/python scripts/check_helm.py
	$(BIN)/python scripts/image_lock.py --check

wheel: $(STAMP) ## the source distribution and the wheel, in dist/: `uvx --from dist/seaweedq-*.whl seaweedq --help` runs it
	rm -rf dist
	$(BIN)/python -m build --no-isolation

sbom: $(STAMP)  ## the packages of the image as a CycloneDX document, in sbom.json
	$(BIN)/python scripts/sbom.py > sbom.json

audit: $(STAMP) ## which packages of the image's locks have known weaknesses; installs pip-audit, and asks PyPI
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --disable-pip --require-hashes --requirement deploy/requirements.lock --requirement deploy/build.lock

bench: $(STAMP) ## every benchmark, each beside its limit
	$(BIN)/python -m benchmarks

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
