// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// TestR20_CheckAgrees: check finds beforehand what the sidecar finds once the
// transfer is approved.
func TestR20_CheckAgrees(t *testing.T) {
	s := newScene(t)
	s.newClass(func(c *storagev1.StorageClass) { delete(c.Annotations, v1alpha1.AnnotationAllow) })
	source := s.source(func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationAllow: "false"}
		c.Finalizers = []string{"example.com/backup"}
	})
	s.pod(s.giver, "app", "data")
	clone := s.newClaim("clone", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
		c.Spec.StorageClassName = ptr.To("absent") // so that it stays Pending
	})
	must[*corev1.PersistentVolumeClaim](s)(s.claims(s.giver).Create(s.ctx, clone, metav1.CreateOptions{}))

	admin := s.withKubeconfig(s.Kubeconfig)
	out, code := admin.types("kubectl transfer check prod/pvc/data --to dev -o json")
	var report struct {
		Transferable bool
		Obstacles    []struct{ Reason protocol.Reason }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 1 || report.Transferable {
		t.Fatalf("exit code %d, %v:\n%s", code, err, out)
	}
	var found []protocol.Reason
	for _, o := range report.Obstacles {
		found = append(found, o.Reason)
	}

	s.request()
	s.approve(source)
	message := s.refused(protocol.ReasonSourceOptedOut)
	sidecar := []protocol.Reason{protocol.ReasonSourceOptedOut}
	for _, also := range regexp.MustCompile(`\(also: (.*)\)`).FindAllStringSubmatch(message, -1) {
		for _, reason := range regexp.MustCompile(`, `).Split(also[1], -1) {
			sidecar = append(sidecar, protocol.Reason(reason))
		}
	}
	sidecar = slices.DeleteFunc(sidecar, func(r protocol.Reason) bool { return r == protocol.ReasonReceivingClaimMissing })
	if !slices.Equal(found, sidecar) || len(found) < 5 {
		t.Errorf("check finds %v, the sidecar %v", found, sidecar)
	}
}

// TestR22_Copy: a copy has the content of its source, which does not notice.
func TestR22_Copy(t *testing.T) {
	s := newScene(t)
	source := s.source()
	before := s.volume(source.Spec.VolumeName)
	s.pod(s.giver, "app", "data")
	content := func(pv *corev1.PersistentVolume) string {
		return filepath.Join(s.driver.StateDir, "volumes", pv.Spec.CSI.VolumeHandle, "data", "file")
	}
	s.must(os.WriteFile(content(before), []byte("precious"), 0o600))

	carol := s.person("carol", s.giver+"=edit", s.receiver+"=edit")
	if out, code := carol.types("kubectl transfer copy prod/pvc/data dev/pvc/copied"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	copied := s.volume(s.bound(s.receiver, "copied").Spec.VolumeName)
	if got := string(must[[]byte](s)(os.ReadFile(content(copied)))); got != "precious" {
		t.Errorf("the copy says %q", got)
	}
	after := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.giver).Get(s.ctx, "data", metav1.GetOptions{}))
	if after.UID != source.UID || after.Status.Phase != corev1.ClaimBound || len(ours(after.ObjectMeta)) > 0 {
		t.Errorf("the source is %s and has %v of a transfer", after.Status.Phase, ours(after.ObjectMeta))
	}
	s.owned(before, after)
	left := must[*corev1.PersistentVolumeClaimList](s)(s.claims(s.giver).List(s.ctx, metav1.ListOptions{}))
	for _, c := range left.Items {
		if c.Name != "data" && c.DeletionTimestamp == nil {
			t.Errorf("the clone %s is left behind", c.Name)
		}
	}
}
