#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Usage: package.sh VERSION DIR [OS_ARCH...]
#
# Builds the archives of the kubectl plugin into DIR, which must not have any yet,
# and beside them the manifest for krew with their checksums. Platforms are those
# of the template, or those given, for a try: the others then keep their
# placeholders.

set -euo pipefail
version=$1 out=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/../.."
template=deploy/krew/transfer.yaml
[[ $# -gt 0 ]] || mapfile -t platforms < <(sed -nE 's/.*\$\{SHA256_(.*)\}.*/\1/p' "$template")
[[ $# -eq 0 ]] || platforms=("$@")

mkdir -p "$out"
substitutions=(-e "s|\${VERSION}|$version|" -e "s|\${URL}|https://github.com/csi-transfer/csi-transfer/releases/download/$version|")
for platform in "${platforms[@]}"; do
  os=${platform%_*} arch=${platform#*_} dir=$(mktemp -d)
  program=kubectl-transfer
  [[ $os != windows ]] || program+=.exe
  (cd cmd/kubectl-transfer && CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$dir/$program" .)
  cp LICENSE cmd/kubectl-transfer/kubectl_complete-transfer "$dir"
  archive=$out/kubectl-transfer_$platform.tar.gz
  # The same archive from the same source, whenever it is made.
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$dir" -c . | gzip -n >"$archive"
  rm -r "$dir"
  sum=$(sha256sum "$archive")
  substitutions+=(-e "s|\${SHA256_$platform}|${sum%% *}|")
done
sed "${substitutions[@]}" "$template" >"$out/transfer.yaml"
