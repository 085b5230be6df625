#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

source "$(dirname "$0")/common.sh"

unformatted=$(files '*.go' | xargs gofmt -s -l)
if [[ $unformatted ]]; then
  echo "$unformatted" >&2
  echo "verify-gofmt: not formatted; run gofmt -s -w on the files above" >&2
  exit 1
fi
echo "verify-gofmt: ok"
