# SPDX-License-Identifier: Apache-2.0
# `make` prints what there is. Each target stands on its own: it builds what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc)
# What is handed on, for example `make test-go ARGS='-run Plan ./operator/...'`.
ARGS ?=
GO_TEST_FLAGS ?=
# The cluster of `make up`, and the one that `make e2e` makes and removes.
CLUSTER ?= farpool
WORKERS ?= 2
E2E_CLUSTER ?= farpool-e2e
E2E_FILTER ?= short && !wide
CLUSTERS_CLUSTER ?= farpool-clusters
RELEASE_CLUSTER ?= farpool-release
SOFTROCE_CLUSTER ?= farpool-softroce
SOFTROCE_WORKERS ?= 1
# What pools over RDMA are made of: the gate has a cluster with them when it changed since hack/base, and when there is none to compare with.
RDMA_PARTS ?= dataplane/fabric dataplane/node operator api charts config Dockerfile hack/lab hack/kindctl hack/e2e-softroce e2e/rdma_test.go

# One way of compiling Go for binaries, tests and the tools from modules, so that they share the build cache.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath -buildvcs=%,$(GOFLAGS)) -trimpath -buildvcs=false
# One clock for the progress of everything that a command starts.
ifndef FARPOOL_STARTED
FARPOOL_STARTED := $(shell date +%s)
endif
export FARPOOL_STARTED
KINDCTL := go run ./hack/kindctl
STEP := hack/step
# One ninja at a time in a build tree.
built = flock build/$(1)/lock cmake --build build/$(1)

.PHONY: help
help:
	@echo "farpool: a memory pool for Kubernetes clusters. make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install the Debian packages that are missing
	@hack/deps

# Presets are in dataplane/CMakePresets.json, their trees in build/<preset>. Packages first, and afresh: what cmake remembers of a try
# without a compiler is that optimisation has no flags. To standard error: of some targets the output is a document.
build/%/build.ninja:
	@hack/deps >&2
	@cmake --fresh --preset $* -S dataplane >&2

.PHONY: build
build: deps build/dev/build.ninja ## build everything for development
	@cmake --build build/dev -j $(JOBS)
	@go build ./...

SHIPPED := farpool-memory-node farpool-compute-shard farpool-fsck farpool-doctor
.PHONY: daemons
daemons: build/release/build.ninja ## build the daemons with optimisation: build/release/apps
	@$(call built,release) -j $(JOBS) --target $(SHIPPED)

.PHONY: run
run: deps daemons ## one memory node and one compute shard on this machine, without Kubernetes
	@go run ./hack/run-local $(ARGS)

.PHONY: image-binaries
image-binaries: daemons
	@mkdir -p build/image
	@go build -ldflags='-s -w' -o build/image/farpool-operator ./operator/cmd/manager
	@for b in farpool-memory-node farpool-compute-shard farpool-fsck farpool-doctor; do strip -o build/image/$$b build/release/apps/$$b; done

.PHONY: images
images: image-binaries ## build the images; build/image/tag names them
	@hack/images

# The same commit makes the same bytes, signature and data plane's image aside. KEY signs: a private key in PEM, EC or RSA.
VERSION ?= $(shell sed -n 's/^version: *//p' charts/farpool/Chart.yaml)
DISTRIBUTION ?= build/distribution
KEY ?=
.PHONY: release
release: images ## what a registry and a user need, in build/distribution: images, chart, OLM bundle, plugin, SBOMs, sums, notes: KEY=private.pem signs
	@eval "$$($(KINDCTL) env)"; image=farpool/dataplane:$$(cat build/image/tag); docker save -o build/image/dataplane.tar "$$image"; \
	docker run --rm "$$image" dpkg-query -W -f '$${Package} $${Version} $${Architecture}\n' >build/image/packages
	@go run ./hack/release make -out $(DISTRIBUTION) -version $(VERSION) -created "$$(git log -1 --format=%ct)" \
	  -dataplane build/image/dataplane.tar -packages build/image/packages -key "$(KEY)"

REGISTRY ?=
.PHONY: push
push: ## publish build/distribution: REGISTRY=registry.example/farpool, with the credentials of docker login; ARGS=-plain-http
	@go run ./hack/release push -from $(DISTRIBUTION) -registry "$(REGISTRY)" $(ARGS)

.PHONY: up
up: deps images ## the main job: a kind cluster, the operator, a pool, a data set through it
	@CLUSTER=$(CLUSTER) WORKERS=$(WORKERS) hack/up

.PHONY: down
down: ## remove what `make up` made: the cluster, and the Docker daemon if it started one
	@$(KINDCTL) down --name $(CLUSTER) --all

