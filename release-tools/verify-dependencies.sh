#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# CONTRIBUTING.md must say why each direct dependency and each tool is there.

source "$(dirname "$0")/common.sh"

dependencies() {
  # What is not needed directly has a comment behind the version.
  awk '{ sub(/^require /, "") } NF == 2 && $2 ~ /^v[0-9]/ { print $1 }' go.mod
  go list -f '{{.Module.Path}}' tool 2>/dev/null
}

unexplained=$(in_modules dependencies | grep -v "^$(go list -m)" | sort -u | while read -r module; do
  grep -qF "\`$module\`" CONTRIBUTING.md || echo "$module"
done)
if [[ $unexplained ]]; then
  echo "$unexplained" >&2
  echo "verify-dependencies: CONTRIBUTING.md does not say why the modules above are required" >&2
  exit 1
fi
echo "verify-dependencies: ok"
