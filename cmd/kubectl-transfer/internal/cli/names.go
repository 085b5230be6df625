// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// A kind is one that people name on the command line.
type kind string

const (
	claims       kind = "pvc"
	requests     kind = "ntr"
	approvals    kind = "nta"
	statefulSets kind = "statefulset"
	// volumes stand alone: they have no namespace.
	volumes kind = "pv"
)

var kindNames = map[kind][]string{
	claims:       {"pvc", "persistentvolumeclaim", "persistentvolumeclaims"},
	requests:     {"ntr", "namespacetransferrequest", "namespacetransferrequests", "namespacetransferrequest." + v1alpha1.GroupName},
	approvals:    {"nta", "namespacetransferapproval", "namespacetransferapprovals", "namespacetransferapproval." + v1alpha1.GroupName},
	statefulSets: {"statefulset", "statefulsets", "sts", "statefulset.apps"},
}

// name is one object on the command line.
type name struct {
	kind kind
	types.NamespacedName
}

// String is how to write a name so that it is understood in any namespace.
func (n name) String() string { return claimArg(n.kind, n.NamespacedName) }

func claimArg(k kind, n types.NamespacedName) string {
	return n.Namespace + "/" + string(k) + "/" + n.Name
}

// arg is how to write a claim.
func arg(n types.NamespacedName) string { return claimArg(claims, n) }

// parseName reads [[NAMESPACE/]KIND/]NAME, of one of the kinds. The first kind
// is the one where none is written.
func parseName(text, namespace string, kinds ...kind) (name, error) {
	parts := strings.Split(text, "/")
	n := name{kinds[0], types.NamespacedName{Namespace: namespace, Name: parts[len(parts)-1]}}
	if len(parts) > 3 || slices.Contains(parts, "") {
		return name{}, fmt.Errorf("%q is not a name; write %s", text, forms(kinds))
	}
	if len(parts) == 3 {
		n.Namespace = parts[0]
	}
	if len(parts) > 1 {
		written := parts[len(parts)-2]
		i := slices.IndexFunc(kinds, func(k kind) bool { return slices.Contains(kindNames[k], strings.ToLower(written)) })
		if i < 0 {
			if len(parts) == 2 {
				return name{}, fmt.Errorf("%q does not say of what kind it is; for the claim of namespace %s write %s/pvc/%s", text, written, written, n.Name)
			}
			return name{}, fmt.Errorf("%q is of no kind that is known here; write %s", text, forms(kinds))
		}
		n.kind = kinds[i]
	}
	return n, nil
}

func forms(kinds []kind) string {
	var all []string
	for _, k := range kinds {
		all = append(all, "[NAMESPACE/]"+string(k)+"/NAME")
	}
	return strings.Join(all, " or ")
}

// parseClaim reads a claim's name.
func parseClaim(text, namespace string) (types.NamespacedName, error) {
	n, err := parseName(text, namespace, claims)
	return n.NamespacedName, err
}
