# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash

# Sourced by the scripts beside it. All of them work from the root of the
# repository and on what is, or is about to be, under version control.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# files lists the files that match any of the pathspecs, one a line.
files() {
  git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
    if [[ -f $file ]]; then echo "$file"; fi
  done
}

# modules lists the folders of the repository's Go modules.
modules() {
  files go.mod '**/go.mod' | xargs -n 1 dirname
}

# in_modules runs a command in each module, and fails if it failed in any.
in_modules() {
  local dir failed=0
  for dir in $(modules); do
    (cd "$dir" && "$@") || failed=1
  done
  return "$failed"
}

# on_packages runs a command on the packages of the module in this folder. Left
# out are the generated clients, and test/cluster/kube: a few lines on top of all
# of Kubernetes, which take longer to analyse than everything else together.
on_packages() {
  [[ $(files '*.go') ]] || return 0 # a module that only pins tools
  local packages
  packages=$(go list ./...) || return
  grep -vE '/pkg/client/|/test/cluster/kube$' <<<"$packages" | xargs "$@"
}
