# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

include release-tools/build.make

PLUGIN := cmd/kubectl-transfer

.PHONY: plugin images unit conformance integration test test-node cluster-node cluster-build demo bench faults races soak explore explore-test fuzz

build: plugin

plugin: ## Build the kubectl plugin, a module of its own, into bin/
	cd $(PLUGIN) && go build -ldflags "-X main.version=$(VERSION)" -o $(CURDIR)/bin/ .

IMAGES    ?= csi-transfer mock-csi-driver
PLATFORMS ?= linux/amd64,linux/arm64

images: ## Build container images into dist/, without a container runtime; IMAGES and PLATFORMS choose
	cd release-tools/images && go build -o ../../bin/ .
	bin/images -version $(VERSION) -platforms $(PLATFORMS) $(IMAGES)

unit: ## Tests that need no cluster; seconds
	go test ./...
	cd $(PLUGIN) && go test ./...
	cd release-tools/images && go test ./...

conformance: ## csi-sanity and the transfer contract against the mock driver in every mode, then against wrong drivers
	cd conformance && go test -c -o ../bin/ . && exec ../bin/conformance.test -test.v

integration: cluster-build ## Tests on a real control plane
	cd test/cluster && go test -timeout 10m -skip Node .
	cd test && go test -timeout 30m $$(go list ./... | grep -v /node$$)

explore-test:
	go test ./pkg/sidecar/protocol -run TestExplore -deeper 1

explore: ## Go every way through a model of the cluster, deep; writes the numbers to docs/reliability.md
	go test -c -o bin/explore ./pkg/sidecar/protocol
	cd pkg/sidecar/protocol && UPDATE_DOCS=1 exec ../../../bin/explore -test.timeout 60m -test.run 'TestExplore|TestSafeguards' -deeper $(or $(DEEPER),3) -record

FUZZTIME ?= 20s

fuzz: ## Fuzz what is parsed from outside, each target for FUZZTIME (20s)
	@set -e; for package in ./pkg/driver ./pkg/sidecar/protocol; do \
		for target in $$(go test -list '^Fuzz' $$package | grep ^Fuzz); do \
			echo "$$package $$target"; go test $$package -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME); \
		done; \
	done

test: unit explore-test conformance integration ## All tests that need no kubelet; minutes once built

test-node: cluster-node ## Tests on a node with a real kubelet; needs the packages containerd and runc
	cd test && go test -c -o ../bin/node.test ./node && cd node && exec env UPDATE_DOCS=1 ../../bin/node.test -test.timeout 25m

cluster-node: cluster-build ## That a node runs pods, and leaves nothing behind
	cd test/cluster && go test -timeout 10m -run Node .

cluster-build: ## Build the control plane and the CSI sidecars that tests, demo and bench run
	cd test/cluster && go run ./build

# Programs that start clusters are built and run in two steps, because go run
# does not pass on the signal that tells them to clean up.

demo: ## Transfer a claim and give it back, before your eyes; DEMO_KEEP=1 leaves the cluster running
	cd test && go build -o ../bin/ ./demo && exec ../bin/demo

bench: cluster-build ## Measure transfers; BENCH_JSON=file also writes the numbers as JSON
	cd test && go build -o ../bin/ ./bench && exec ../bin/bench

# The last line of each is the sum. The numbers are also written into
# docs/reliability.md. A sample of each is among the integration tests.
EXHAUSTIVELY = cd test && go test -c -o ../bin/ ./integration && cd integration && exec env EXHAUSTIVE=1 UPDATE_DOCS=1 ../../bin/integration.test -test.timeout 1h -test.run

faults: cluster-build ## Each call of a transfer to the API server fails in each way; minutes
	$(EXHAUSTIVELY) '^TestFaults$$'

races: cluster-build ## What users and administrators can do, at each write of a transfer; minutes
	$(EXHAUSTIVELY) '^TestRaces$$'

soak: cluster-build ## Random faults and races, as SOAK_N, SOAK_TIME and SOAK_SEED say
	SOAK_N=$${SOAK_N:-1000} SOAK_TIME=$${SOAK_TIME:-10m}; export SOAK_N SOAK_TIME; \
	$(EXHAUSTIVELY) '^TestSoak$$'
