// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	groupsnapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumegroupsnapshot/v1"
	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// look reads what the sidecar's preflight looks at, as far as the user may, and
// notes what that leaves open.
type look struct {
	*session
	// ctx is the command's: a look lasts for a few reads.
	ctx            context.Context
	snapshots      snapshots.SnapshotV1Interface
	groupSnapshots groupsnapshots.GroupsnapshotV1Interface

	o protocol.Observation
	// open is what could not be looked at.
	open []openQuestion
	err  error
}

// openQuestion is what could not be looked at, and why.
type openQuestion struct {
	Because string            `json:"because"`
	Reasons []protocol.Reason `json:"reasons"`
}

// What each read decides.
var (
	decidedByVolume = []protocol.Reason{
		protocol.ReasonVolumeMissing, protocol.ReasonVolumeNotCSI, protocol.ReasonVolumeNotBound, protocol.ReasonVolumeBeingDeleted,
		protocol.ReasonVolumeClaimMismatch, protocol.ReasonVolumeInFlight, protocol.ReasonVolumeJournalUnknown,
		protocol.ReasonVolumeFieldManaged, protocol.ReasonSecretTied, protocol.ReasonAttributeTied,
	}
	decidedByClass = []protocol.Reason{
		protocol.ReasonClassMissing, protocol.ReasonClassOfOtherDriver, protocol.ReasonClassNotAllowed, protocol.ReasonPathTied,
	}
	decidedByDriver = []protocol.Reason{
		protocol.ReasonDriverNotCapable, protocol.ReasonSnapshotsLinked, protocol.ReasonChainLinked,
	}
	// decidedByCall is what a driver may lift, or add, when it is asked.
	decidedByCall = []protocol.Reason{
		protocol.ReasonSecretTied, protocol.ReasonAttributeTied, protocol.ReasonPathTied,
		protocol.ReasonSnapshotsLinked, protocol.ReasonChainLinked, protocol.ReasonDriverRefused,
	}
)

// at goes on after a read. It returns false where the object or what was listed
// is not there for the user, and notes what stays open if that is for want of a
// right.
func (l *look) at(err error, verb string, resource schema.GroupResource, reasons ...protocol.Reason) bool {
	switch {
	case l.err != nil:
		return false
	case err == nil:
		return true
	case apierrors.IsForbidden(err):
		l.open = append(l.open, openQuestion{"you may not " + verb + " " + resource.String(), reasons})
	case !apierrors.IsNotFound(err):
		l.err = fmt.Errorf("%s %s: %w", verb, resource, err)
	}
	return false
}

// around reads everything about a claim that is to move to a namespace, which is
// empty where that is not known.
func (s *session) around(ctx context.Context, source *corev1.PersistentVolumeClaim, to string) (*look, error) {
	l, err := s.newLook(ctx, source, to)
	if err != nil {
		return nil, err
	}
	if source.DeletionTimestamp != nil || source.Status.Phase != corev1.ClaimBound {
		l.o.Volume = &protocol.Volume{} // there is nothing to look at
		return l, nil
	}
	l.volume()
	l.surroundings()
	return l, l.err
}

func (s *session) newLook(ctx context.Context, source *corev1.PersistentVolumeClaim, to string) (*look, error) {
	l := &look{session: s, ctx: ctx}
	var err error
	if l.snapshots, err = snapshots.NewForConfig(s.config); err != nil {
		return nil, err
	}
	if l.groupSnapshots, err = groupsnapshots.NewForConfig(s.config); err != nil {
		return nil, err
	}
	l.o = protocol.Observation{Source: source, Name: types.NamespacedName{Namespace: to}, Facts: &protocol.Facts{}}
	return l, nil
}

// surroundings reads what lies around a volume that has been read.
func (l *look) surroundings() {
	if pv := l.o.Volume.PV; pv != nil && pv.Spec.CSI != nil {
		l.o.Driver.Name = pv.Spec.CSI.Driver
		l.twins(pv)
	}
	l.class()
	l.driver()
	l.pods()
	l.clones()
	l.snapshotsOf()
	l.groupsOf()
}

func (l *look) volume() {
	c := l.o.Source
	pv, err := l.core.CoreV1().PersistentVolumes().Get(l.ctx, c.Spec.VolumeName, metav1.GetOptions{})
	l.o.Volume = &protocol.Volume{Name: c.Spec.VolumeName}
	switch {
	case l.at(err, "get", schema.GroupResource{Resource: "persistentvolumes"}, decidedByVolume...):
		l.o.Volume.PV = pv
	case apierrors.IsForbidden(err):
		l.o.Volume.PV = asTheClaimSays(c)
	}
}

