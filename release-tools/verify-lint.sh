#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs staticcheck, configured in staticcheck.conf, and buf, configured in
# release-tools/buf.yaml.

source "$(dirname "$0")/common.sh"

in_modules on_packages staticcheck
release-tools/protos.sh
buf lint --config release-tools/buf.yaml
echo "verify-lint: ok"
