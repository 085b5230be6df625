// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// refusal is one reason for which a transfer does not start.
type refusal struct {
	reason protocol.Reason
	// id is the requirement that the refusal meets, or the situation in
	// docs/reliability.md that it is for, where there is one.
	id string
	// arrange makes the claims and whatever is wrong with them. Request and
	// approval come after it.
	arrange func(s *scene)
	// says is what the message must name.
	says []string
	// remedy does what the message tells, where that is possible. Then the
	// transfer must complete.
	remedy func(s *scene)
	// frail: it takes a controller manager that can be frozen.
	frail bool
}

// refusals are about the giving claim, its volume, its class and its driver, and
// about the receiving claim, in the order of protocol.Reasons.
var refusals = []refusal{
	{
		reason:  protocol.ReasonSourceNotFound,
		arrange: func(s *scene) { s.receive() },
		says:    []string{"PersistentVolumeClaim {giver}/data does not exist"},
		remedy: func(s *scene) {
			source := s.source()
			// An approval never covers a claim that is younger.
			s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
			s.approve(source)
		},
	},
	{
		reason:  protocol.ReasonSourceNotBound,
		arrange: func(s *scene) { s.newClass(); s.claim(s.giver, "data", on(s.giver+"-late")); s.receive() },
		says:    []string{"PersistentVolumeClaim {giver}/data is not Bound"},
		remedy:  func(s *scene) { s.static("late", s.giver, "data") },
	},
	{
		reason: protocol.ReasonSourceBeingDeleted,
		arrange: func(s *scene) {
			s.source()
			s.pod(s.giver, "user", "data")
			s.deleteClaim(s.giver, "data", false)
			s.receive()
		},
		says: []string{"PersistentVolumeClaim {giver}/data is being deleted"},
	},
	{
		reason: protocol.ReasonSourceLost,
		arrange: func(s *scene) {
			s.giveFirst(s.source())
			must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, "first", v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
			s.receive()
		},
		says: []string{"PersistentVolumeClaim {giver}/data", "was transferred to {receiver}/first"},
	},
	{
		reason: protocol.ReasonSourceOptedOut, id: "R9",
		arrange: func(s *scene) {
			s.source(func(c *corev1.PersistentVolumeClaim) {
				c.Annotations = map[string]string{v1alpha1.AnnotationAllow: "false"}
			})
			s.receive()
		},
		says:   []string{"PersistentVolumeClaim {giver}/data", v1alpha1.AnnotationAllow},
		remedy: func(s *scene) { s.patchClaim(s.giver, "data", annotation(v1alpha1.AnnotationAllow, "")) },
	},
	{
		reason: protocol.ReasonSourceOwnedByPod,
		arrange: func(s *scene) {
			owner := s.pod(s.giver, "owner", "other")
			s.source(func(c *corev1.PersistentVolumeClaim) {
				c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID}}
			})
			s.receive()
		},
		says: []string{"PersistentVolumeClaim {giver}/data", "pod owner"},
	},
	{
		reason: protocol.ReasonSourceFinalizer, id: "S36",
		arrange: func(s *scene) {
			s.source(func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"example.com/backup"} })
			s.receive()
		},
		says:   []string{"PersistentVolumeClaim {giver}/data", "example.com/backup", "--allowed-claim-finalizers"},
		remedy: func(s *scene) { s.patchClaim(s.giver, "data", `{"metadata":{"finalizers":null}}`) },
	},
	{
		reason: protocol.ReasonResizePending, id: "S49",
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Resizer: true}))
			s.must(s.own.Resizer.Pause())
			s.source()
			s.patchClaim(s.giver, "data", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
			s.receive(size("2Gi"))
		},
		says: []string{"PersistentVolumeClaim {giver}/data asks for 2Gi", "{volume} has 1Gi"},
		remedy: func(s *scene) {
			s.must(s.own.Resizer.Resume())
			must[*corev1.PersistentVolumeClaim](s)(cluster.Wait(s.ctx, s.Cluster, cluster.Claims, s.giver, "data", func(c *corev1.PersistentVolumeClaim) bool {
				return slices.ContainsFunc(c.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
					return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
				})
			}))
			s.lookedAt()
			s.refused(protocol.ReasonResizePending)
			// What kubelet writes when it has grown the file system.
			s.patchClaim(s.giver, "data", `{"status":{"capacity":{"storage":"2Gi"},"conditions":[],"allocatedResourceStatuses":null}}`, "status")
		},
	},
	{
		reason: protocol.ReasonModificationPending,
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Resizer: true}))
			s.must(s.own.Resizer.Pause())
			s.source()
			s.attributesClass()
			s.patchClaim(s.giver, "data", fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, s.class))
			s.receive(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &s.class })
		},
		says:   []string{"PersistentVolumeClaim {giver}/data", `VolumeAttributesClass "{class}"`},
		remedy: func(s *scene) { s.must(s.own.Resizer.Resume()) },
	},
	{
		reason: protocol.ReasonSnapshotInProgress,
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Snapshotter: true}))
			s.must(s.own.Snapshotter.Pause())
			s.source()
			s.snapshot("backup", "data")
			s.receive()
		},
		says:   []string{"VolumeSnapshot {giver}/backup is still being made"},
		remedy: func(s *scene) { s.must(s.own.Snapshotter.Resume()) },
	},
	{
		reason: protocol.ReasonSnapshotInProgress, id: "S28",
		arrange: func(s *scene) {
			s.must(s.StartSnapshotController(s.ctx))
			s.source(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"app": "db"} })
			s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {namespace: %s, name: all}
