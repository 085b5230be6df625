// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// FuzzAnnotations: whatever stands in the annotations of class, claim and
// volume, a volume leaves its claim only where nothing of it speaks against that,
// and what is said about it is fit for a condition.
func FuzzAnnotations(f *testing.F) {
	f.Add("true", "", "none", "prod", strings.Repeat("long", 10_000))
	f.Fuzz(func(t *testing.T, allow, mayLeave, linkage, secretNamespace, transferredTo string) {
		for _, s := range []string{allow, mayLeave, linkage, secretNamespace, transferredTo} {
			if !utf8.ValidString(s) {
				t.Skip("the API server takes UTF-8 only")
			}
		}
		annotated := func() *world {
			w := newWorld(t)
			w.ask(receiver)
			w.annotate(class, v1alpha1.AnnotationAllow, allow)
			w.annotate(class, v1alpha1.AnnotationSnapshotLinkage, linkage)
			w.annotate(source, v1alpha1.AnnotationAllow, mayLeave)
			w.annotate(volume, "volume.kubernetes.io/provisioner-deletion-secret-namespace", secretNamespace)
			w.annotate(source, v1alpha1.AnnotationTransferredTo, transferredTo)
			return w
		}
		w := annotated()
		w.run("")
		l, _ := driver.ParseLinkage(linkage)
		if inFlightNow(w) && (allow != "true" || mayLeave == "false" || l == driver.LinkageChain || secretNamespace == source.namespace) {
			t.Errorf("the volume left its claim")
		}

		w = annotated()
		w.edit(source, "status: {phase: Lost}")
		w.run("")
		r := get[*v1alpha1.NamespaceTransferRequest](w.objects, request)
		if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred); c == nil || c.Reason != string(protocol.ReasonSourceLost) {
			t.Errorf("of a claim that is Lost is said: %v", c)
		}
	})
}

func (w *world) annotate(i id, key, value string) {
	o := w.objects[i].DeepCopyObject().(object)
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	o.SetAnnotations(annotations)
	w.put(i, o)
}