.PHONY: test
test: deps ## the gate: linters, clang-tidy, sanitizers, fuzzers, verbs on SoftRoCE, Go tests, short e2e on kind, over RDMA if that changed
	@$(STEP) lint $(MAKE) lint
	@$(STEP) clang-tidy $(MAKE) tidy TIDY=gate
	@$(STEP) "C++ builds" $(MAKE) build-cpp
	@$(STEP) "C++ tests (threads)" $(MAKE) test-threads
	@$(STEP) "C++ tests of rooms with threads (address, undefined)" $(MAKE) test-cpp ARGS='-L threads'
	@$(STEP) "processes killed and stopped" $(MAKE) chaos ARGS='--minutes 1'
	@$(STEP) "drivers and tools for Redis" $(MAKE) test-tools
	@hack/beside '$(MAKE) gate-clusters' '$(MAKE) gate-tests'

.PHONY: build-cpp
build-cpp: build/asan/build.ninja build/release/build.ninja
	@$(call built,asan) -j $(JOBS)
	@$(call built,release) -j $(JOBS) --target $(SHIPPED) simulate $(FIGURES) $(LAB_TESTS) allocations_test

# What waits for timeouts and for one emulated processor most of the time: the rest of the gate runs beside it.
.PHONY: gate-clusters
gate-clusters:
	@$(STEP) "e2e on kind ($(E2E_FILTER))" $(MAKE) e2e
	@$(STEP) "verbs" $(MAKE) test-verbs
	@base=$$(hack/base); [ -z "$(RDMA_PARTS)" ] || { [ -n "$$base" ] && git diff --quiet "$$base" -- $(RDMA_PARTS); } || $(STEP) "e2e over RDMA" $(MAKE) e2e-softroce

# First what has no clock but its own: later the clusters need less.
.PHONY: gate-tests
gate-tests:
	@$(STEP) "C++ tests of other rooms, fuzzers (address, undefined)" $(MAKE) test-cpp ARGS='-LE threads'
	@$(STEP) simulator $(MAKE) sim SIM_SEEDS=2000 MUTANTS=--changed
	@$(STEP) "allocations, coroutine frames" $(MAKE) frames
	@$(STEP) "figures in pages, the quick ones" $(MAKE) figures ARGS='-check -quick'
	@$(STEP) "planner: 2000 random worlds" $(MAKE) sim-operator SIM_OPERATOR_SEEDS=2000
	@$(STEP) "operator: mutants" $(MAKE) mutants-operator ARGS="--sample 60 --seed $$((16#$$(git rev-parse --short=4 HEAD)))"
	@$(STEP) "Go tests" $(MAKE) test-go
	@$(STEP) "Go tests (race detector)" $(MAKE) test-race RACE=changed

.PHONY: test-all
test-all: ## what takes longer: e2e in its long form, the path-sensitive analyzer, more seeds in the simulator, longer fuzzing
	@$(MAKE) test E2E_FILTER= RDMA_PARTS=
	@$(STEP) "clang-tidy, all files" $(MAKE) tidy
	@$(STEP) "Go tests (race detector, all)" $(MAKE) test-race
	@$(STEP) "drivers from registries" $(MAKE) test-drivers
	@$(STEP) "chart with Helm 3" go test -count=1 -tags helm3 ./charts
	@$(STEP) "figures in pages" $(MAKE) figures ARGS=-check
	@$(STEP) "path-sensitive analyzer" $(MAKE) analyze
	@$(STEP) "simulator" $(MAKE) sim
	@$(STEP) "planner: 20000 random worlds" $(MAKE) sim-operator ARGS="-seeds 20000 -first $$RANDOM"
	@$(STEP) "operator: all mutants" $(MAKE) mutants-operator
	@$(STEP) "data plane: all mutants" $(MAKE) mutants-cpp
	@$(STEP) "simulator: deaths in other worlds" $(MAKE) sim ARGS='--crashes --seed 2 --count 3'
	@$(STEP) "simulator: RACE, deaths after every effect" $(MAKE) sim ARGS="--protocol race --crashes --every-effect --offset $$RANDOM"
	@$(call built,release) -j $(JOBS) --target client_test
	@$(STEP) "keys that move, deaths after every effect" env FARPOOL_EVERY_EFFECT=1 build/release/client_test --gtest_brief=1 --gtest_filter='*DeadMover*:*StoppedMover*'
	@$(STEP) "processes killed and stopped" $(MAKE) chaos ARGS='--minutes 10'
	@$(call built,release) -j $(JOBS) --target index_contract_lab_test
	@$(STEP) "index protocols over verbs" env FARPOOL_WHOLE=1 go run ./hack/lab -timeout 60m -- build/release/index_contract_lab_test --gtest_brief=1
	@$(STEP) "locks through a SwordBox, over SoftRoCE" go run ./hack/lab -timeout 20m -- build/release/apps_lab_test --gtest_brief=1 --gtest_filter='*Swordbox*'
	@$(STEP) "verbs between two machines" $(MAKE) test-machines
	@$(STEP) "processes killed and stopped, over verbs" $(MAKE) chaos-verbs
	@$(STEP) "documentation as a site" $(MAKE) site
	@$(STEP) fuzzers $(MAKE) fuzz
	@$(STEP) "e2e on clusters of IPv6, of two families, and with policies enforced" $(MAKE) e2e-clusters
	@$(STEP) "a release, installed" $(MAKE) e2e-release
	@$(STEP) "e2e over RDMA between two nodes" $(MAKE) e2e-softroce SOFTROCE_WORKERS=2

