// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transferpb is generated from transfer.proto, the service that a CSI
// driver may serve to have a say in transfers of its volumes.
package transferpb
