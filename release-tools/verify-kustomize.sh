#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Every kustomization builds.

source "$(dirname "$0")/common.sh"

for file in $(files '**/kustomization.yaml'); do
  kustomize build "$(dirname "$file")" >/dev/null
done
echo "verify-kustomize: ok"