.PHONY: test-cpp
test-cpp: build/asan/build.ninja ## C++ tests and fuzzers under the address and undefined-behaviour sanitizers
	@$(call built,asan) -j $(JOBS)
	@ctest --test-dir build/asan -j $(JOBS) --output-on-failure --no-tests=error $(ARGS)

LAB_TESTS := fabric_verbs_lab_test index_contract_lab_test apps_lab_test verify_hardware
# In a guest, where this machine has no RDMA device. Optimised: the guest is emulated, and with sanitizers slower than the daemons' deadlines.
.PHONY: test-verbs
test-verbs: build/release/build.ninja ## the verbs wire on an RDMA device, or on SoftRoCE in a QEMU guest: ARGS='--gtest_filter=...'
	@hack/deps lab
	@$(call built,release) -j $(JOBS) --target $(LAB_TESTS)
	@go run ./hack/lab -timeout 20m -- hack/lab/suite $(ARGS)

# Across machines: that one of them goes, and the cable between them.
.PHONY: test-machines
test-machines: build/release/build.ninja ## a compute shard and a memory node over verbs in two QEMU guests, joined by a cable
	@hack/deps lab
	@$(call built,release) -j $(JOBS) --target apps_lab_test
	@go run ./hack/lab -timeout 10m -beside hack/lab/memory-machine -- build/release/apps_lab_test --gtest_brief=1 --gtest_filter='TwoMachines.*'

.PHONY: verify-hardware
verify-hardware: build/release/build.ninja ## what an RDMA device does for farpool, tried and timed, as JSON: ARGS='--device=mlx5_0 --rounds=1000'
	@hack/deps lab >&2
	@$(call built,release) -j $(JOBS) --target verify_hardware fabric_verbs_lab_test >&2
	@go run ./hack/lab -timeout 20m -- build/release/verify_hardware --contract=build/release/fabric_verbs_lab_test $(ARGS)

.PHONY: test-threads
test-threads: build/tsan/build.ninja ## tests of the rooms with threads under the thread sanitizer
	@cmake build/tsan >/dev/null
	@rooms=$$(ctest --test-dir build/tsan -N -L threads 2>/dev/null | sed -n 's/^ *Test *#[0-9]*: //p'); \
	$(call built,tsan) -j $(JOBS) --target $$(printf '%s_test ' $$rooms)
	@ctest --test-dir build/tsan -L threads -j $(JOBS) --output-on-failure --no-tests=error

# Five minutes for each fuzzer, as many side by side as there are processors.
FUZZ_SECONDS ?= 300
FUZZERS = $(shell git ls-files 'dataplane/**_fuzz.cc')
.PHONY: fuzz
fuzz: build/asan/build.ninja ## every fuzzer for FUZZ_SECONDS
	@$(call built,asan) -j $(JOBS) --target $(basename $(notdir $(FUZZERS)))
	@printf '%s\n' $(FUZZERS) | xargs -P $(JOBS) -I{} $(STEP) {} hack/fuzz $(FUZZ_SECONDS) {}
	@git grep -o '^func Fuzz[A-Za-z]*' -- '*_test.go' | sed 's|\(.*\)/[^/]*:func |./\1 |' | while read -r package fuzzer; do \
	  $(STEP) "$$package $$fuzzer" go test -run '^$$' -fuzz "^$$fuzzer\$$" -fuzztime $(FUZZ_SECONDS)s "$$package" || exit 1; done

