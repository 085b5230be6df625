#!/usr/bin/env bash
# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# Writes everything that is generated from the API types and from .proto files.
# The tools are found by PATH: run it by make generate. It works on the tree it
# stands in, so that a copy of the repository can be generated too.

set -euo pipefail
cd "$(dirname "$0")/.."

module=$(go list -m)
header=release-tools/boilerplate.go.txt
api=pkg/apis/transfer/v1alpha1
client=$module/pkg/client

# Folders that hold nothing but generated files are replaced as a whole, so that
# nothing stays of a type that is gone, and only once all went well.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir "$out/client" "$out/crds"

deepcopy-gen --go-header-file "$header" --output-file zz_generated.deepcopy.go "./$api"

controller-gen crd paths="./$api" output:crd:dir="$out/crds"

applyconfiguration-gen --go-header-file "$header" \
  --output-dir "$out/client/applyconfiguration" --output-pkg "$client/applyconfiguration" \
  "./$api"
client-gen --go-header-file "$header" \
  --output-dir "$out/client/clientset" --output-pkg "$client/clientset" \
  --clientset-name versioned --apply-configuration-package "$client/applyconfiguration" \
  --input-base "$module/pkg/apis" --input transfer/v1alpha1
lister-gen --go-header-file "$header" \
  --output-dir "$out/client/listers" --output-pkg "$client/listers" \
  "./$api"
informer-gen --go-header-file "$header" \
  --output-dir "$out/client/informers" --output-pkg "$client/informers" \
  --versioned-clientset-package "$client/clientset/versioned" \
  --listers-package "$client/listers" \
  "./$api"

release-tools/protos.sh
buf generate --path pkg --config release-tools/buf.yaml --template release-tools/buf.gen.yaml

chmod -R a+rX "$out"
rm -rf pkg/client deploy/kubernetes/crds
mkdir -p deploy/kubernetes
mv "$out/client" pkg/client
mv "$out/crds" deploy/kubernetes/crds
