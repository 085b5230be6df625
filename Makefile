# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

include release-tools/build.make

.PHONY: unit conformance integration test cluster-build demo bench

unit: ## Tests that need no cluster; seconds
	go test ./...

conformance: ## csi-sanity and the transfer contract against the mock driver in every mode, then against wrong drivers
	cd conformance && go test -c -o ../bin/ . && exec ../bin/conformance.test -test.v

integration: cluster-build ## Tests on a real control plane
	cd test/cluster && go test -timeout 10m .
	cd test && go test -timeout 20m ./...

test: unit conformance integration ## All tests that need no kubelet; minutes once built

cluster-build: ## Build the control plane and the CSI sidecars that tests, demo and bench run
	cd test/cluster && go run ./build

# Programs that start clusters are built and run in two steps, because go run
# does not pass on the signal that tells them to clean up.

demo: ## Transfer a claim and give it back, before your eyes; DEMO_KEEP=1 leaves the cluster running
	cd test && go build -o ../bin/ ./demo && exec ../bin/demo

bench: cluster-build ## Measure transfers; BENCH_JSON=file also writes the numbers as JSON
	cd test && go build -o ../bin/ ./bench && exec ../bin/bench