# The gate has fewer seeds, and of the mutants those of rooms that changed and five others: MUTANTS=--changed.
SIM_SEEDS ?= 10000
MUTANTS ?=
.PHONY: sim
sim: build/release/build.ninja ## the simulator: a death after every effect, every order of small worlds, random worlds, mutants; or ARGS='--seed 7'
	@$(call built,release) -j $(JOBS) --target simulate
	@if [ -n '$(ARGS)' ]; then exec build/release/simulate $(ARGS); fi; hack/sim $(SIM_SEEDS) $(MUTANTS)

SIM_OPERATOR_SEEDS ?= 10000
.PHONY: sim-operator
sim-operator: ## the planner among operators that die, lagging caches, memory nodes and people that do anything: ARGS='-seed 7' tells one seed's story
	@go test -count=1 -timeout 60m ./operator/internal/plan -run 'TestSimulation$$' -v $(or $(ARGS),-seeds $(SIM_OPERATOR_SEEDS))

# The gate tries some lines, others at each commit.
.PHONY: mutants-operator
mutants-operator: ## conditions and loops of the operator changed one at a time, which its unit tests must notice: ARGS='--sample 10', ARGS='plan'
	@go run ./hack/mutants-operator $(ARGS)

.PHONY: mutants-cpp
mutants-cpp: ## conditions and statements of the data plane changed one at a time, which unit tests should notice: ARGS='--near --only handshake session'
	@go run ./hack/mutants-cpp $(ARGS)

# What an operation holds while it waits: a frame that its pool does not serve costs a malloc, and cold memory, each time.
.PHONY: frames
frames: daemons ## GET, SET and DEL allocate nothing, and no coroutine of the compute shard has too large a frame
	@$(call built,release) -j $(JOBS) --target allocations_test
	@build/release/allocations_test --gtest_brief=1
	@go run ./hack/frames --most 12288 --rooms rcuckoo,race,outback,client,front,session,index build/release/apps/farpool-compute-shard
	@go run ./hack/frames --most 3072 --shown 0 --rooms outback,client,front build/release/apps/farpool-compute-shard

.PHONY: soak
soak: build/release/build.ninja ## random worlds of ever new seeds, and deaths in some, until stopped or one is wrong
	@$(call built,release) -j $(JOBS) --target simulate
	@first=$$(date +%s)00000; while build/release/simulate --seed $$first --count 20000 && \
	  build/release/simulate --protocol race --crashes --every-effect --seed $$first --offset $$RANDOM; do first=$$((first + 20000)); done; exit 1

.PHONY: chaos
chaos: daemons ## processes killed and stopped under load, everything judged: ARGS='--minutes 10', ARGS='--seed 7'
	@go run ./hack/chaos $(ARGS)

.PHONY: test-tools
test-tools: deps daemons ## drivers, web frameworks, redis_exporter and redis-cli --stat use a compute shard
	@go test -count=1 -timeout 5m -tags daemons $(GO_TEST_FLAGS) ./hack/local

# Apart from the gate, which passes where there is no registry but Debian's and the Go modules': this fetches packages of four more, and compiles Rust.
.PHONY: test-drivers
test-drivers: deps daemons ## drivers and frameworks that Debian lacks, from the registries of npm, Maven, cargo and pip, use a compute shard
	@hack/deps drivers npm mvn cargo
	@go test -count=1 -timeout 20m -tags daemons,registries $(GO_TEST_FLAGS) -run '^TestDriversFromRegistries$$' ./hack/local

# Where the device is: a guest is slow, and has the program rather than the toolchain.
.PHONY: chaos-verbs
chaos-verbs: daemons ## the same over verbs, on an RDMA device or on SoftRoCE in a guest
	@hack/deps lab
	@go build -o build/chaos ./hack/chaos
	@go run ./hack/lab -timeout 20m -memory 4G -- build/chaos --wire verbs --minutes 3 $(ARGS)

.PHONY: growth
growth: daemons ## a RACE pool of processes that comes to hold 16 times as many keys under load: ARGS='--wire tcp'
	@go run ./hack/growth $(ARGS)

.PHONY: bench
bench: deps daemons ## GET and SET through one compute shard, beside redis-server in the same run: ARGS='-memcached -values 16,16384', ARGS=-help
	@hack/deps bench >&2
	@go run ./dataplane/bench/resp $(ARGS)

.PHONY: bench-eviction
bench-eviction: deps daemons ## hit ratios of full pools beside redis-server, and writes to full pools: ARGS='-traces scan -policies allkeys-lru', ARGS=-help
	@go run ./hack/hits $(ARGS)

# The programs of pages in docs/measurements.
FIGURES := cuckooduo_index race_cost race_fill race_growth rcuckoo_cost rcuckoo_fill simulate swordbox_bench ycsb

