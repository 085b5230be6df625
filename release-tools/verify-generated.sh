#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Generates into a copy of the tree and compares.

source "$(dirname "$0")/common.sh"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
files . | tar -c -T - | tar -x -C "$copy"

"$copy/release-tools/generate.sh"

for dir in pkg deploy; do
  diff -ruN "$dir" "$copy/$dir" || stale=1
done
if [[ ${stale:-} ]]; then
  echo "verify-generated: generated files are stale; run make generate" >&2
  exit 1
fi
echo "verify-generated: ok"