// asTheClaimSays is a volume as far as its claim shows it.
func asTheClaimSays(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{}
	pv.Name = c.Spec.VolumeName
	// Provisioners of volumes that claims ask for leave their name on the claim.
	provisioner := c.Annotations["volume.kubernetes.io/storage-provisioner"]
	pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": provisioner}
	pv.Spec = corev1.PersistentVolumeSpec{
		Capacity:                  c.Status.Capacity,
		AccessModes:               c.Status.AccessModes,
		VolumeMode:                c.Spec.VolumeMode,
		StorageClassName:          ptr.Deref(c.Spec.StorageClassName, ""),
		VolumeAttributesClassName: c.Status.CurrentVolumeAttributesClassName,
		ClaimRef:                  &corev1.ObjectReference{Kind: claimKind, Namespace: c.Namespace, Name: c.Name, UID: c.UID},
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: provisioner}
	pv.Status.Phase = corev1.VolumeBound
	return pv
}

// twins are other volumes on the same storage, which only volumes made by hand
// can have.
func (l *look) twins(pv *corev1.PersistentVolume) {
	if protocol.Dynamic(pv) {
		return
	}
	list, err := l.core.CoreV1().PersistentVolumes().List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", schema.GroupResource{Resource: "persistentvolumes"}, protocol.ReasonVolumeHandleShared) {
		return
	}
	for _, other := range list.Items {
		if csi := other.Spec.CSI; csi != nil && other.Name != pv.Name && csi.Driver == pv.Spec.CSI.Driver && csi.VolumeHandle == pv.Spec.CSI.VolumeHandle {
			l.o.Facts.Twins = append(l.o.Facts.Twins, other.Name)
		}
	}
}

func (l *look) class() {
	if l.o.Volume.PV == nil || l.o.Volume.PV.Spec.StorageClassName == "" {
		return
	}
	class, err := l.core.StorageV1().StorageClasses().Get(l.ctx, l.o.Volume.PV.Spec.StorageClassName, metav1.GetOptions{})
	if l.at(err, "get", schema.GroupResource{Group: storagev1.GroupName, Resource: "storageclasses"}, decidedByClass...) {
		l.o.Facts.Class = class
	}
}

// driver reads what the sidecar has noted of its driver on the CSIDriver object,
// and, unless the driver does not attach, whether the volume is attached.
func (l *look) driver() {
	if l.o.Driver.Name == "" {
		return
	}
	d, err := l.core.StorageV1().CSIDrivers().Get(l.ctx, l.o.Driver.Name, metav1.GetOptions{})
	known := l.at(err, "get", schema.GroupResource{Group: storagev1.GroupName, Resource: "csidrivers"}, decidedByDriver...)
	if l.err != nil {
		return
	}
	if !apierrors.IsForbidden(err) {
		l.capability(d)
	}
	if known && !ptr.Deref(d.Spec.AttachRequired, true) {
		return
	}
	list, err := l.core.StorageV1().VolumeAttachments().List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattachments"}, protocol.ReasonAttached) {
		return
	}
	for _, a := range list.Items {
		if ptr.Deref(a.Spec.Source.PersistentVolumeName, "") == l.o.Volume.Name && a.Spec.Attacher == l.o.Driver.Name {
			l.o.Facts.Attachments = append(l.o.Facts.Attachments, protocol.Attachment{Name: a.Name, Node: a.Spec.NodeName})
		}
	}
}

// capability is what the sidecar of a driver says of it on its CSIDriver object.
func (l *look) capability(d *storagev1.CSIDriver) {
	l.o.Driver.Linkage, _ = driver.ParseLinkage(d.Annotations[v1alpha1.AnnotationSnapshotLinkage])
	l.o.Driver.Advertised = d.Annotations[v1alpha1.AnnotationCapable] == "true"
	_, said := d.Annotations[v1alpha1.AnnotationCapable]
	if _, decided := protocol.LinkageOf(l.o.Driver, l.o.Facts.Class); !decided && !said {
		l.open = append(l.open, openQuestion{"CSIDriver " + l.o.Driver.Name + " has nothing of a csi-transfer sidecar yet", decidedByDriver})
	}
	if slices.Contains(strings.Split(d.Annotations[v1alpha1.AnnotationDriverCalls], ","), "ValidateVolume") {
		l.open = append(l.open, openQuestion{"driver " + l.o.Driver.Name + " has the last word on each volume", decidedByCall})
	}
}