.PHONY: figures
figures: build/release/build.ninja ## what deterministic programs print, in the pages that have it: ARGS='-quick', ARGS='-check', ARGS=-help
	@$(call built,release) -j $(JOBS) --target $(FIGURES)
	@go run ./hack/figures $(ARGS)

.PHONY: bench-operator
bench-operator: ## the operator with many pools, against a real API server: ARGS='--pools 1000 --big 1024'
	@assets=$$(hack/envtest-assets); KUBEBUILDER_ASSETS=$$assets go run ./operator/bench $(ARGS)

.PHONY: test-go
test-go: ## Go tests, among them the operator's against a real API server
	@assets=$$(hack/envtest-assets); KUBEBUILDER_ASSETS=$$assets go test -timeout 20m $(GO_TEST_FLAGS) $(or $(ARGS),./...)

# Programs that judge others, where they start goroutines: a race in them would be a wrong verdict. And the operator's links to agents, which are its own.
# The gate has what changed since hack/base: RACE=changed.
RACE ?=
.PHONY: test-race
test-race: ## Go tests of hack, e2e and the operator's links under the race detector
	@packages=$$(git grep -lE '^\s*go [a-z]|\.Go\(' -- hack e2e/chaos e2e/workload operator/internal/agent | grep '\.go$$' | xargs -n1 dirname | sort -u); \
	base=$$([ '$(RACE)' != changed ] || hack/base); \
	if [ -n "$$base" ]; then for package in $$packages; do git diff --quiet "$$base" -- $$package go.mod || echo $$package; done; else echo "$$packages"; fi | \
	  sed 's|^|./|' | CGO_ENABLED=1 xargs --no-run-if-empty go test -timeout 20m -race $(GO_TEST_FLAGS)

.PHONY: e2e
e2e: images ## tests on a kind cluster of their own; E2E_FILTER=short runs more of them, E2E_FILTER= all in their long form, KEEP=1 leaves the cluster
	@CLUSTER=$(E2E_CLUSTER) FILTER='$(E2E_FILTER)' hack/e2e -timeout $(if $(filter short,$(E2E_FILTER)),70m,150m) $(GO_TEST_FLAGS) $(ARGS)

.PHONY: e2e-clusters
e2e-clusters: images ## tests on a cluster with IPv6 alone, and on one with both families whose NetworkPolicies are enforced
	@CLUSTER=$(CLUSTERS_CLUSTER) hack/e2e-clusters $(ARGS)

.PHONY: e2e-release
e2e-release: release ## a release installed on a kind cluster from build/distribution alone, over a registry on this machine
	@CLUSTER=$(RELEASE_CLUSTER) hack/e2e-release

# On this machine where its kernel has SoftRoCE, and otherwise with workers in QEMU guests.
.PHONY: e2e-softroce
e2e-softroce: images ## tests of pools over RDMA, in unprivileged pods on a kind cluster with SoftRoCE: SOFTROCE_WORKERS=2 for RDMA between two nodes, and in their own network with policies enforced
	@CLUSTER=$(SOFTROCE_CLUSTER) WORKERS=$(SOFTROCE_WORKERS) hack/e2e-softroce $(ARGS)

.PHONY: lint
lint: ## formats, linters, the arrows between rooms
	@hack/check

# The gate leaves tests that did not change to `make test-all`, and on a machine that has checked nothing yet all that did not change.
TIDY ?= .
.PHONY: tidy
tidy: build/asan/build.ninja ## clang-tidy over the data plane; what passed once is skipped. TIDY=gate leaves out what hack/tidy says
	@$(call built,asan) -j $(JOBS) --target proto proto_grpc
	@hack/tidy build/asan $(TIDY)

# Without apps: it finds fault with CLI11, which only they include.
.PHONY: analyze
analyze: build/asan/build.ninja ## the path-sensitive analyzer of clang over the rooms of the data plane
	@$(call built,asan) -j $(JOBS) --target proto proto_grpc
	@hack/tidy build/asan '^dataplane/[^a]' 'clang-analyzer-*'

.PHONY: fmt
fmt: ## put sources into their format
	@git ls-files -z 'dataplane/*.h' 'dataplane/*.cc' | xargs -0 -r clang-format-16 -i
	@git ls-files -z '*.go' ':!api/gen' | xargs -0 -r gofmt -w

.PHONY: generate
generate: ## protobuf, deep copies, CRDs and RBAC from api/
	@api/generate.sh

.PHONY: site
site: ## the documentation as a site, in build/site: a link that leads nowhere fails it
	@hack/site/build

.PHONY: clean
clean: ## remove what was built in the tree; the cache outside it stays
	@rm -rf build bin