spec: {source: {selector: {matchLabels: {app: db}}}}
`, s.giver)))
			s.receive()
		},
		says: []string{"VolumeGroupSnapshot {giver}/all is still being made"},
		remedy: func(s *scene) {
			must[string](s)(s.Kubectl(s.ctx, "delete", "volumegroupsnapshot", "all", "--namespace="+s.giver))
		},
	},
	{
		reason: protocol.ReasonCloneInProgress,
		arrange: func(s *scene) {
			s.newClass(func(c *storagev1.StorageClass) {
				c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			})
			s.claim(s.giver, "copy", cloneOf("data"))
			s.class = className
			s.source()
			s.receive()
		},
		says:   []string{"PersistentVolumeClaim {giver}/data", "{giver}/copy"},
		remedy: func(s *scene) { s.deleteClaim(s.giver, "copy", true) },
	},
	{
		reason: protocol.ReasonInUse, id: "R8",
		arrange: func(s *scene) { s.source(); s.pod(s.giver, "user", "data"); s.receive() },
		says:    []string{"PersistentVolumeClaim {giver}/data", "pod user"},
		remedy:  func(s *scene) { s.deletePod(s.giver, "user") },
	},
	{
		reason: protocol.ReasonAttached,
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{AttachRequired: true}))
			s.source()
			must[*storagev1.VolumeAttachment](s)(s.Client.StorageV1().VolumeAttachments().Create(s.ctx, &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: s.giver},
				Spec: storagev1.VolumeAttachmentSpec{
					Attacher: s.driverName(), NodeName: "node-1",
					Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &s.moving},
				},
			}, metav1.CreateOptions{}))
			s.receive()
		},
		says: []string{"PersistentVolume {volume}", "node node-1", "VolumeAttachment {giver}"},
		remedy: func(s *scene) {
			s.must(s.Client.StorageV1().VolumeAttachments().Delete(s.ctx, s.giver, metav1.DeleteOptions{}))
		},
	},
	{
		reason: protocol.ReasonVolumeMissing, frail: true,
		arrange: func(s *scene) {
			s.source()
			s.freeze()
			s.receive()
			s.kept = s.volume(s.moving)
			s.must(s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, s.moving, metav1.DeleteOptions{}))
			s.patchVolume(s.moving, `{"metadata":{"finalizers":null}}`)
		},
		says: []string{"PersistentVolume {volume} of PersistentVolumeClaim {giver}/data does not exist"},
		remedy: func(s *scene) {
			s.kept.ResourceVersion, s.kept.UID = "", ""
			must[*corev1.PersistentVolume](s)(s.Client.CoreV1().PersistentVolumes().Create(s.ctx, s.kept, metav1.CreateOptions{}))
			s.thaw()
		},
	},
	{
		reason: protocol.ReasonVolumeNotCSI,
		arrange: func(s *scene) {
			pv := s.static("local", s.giver, "data", func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}
			})
			s.source(on(pv.Name))
			s.receive()
		},
		says: []string{"PersistentVolume {volume} is not a CSI volume"},
	},
	{
		reason: protocol.ReasonAwaitingDriverSidecar, id: "C2",
		arrange: func(s *scene) { s.vendor(cluster.DriverOptions{}); s.source(); s.receive() },
		says:    []string{"PersistentVolume {volume}", "driver {driver}"},
		remedy:  func(s *scene) { s.sidecarOf(s.own) },
	},
	{
		reason: protocol.ReasonVolumeNotBound, frail: true,
		arrange: func(s *scene) {
			s.source()
			s.freeze()
			s.receive()
			s.patchVolume(s.moving, `{"status":{"phase":"Pending"}}`, "status")
		},
		says:   []string{"PersistentVolume {volume} is Pending"},
		remedy: func(s *scene) { s.thaw() },
	},
	{
		reason: protocol.ReasonVolumeBeingDeleted,
		arrange: func(s *scene) {
			s.source()
			s.must(s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, s.moving, metav1.DeleteOptions{}))
			s.receive()
		},
		says: []string{"PersistentVolume {volume} is being deleted"},
	},
	{
		reason: protocol.ReasonVolumeClaimMismatch, frail: true,
		arrange: func(s *scene) {
			s.source()
			s.patchVolume(s.moving, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
			s.freeze()
			s.receive()
			s.kept = s.volume(s.moving)
			s.patchVolume(s.moving, `{"spec":{"claimRef":{"uid":"another"}}}`)
		},
		says: []string{"PersistentVolume {volume} is not bound to PersistentVolumeClaim {giver}/data"},
		remedy: func(s *scene) {
			s.patchVolume(s.moving, fmt.Sprintf(`{"spec":{"claimRef":{"uid":%q}}}`, s.kept.Spec.ClaimRef.UID))
			s.thaw()
		},
	},
	{
		reason: protocol.ReasonVolumeJournalUnknown,
		arrange: func(s *scene) {
			s.source()
			s.patchVolume(s.moving, annotation(v1alpha1.AnnotationJournal, "{}"))
			s.receive()
		},
		says: []string{"PersistentVolume {volume}"},
		remedy: func(s *scene) {
			s.patchVolume(s.moving, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.AnnotationJournal))
		},
	},
	{
		reason: protocol.ReasonVolumeHandleShared, id: "S1",
		arrange: func(s *scene) {
			pv := s.static("disk", s.giver, "data")
			twin := s.static("twin", s.giver, "other", func(twin *corev1.PersistentVolume) { twin.Spec.CSI.VolumeHandle = pv.Spec.CSI.VolumeHandle })
			s.source(on(pv.Name))
			s.claim(s.giver, "other", on(twin.Name))
			s.bound(s.giver, "other")
			s.pod(s.giver, "user", "other")
			s.receive()
		},
		says: []string{"PersistentVolume {giver}-twin has the same driver and volume handle as {volume}"},
		remedy: func(s *scene) {
			s.deletePod(s.giver, "user")
			s.deleteClaim(s.giver, "other", true)
			s.must(s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, s.giver+"-twin", metav1.DeleteOptions{}))
		},
	},
	{
		reason: protocol.ReasonVolumeFieldManaged,
		arrange: func(s *scene) {
			s.source()
			s.applyVolume(corev1ac.PersistentVolumeSpec().WithPersistentVolumeReclaimPolicy(corev1.PersistentVolumeReclaimDelete))
			s.receive()
		},
		says:   []string{"spec.persistentVolumeReclaimPolicy of PersistentVolume {volume} is applied by gitops"},
		remedy: func(s *scene) { s.applyVolume(nil) },
	},
	{
		reason: protocol.ReasonSecretTied,
		arrange: func(s *scene) {
			s.newClass(secretOfClaim)
			s.source()
			s.receive()
		},
		says: []string{"PersistentVolume {volume}", "Secret {giver}/key"},
	},
	{
		reason: protocol.ReasonSecretTied, id: "S20",
		arrange: func(s *scene) {
			must[*corev1.Secret](s)(s.Client.CoreV1().Secrets(s.giver).Create(s.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{}))
			s.newClass(func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{
					"csi.storage.k8s.io/provisioner-secret-name":      "key",
					"csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
				}
			})
			s.source()
			s.receive()
		},
		says: []string{"provisioner-deletion-secret-namespace of PersistentVolume {volume} names namespace {giver}"},
	},
	{
		reason: protocol.ReasonAttributeTied, id: "S19",
		arrange: func(s *scene) {
			pv := s.static("disk", s.giver, "data", func(pv *corev1.PersistentVolume) {
				pv.Spec.CSI.VolumeAttributes = map[string]string{"secretNamespace": s.giver}
			})
			s.source(on(pv.Name))
			s.receive()
		},
		says: []string{`volumeAttributes["secretNamespace"]`, "PersistentVolume {volume}", "namespace {giver}"},
	},
	{
		reason: protocol.ReasonPathTied,
		arrange: func(s *scene) {
			s.newClass(func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{"path": "${pvc.namespace}/${pvc.name}"}
			})
			pv := s.static("disk", s.giver, "data")
			s.source(on(pv.Name))
			s.receive()
		},
		says: []string{"parameter path of StorageClass {class}"},
	},
	{
		reason: protocol.ReasonClassMissing, id: "S47",
		arrange: func(s *scene) {
			c := s.newClass()
			s.source()
			s.must(s.Client.StorageV1().StorageClasses().Delete(s.ctx, c.Name, metav1.DeleteOptions{}))
			s.receive()
		},
		says:   []string{"StorageClass {class} of PersistentVolume {volume} does not exist"},
		remedy: func(s *scene) { s.replaceClass(driverName) },
	},
	{
		reason: protocol.ReasonClassOfOtherDriver, id: "C2",
		arrange: func(s *scene) { s.newClass(); s.source(); s.replaceClass("csi.example.com"); s.receive() },
		says:    []string{"StorageClass {class} is of provisioner csi.example.com", "{volume}", "{driver}"},
		remedy:  func(s *scene) { s.replaceClass(driverName) },
	},
	{
		reason: protocol.ReasonClassNotAllowed, id: "R9",
		arrange: func(s *scene) {
			s.newClass(func(c *storagev1.StorageClass) { c.Annotations = nil })
			s.source()
			s.receive()
		},
		says:   []string{"StorageClass {class}", v1alpha1.AnnotationAllow + `: "true"`},
		remedy: func(s *scene) { s.annotateClass(v1alpha1.AnnotationAllow, "true") },
	},
	{
		reason: protocol.ReasonDriverNotCapable, id: "C3",
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--snapshot-linkage=unset"}}))
			s.source()
			s.receive()
		},
		says:   []string{"driver {driver}", v1alpha1.AnnotationSnapshotLinkage},
		remedy: func(s *scene) { s.annotateClass(v1alpha1.AnnotationSnapshotLinkage, "none") },
	},
	{
		reason: protocol.ReasonSnapshotsLinked, id: "R16",
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Snapshotter: true, Flags: []string{"--snapshot-linkage=snapshots"}}))
			s.source()
			s.snapshot("backup", "data")
			s.waitReady(cluster.Snapshots, s.giver, "backup")
			s.receive()
		},
		says:   []string{"PersistentVolume {volume}", "VolumeSnapshot {giver}/backup"},
		remedy: (*scene).deleteSnapshot,
	},
	{
		reason: protocol.ReasonChainLinked, id: "R16",
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--snapshot-linkage=chain"}}))
			s.source()
			s.receive()
		},
		says:   []string{"driver {driver}", "PersistentVolume {volume}"},
		remedy: func(s *scene) { s.annotateClass(v1alpha1.AnnotationSnapshotLinkage, "none") },
	},
	{
		reason: protocol.ReasonDriverRefused, id: "C1",
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Snapshotter: true, Flags: []string{"--transfer-service", "--snapshot-linkage=snapshots"}}))
			// The administrator is wrong: the driver has the last word.
			s.annotateClass(v1alpha1.AnnotationSnapshotLinkage, "none")
			s.source()
			s.snapshot("backup", "data")
			s.waitReady(cluster.Snapshots, s.giver, "backup")
			s.receive()
		},
		says: []string{"driver {driver} refuses PersistentVolume {volume}", "snapshot", "depends on the volume; delete it"},
		// The driver is asked again after a while.
		remedy: (*scene).deleteSnapshot,
	},
	{
		reason: protocol.ReasonDriverRefused, id: "S26",
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--snapshot-linkage=chain"}}))
			s.source()
			s.claim(s.giver, "copy", cloneOf("data"))
			s.bound(s.giver, "copy")
			s.receive()
		},
		says:   []string{"driver {driver} refuses PersistentVolume {volume}"},
		remedy: func(s *scene) { s.deleteClaim(s.giver, "copy", true) },
	},
	{
		reason: protocol.ReasonDriverUnavailable,
		arrange: func(s *scene) {
			s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--fault=ValidateVolume:UNAVAILABLE"}}))
			s.source()
			s.receive()
		},
		says: []string{"driver {driver}", "PersistentVolume {volume}", "ValidateVolume: Unavailable"},
	},
	{
		reason: protocol.ReasonReceivingClaimMissing, id: "R2",
		arrange: func(s *scene) { s.source() },
		says:    []string{"namespace {receiver}", "NamespaceTransferRequest take-data"},
		remedy:  func(s *scene) { s.receive() },
	},
	{
		reason:  protocol.ReasonReceivingClaimAmbiguous,
		arrange: func(s *scene) { s.source(); s.receive(); s.claim(s.receiver, "more", from("take-data")) },
		says:    []string{"PersistentVolumeClaims data, more in namespace {receiver}"},
		remedy:  func(s *scene) { s.deleteClaim(s.receiver, "more", true) },
	},
	{
		reason: protocol.ReasonReceivingClaimBound,
		arrange: func(s *scene) {
			taken := s.static("taken", s.receiver, "data")
			s.source()
			s.receive(on(taken.Name))
			s.bound(s.receiver, "data")
		},
		says:   []string{"PersistentVolumeClaim {receiver}/data is bound to PersistentVolume {giver}-taken"},
		remedy: (*scene).receiveAgain,
	},
	{
		reason: protocol.ReasonReceivingClaimBeingDeleted,
		arrange: func(s *scene) {
			s.source()
			s.receive()
			s.pod(s.receiver, "user", "data")
			s.deleteClaim(s.receiver, "data", false)
		},
		says: []string{"PersistentVolumeClaim {receiver}/data is being deleted"},
		remedy: func(s *scene) {
			s.deletePod(s.receiver, "user")
			s.must(s.WaitGone(s.ctx, cluster.Claims, s.receiver, "data"))
			s.receive()
		},
	},
	mismatch(protocol.ReasonReceivingClaimSelective, "", "spec.selector", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
	}),
	func() refusal {
		r := mismatch(protocol.ReasonReceivingClaimCrossNamespace, "", "spec.dataSourceRef.namespace", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef.Namespace = ptr.To("default")
		})
		r.frail = true
		return r
	}(),
	mismatch(protocol.ReasonVolumeModeMismatch, "", "volumeMode Block", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}),
	mismatch(protocol.ReasonAccessModesMismatch, "", "ReadWriteMany", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}),
	mismatch(protocol.ReasonClassMismatch, "R4", `StorageClass "cheap"`, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr.To("cheap")
	}),
	mismatch(protocol.ReasonAttributesClassMismatch, "R4", `VolumeAttributesClass "cheap"`, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeAttributesClassName = ptr.To("cheap")
	}),
	mismatch(protocol.ReasonCapacityMismatch, "R4", "asks for 512Mi", size("512Mi")),
	mismatch(protocol.ReasonCapacityMismatch, "R4", "asks for 2Gi", size("2Gi")),
}

// mismatch is a receiving claim that is not what the volume is. Its user makes
// it again.
func mismatch(reason protocol.Reason, id, says string, change func(*corev1.PersistentVolumeClaim)) refusal {
	return refusal{
		reason:  reason,
		id:      id,
		arrange: func(s *scene) { s.source(); s.receive(change) },
		says:    []string{"PersistentVolumeClaim {receiver}/data", says},
		remedy:  (*scene).receiveAgain,
	}
}

// TestRefusals: whatever stands in a transfer's way, nothing is changed, both
// sides are told in a sentence what and what to do, and when that is done the
// transfer goes on by itself.
func TestRefusals(t *testing.T) {
	for _, tc := range refusals {
		name := string(tc.reason)
		if tc.id != "" {
			name = tc.id + "_" + name
		}
		t.Run(name, func(t *testing.T) {
			var s *scene
			if tc.frail {
				s = newFrailScene(t)
			} else {
				s = newScene(t)
			}
			tc.arrange(s)
			s.request()
			source, err := s.claims(s.giver).Get(s.ctx, "data", metav1.GetOptions{})
			if err != nil {
				source = nil
			}
			s.approve(source)

			message := s.refused(tc.reason)
			s.contains(message, tc.says...)
			s.contains(message, remedyOf(tc.reason))
			s.contains(s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(tc.reason)), tc.says...)
			if tc.reason != protocol.ReasonReceivingClaimMissing { // which is none of the giver's business
				must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, "give-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(tc.reason)))
			}
			if tc.reason != protocol.ReasonSourceLost {
				s.untouched()
			}

			if tc.remedy == nil {
				return
			}
			tc.remedy(s)
			r := s.transferred()
			pv := s.volume(r.Status.VolumeName)
			if claim := s.bound(s.receiver, "data"); claim.Spec.VolumeName != pv.Name || len(ours(pv.ObjectMeta)) > 0 {
				t.Errorf("the receiving claim has volume %s; volume %s keeps %v", claim.Spec.VolumeName, pv.Name, ours(pv.ObjectMeta))
			}
		})
	}
}

// remedyOf is what the one table of reasons tells the user to do.
func remedyOf(reason protocol.Reason) string {
	i := slices.IndexFunc(protocol.Reasons, func(r protocol.ReasonInfo) bool { return r.Reason == reason })
	return protocol.Reasons[i].Remedy
}

// untouched fails if a sidecar has written to the volume or the claims.
func (s *scene) untouched() {
	s.Helper()
	for _, filter := range []cluster.AuditFilter{
		{Resource: "persistentvolumes", Name: s.moving},
		{Resource: "persistentvolumeclaims", Namespace: s.giver},
		{Resource: "persistentvolumeclaims", Namespace: s.receiver},
	} {
		if filter.Namespace == "" && filter.Name == "" {
			continue // there is no volume yet
		}
		writes, err := s.sidecarWrites(filter)
		s.must(err)
		for _, e := range writes {
			s.Errorf("the sidecar has written: %s %s %s", e.Verb, e.RequestURI, body(e))
		}
	}
}

// giveFirst gives the claim data by another request.
func (s *scene) giveFirst(source *corev1.PersistentVolumeClaim) {
	s.Helper()
	s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name = "first" })
	s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Name, a.Spec.RequestName = "first", "first" })
	s.claim(s.receiver, "first", from("first"))
}

// receiveAgain replaces the receiving claim by one that asks for the right thing.
func (s *scene) receiveAgain() {
	s.Helper()
	s.deleteClaim(s.receiver, "data", true)
	s.receive()
}

func cloneOf(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
	}
}

// secretOfClaim makes csi-provisioner record on each volume a Secret in the
// namespace of its claim.
func secretOfClaim(c *storagev1.StorageClass) {
	c.Parameters = map[string]string{
		"csi.storage.k8s.io/node-stage-secret-name":      "key",
		"csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
	}
}

// replaceClass makes the class of new claims anew, for another provisioner.
func (s *scene) replaceClass(provisioner string) {
	s.Helper()
	classes := s.Client.StorageV1().StorageClasses()
	_ = classes.Delete(s.ctx, s.class, metav1.DeleteOptions{}) // it may be gone
	must[*storagev1.StorageClass](s)(classes.Create(s.ctx, class(s.class, provisioner), metav1.CreateOptions{}))
}

func (s *scene) annotateClass(key, value string) {
	s.Helper()
	must[*storagev1.StorageClass](s)(s.Client.StorageV1().StorageClasses().Patch(s.ctx, s.class, types.MergePatchType, []byte(annotation(key, value)), metav1.PatchOptions{}))
}

// attributesClass makes a VolumeAttributesClass with the name of the class.
func (s *scene) attributesClass() {
	s.Helper()
	must[*storagev1.VolumeAttributesClass](s)(s.Client.StorageV1().VolumeAttributesClasses().Create(s.ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.class},
		DriverName: s.driverName(),
		Parameters: map[string]string{"iops": "100"},
	}, metav1.CreateOptions{}))
}

// applyVolume applies a volume as a GitOps tool does that cares for these fields.
func (s *scene) applyVolume(spec *corev1ac.PersistentVolumeSpecApplyConfiguration) {
	s.Helper()
	must[*corev1.PersistentVolume](s)(s.Client.CoreV1().PersistentVolumes().Apply(s.ctx,
		corev1ac.PersistentVolume(s.moving).WithLabels(map[string]string{"team": "a"}).WithSpec(spec),
		metav1.ApplyOptions{FieldManager: "gitops", Force: true}))
}