func (l *look) pods() {
	list, err := l.core.CoreV1().Pods(l.o.Source.Namespace).List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", schema.GroupResource{Resource: "pods"}, protocol.ReasonInUse) {
		return
	}
	for i := range list.Items {
		if slices.Contains(protocol.ClaimsOf(&list.Items[i]), l.o.Source.Name) {
			l.o.Facts.Pods = append(l.o.Facts.Pods, list.Items[i].Name)
		}
	}
}

func (l *look) clones() {
	list, err := l.core.CoreV1().PersistentVolumeClaims(l.o.Source.Namespace).List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", claimResource, protocol.ReasonCloneInProgress) {
		return
	}
	for _, c := range list.Items {
		if ref := c.Spec.DataSourceRef; ref != nil && ref.Kind == claimKind && ref.Name == l.o.Source.Name && c.Status.Phase == corev1.ClaimPending {
			l.o.Facts.Clones = append(l.o.Facts.Clones, c.Namespace+"/"+c.Name)
		}
	}
}

func (l *look) snapshotsOf() {
	resource := schema.GroupResource{Group: "snapshot.storage.k8s.io", Resource: "volumesnapshots"}
	list, err := l.snapshots.VolumeSnapshots(l.o.Source.Namespace).List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", resource, protocol.ReasonSnapshotInProgress, protocol.ReasonSnapshotsLinked) {
		return
	}
	for _, v := range list.Items {
		if ptr.Deref(v.Spec.Source.PersistentVolumeClaimName, "") == l.o.Source.Name {
			ready := v.Status != nil && ptr.Deref(v.Status.ReadyToUse, false)
			l.o.Facts.Snapshots = append(l.o.Facts.Snapshots, protocol.Snapshot{Kind: "VolumeSnapshot", Namespace: v.Namespace, Name: v.Name, Ready: ready})
		}
	}
	// Those of the same volume that other claims had before.
	if l.o.Volume.PV == nil || l.o.Volume.PV.Spec.CSI == nil {
		return
	}
	resource.Resource = "volumesnapshotcontents"
	contents, err := l.snapshots.VolumeSnapshotContents().List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", resource, protocol.ReasonSnapshotsLinked) {
		return
	}
	for _, c := range contents.Items {
		ref := c.Spec.VolumeSnapshotRef
		if ptr.Deref(c.Spec.Source.VolumeHandle, "") != l.o.Volume.PV.Spec.CSI.VolumeHandle || c.Spec.Driver != l.o.Driver.Name ||
			slices.ContainsFunc(l.o.Facts.Snapshots, func(s protocol.Snapshot) bool { return s.Namespace == ref.Namespace && s.Name == ref.Name }) {
			continue
		}
		ready := c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false)
		l.o.Facts.Snapshots = append(l.o.Facts.Snapshots, protocol.Snapshot{Kind: "VolumeSnapshot", Namespace: ref.Namespace, Name: ref.Name, Ready: ready})
	}
}

// groupsOf looks for group snapshots that are being made and choose the claim.
func (l *look) groupsOf() {
	resource := schema.GroupResource{Group: "groupsnapshot.storage.k8s.io", Resource: "volumegroupsnapshots"}
	list, err := l.groupSnapshots.VolumeGroupSnapshots(l.o.Source.Namespace).List(l.ctx, metav1.ListOptions{})
	if !l.at(err, "list", resource, protocol.ReasonSnapshotInProgress) {
		return
	}
	for _, g := range list.Items {
		if g.Spec.Source.Selector == nil || g.Status != nil && ptr.Deref(g.Status.ReadyToUse, false) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(g.Spec.Source.Selector)
		if err == nil && selector.Matches(labels.Set(l.o.Source.Labels)) {
			l.o.Facts.Snapshots = append(l.o.Facts.Snapshots, protocol.Snapshot{Kind: "VolumeGroupSnapshot", Namespace: g.Namespace, Name: g.Name})
		}
	}
}

// obstacles are what stands in the way, as far as it could be looked at.
func (l *look) obstacles() []*protocol.Refusal {
	return slices.DeleteFunc(protocol.Preflight(l.o), func(r *protocol.Refusal) bool {
		return slices.ContainsFunc(l.open, func(q openQuestion) bool { return slices.Contains(q.Reasons, r.Reason) })
	})
}
