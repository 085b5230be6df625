#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

source "$(dirname "$0")/common.sh"

vet() {
  # A module that only pins tools has no packages.
  local packages
  packages=$(go list ./...)
  [[ -z $packages ]] || go vet ./...
}
in_modules vet
echo "verify-vet: ok"
