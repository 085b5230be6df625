#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

source "$(dirname "$0")/common.sh"

if ! command -v shellcheck >/dev/null; then
  echo "verify-shellcheck: skipped, shellcheck is not installed"
  exit
fi
files . | xargs grep -lE '^#!.*\b(ba)?sh$' | xargs shellcheck --external-sources --source-path=SCRIPTDIR
echo "verify-shellcheck: ok"
