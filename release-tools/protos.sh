#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Puts the .proto files that ours import where buf.yaml looks for them: CSI's, of
# the version that go.mod requires, under the path by which its Go code knows it.

set -euo pipefail
cd "$(dirname "$0")/.."

spec=github.com/container-storage-interface/spec
mkdir -p ".artifacts/proto/$spec"
install -m 644 "$(go list -m -f '{{.Dir}}' "$spec")/csi.proto" ".artifacts/proto/$spec/csi.proto"
