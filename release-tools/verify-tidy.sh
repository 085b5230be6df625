#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

source "$(dirname "$0")/common.sh"

if ! in_modules go mod tidy -diff; then
  echo "verify-tidy: go.mod or go.sum is not tidy; run go mod tidy where the diff above says" >&2
  exit 1
fi
echo "verify-tidy: ok"
