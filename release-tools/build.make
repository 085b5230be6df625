# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# The targets that do not depend on what the repository is about.

TOOLS   := $(CURDIR)/.artifacts/tools
VERIFY  := $(patsubst release-tools/%.sh,%,$(wildcard release-tools/verify-*.sh))
VERSION := $(shell git describe --tags --always --dirty)

# The same flags for every go command, so that all share one build cache.
export CGO_ENABLED := 0
export GOFLAGS     := $(strip $(shell go env GOFLAGS) -trimpath)
export PATH        := $(TOOLS):$(PATH)

.DEFAULT_GOAL := build
.PHONY: build tools generate verify $(VERIFY) clean help

build: ## Build all commands into bin/
	go build -ldflags "-X main.version=$(VERSION)" -o bin/ ./...

tools: $(TOOLS)/.installed ## Build the pinned tools into .artifacts/tools/

$(TOOLS)/.installed: tools/go.sum tools/buf/go.sum
	cd tools && GOBIN=$(TOOLS) go install tool
	cd tools/buf && GOBIN=$(TOOLS) go install tool
	touch $@

generate: tools ## Regenerate CRDs, clients and protobuf code
	release-tools/generate.sh

verify: $(VERIFY) ## Run every check of release-tools/, each also a target: verify-lint, …

$(VERIFY): tools
	@release-tools/$@.sh

clean: ## Remove what make has built
	rm -rf bin dist .artifacts test/.artifacts test/cluster/.artifacts

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 16
