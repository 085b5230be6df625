#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Every source file must start with the copyright and licence lines.

source "$(dirname "$0")/common.sh"

# Shebang and build constraint come before it.
header='\A(#!.*\n|//go:build .*\n// \+build .*\n\n)?(//|#) Copyright The csi-transfer Authors\.\n(//|#) SPDX-License-Identifier: Apache-2\.0\n'
missing=$(files '*.go' '*.proto' '*.sh' '*.make' Makefile .ci/run | xargs grep -LPz "$header" || true)
if [[ $missing ]]; then
  echo "$missing" >&2
  echo "verify-boilerplate: no licence header as in release-tools/boilerplate.go.txt in the files above" >&2
  exit 1
fi
echo "verify-boilerplate: ok"
