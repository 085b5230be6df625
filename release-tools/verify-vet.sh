#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

source "$(dirname "$0")/common.sh"

in_modules on_packages go vet
echo "verify-vet: ok"
