// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// Names that other components own.
const (
	provisionerFinalizer        = "external-provisioner.volume.kubernetes.io/finalizer"
	snapshotSourceFinalizer     = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	boundByController           = "pv.kubernetes.io/bound-by-controller"
	provisionedBy               = "pv.kubernetes.io/provisioned-by"
	preResizeCapacity           = "volume.alpha.kubernetes.io/pre-resize-capacity"
	deletionSecretNamespace     = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	modificationSecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"
)

// harmlessFinalizers are those of Kubernetes and of csi-provisioner that say
// nothing about what is going on. The cloning finalizer is permanent once a
// claim was ever cloned: Pending clones are looked for instead.
var harmlessFinalizers = sets.New(
	"kubernetes.io/pvc-protection",
	"provisioner.storage.kubernetes.io/cloning-protection",
)

// Dynamic reports whether a volume was provisioned by its driver's
// provisioner, so that no second PersistentVolume can stand for it.
func Dynamic(pv *corev1.PersistentVolume) bool { return pv.Annotations[provisionedBy] != "" }

// subject is what the checks look at.
type subject struct {
	*Observation
	pv *corev1.PersistentVolume
	// verify is true while the volume is parked: then the source claim is Lost
	// and the volume Released, as they should be.
	verify bool
}

// A check returns nil where nothing stands in the way.
type check func(s subject) *Refusal

// The checks in the order of the table of reasons. Those before factChecks need
// nothing but the transfer's own objects.
var (
	sourceChecks = []check{sourceState, sourceOptOut, sourceOwner, sourceFinalizers, sourceSize, sourceModification}
	volumeChecks = []check{volumeState, volumeManagers}
	factChecks   = []check{snapshotsPending, clonesPending, pods, forceDeleted, attachments, twins, secrets, attributes, class, path, linkage, verdict}
	claimChecks  = []check{receiver, receiverShape, receiverSize}
)

// preflight returns everything that stands in the way.
func preflight(s subject, groups ...[]check) []*Refusal {
	var all []*Refusal
	for _, c := range slices.Concat(groups...) {
		if r := c(s); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// Preflight returns everything that stands in the way of a transfer that has not
// begun, in the order of the table of reasons, for those who want to know
// beforehand: Decide finds the same. It looks at Source, Volume and Facts, which
// must not be nil, and at the Receivers only where there is a Request.
func Preflight(o Observation) []*Refusal {
	s := subject{Observation: &o, pv: o.Volume.PV}
	if r := sourceState(s); r != nil {
		return []*Refusal{r}
	}
	if r := noCSIVolume(o.Volume, o.Source); r != nil {
		return []*Refusal{r}
	}
	groups := [][]check{sourceChecks, volumeChecks, factChecks}
	if o.Request != nil {
		groups = append(groups, claimChecks)
	}
	return preflight(s, groups...)
}

// noCSIVolume refuses what the other checks cannot look at.
func noCSIVolume(v *Volume, source *corev1.PersistentVolumeClaim) *Refusal {
	switch {
	case v.PV == nil:
		return refuse(ReasonVolumeMissing, "PersistentVolume %s of %s does not exist", v.Name, claimName(source)).watching(watchVolume(v.Name))
	case v.PV.Spec.CSI == nil:
		return refuse(ReasonVolumeNotCSI, "PersistentVolume %s is not a CSI volume", v.Name)
	}
	return nil
}

func claimName(c metav1.Object) string {
	return "PersistentVolumeClaim " + c.GetNamespace() + "/" + c.GetName()
}

func sourceState(s subject) *Refusal {
	c := s.Source
	switch {
	case c.DeletionTimestamp != nil:
		return refuse(ReasonSourceBeingDeleted, "%s is being deleted", claimName(c))
	case s.verify:
		return nil
	case c.Status.Phase == corev1.ClaimLost && TransferredTo(c) != "":
		return refuse(ReasonSourceLost, "%s has lost its volume: it was transferred to %s", claimName(c), TransferredTo(c))
	case c.Status.Phase == corev1.ClaimLost:
		return refuse(ReasonSourceLost, "%s has lost its volume", claimName(c))
	case c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName == "":
		return refuse(ReasonSourceNotBound, "%s is not Bound to a volume", claimName(c))
	}
	return nil
}

// TransferredTo is where a claim says that its volume went, as namespace/name;
// empty for one that says nothing. Its user may have written anything there, so
// that control characters are escaped and it is cut at the length a name can have.
func TransferredTo(c *corev1.PersistentVolumeClaim) string {
	const most = validation.DNS1123LabelMaxLength + len("/") + validation.DNS1123SubdomainMaxLength
	return strings.Trim(strconv.Quote(truncate(c.Annotations[v1alpha1.AnnotationTransferredTo], most)), `"`)
}

func sourceOptOut(s subject) *Refusal {
	if s.Source.Annotations[v1alpha1.AnnotationAllow] == "false" {
		return refuse(ReasonSourceOptedOut, "%s is annotated %s: \"false\"", claimName(s.Source), v1alpha1.AnnotationAllow)
	}
	return nil
}

func sourceOwner(s subject) *Refusal {
	for _, owner := range s.Source.OwnerReferences {
		if owner.Kind == "Pod" && owner.APIVersion == "v1" {
			return refuse(ReasonSourceOwnedByPod, "%s is an ephemeral volume of pod %s", claimName(s.Source), owner.Name)
		}
	}
	return nil
}

func sourceFinalizers(s subject) *Refusal {
	for _, f := range s.Source.Finalizers {
		if f != snapshotSourceFinalizer && !harmlessFinalizers.Has(f) && !slices.Contains(s.AllowedFinalizers, f) {
			return refuse(ReasonSourceFinalizer, "%s carries the finalizer %s", claimName(s.Source), f)
		}
	}
	return nil
}

// sourceSize compares sizes, not conditions alone: a newly bound claim starts
// with the volume's capacity, so kubelet would never grow the file system of a
// volume that moves before it has.
func sourceSize(s subject) *Refusal {
	c, capacity := s.Source, s.pv.Spec.Capacity[corev1.ResourceStorage]
	if asked := c.Spec.Resources.Requests[corev1.ResourceStorage]; asked.Cmp(capacity) > 0 {
		return refuse(ReasonResizePending, "%s asks for %s and its volume %s has %s", claimName(c), asked.String(), s.pv.Name, capacity.String())
	}
	// A Lost claim has no capacity.
	if has, ok := c.Status.Capacity[corev1.ResourceStorage]; (ok || !s.verify) && has.Cmp(capacity) != 0 {
		return refuse(ReasonResizePending, "%s has a capacity of %s and its volume %s has %s", claimName(c), has.String(), s.pv.Name, capacity.String())
	}
	for resource, status := range c.Status.AllocatedResourceStatuses {
		return refuse(ReasonResizePending, "%s has %s in state %s", claimName(c), resource, status)
	}
	for _, condition := range c.Status.Conditions {
		switch condition.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			if condition.Status == corev1.ConditionTrue {
				return refuse(ReasonResizePending, "%s has the condition %s", claimName(c), condition.Type)
			}
		}
	}
	if _, ok := s.pv.Annotations[preResizeCapacity]; ok {
		return refuse(ReasonResizePending, "PersistentVolume %s is being resized", s.pv.Name).watching(watchVolume(s.pv.Name))
	}
	return nil
}

func sourceModification(s subject) *Refusal {
	c := s.Source
	if m := c.Status.ModifyVolumeStatus; m != nil {
		return refuse(ReasonModificationPending, "%s is being modified to VolumeAttributesClass %q", claimName(c), m.TargetVolumeAttributesClassName)
	}
	for _, condition := range c.Status.Conditions {
		switch condition.Type {
		case corev1.PersistentVolumeClaimVolumeModifyingVolume, corev1.PersistentVolumeClaimVolumeModifyVolumeError:
			if condition.Status == corev1.ConditionTrue {
				return refuse(ReasonModificationPending, "%s has the condition %s", claimName(c), condition.Type)
			}
		}
	}
	if asked, has := ptr.Deref(c.Spec.VolumeAttributesClassName, ""), ptr.Deref(s.pv.Spec.VolumeAttributesClassName, ""); asked != has {
		return refuse(ReasonModificationPending, "%s asks for VolumeAttributesClass %q and its volume has %q", claimName(c), asked, has)
	}
	return nil
}

func volumeState(s subject) *Refusal {
	pv := s.pv
	switch {
	case pv.DeletionTimestamp != nil:
		// The binder never binds a claim to it, while a claim that had it can have
		// it back: our finalizer keeps the object until then.
		return refuse(ReasonVolumeBeingDeleted, "PersistentVolume %s is being deleted", pv.Name).watching(watchVolume(pv.Name))
	case s.verify:
		return nil
	case pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Kind == v1alpha1.RequestKind:
		return refuse(ReasonVolumeInFlight, "PersistentVolume %s is in flight for another request", pv.Name).watching(watchVolume(pv.Name))
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != s.Source.UID:
		return refuse(ReasonVolumeClaimMismatch, "PersistentVolume %s is not bound to %s with its UID", pv.Name, claimName(s.Source)).watching(watchVolume(pv.Name))
	case pv.Labels[v1alpha1.LabelInFlight] != "" || pv.Annotations[v1alpha1.AnnotationJournal] != "":
		if r := unknownJournal(pv, s.Driver.Name); r != nil {
			return r
		}
		return refuse(ReasonVolumeInFlight, "PersistentVolume %s is being handed back from another transfer", pv.Name).watching(watchVolume(pv.Name))
	case pv.Status.Phase != corev1.VolumeBound:
		return refuse(ReasonVolumeNotBound, "PersistentVolume %s is %s", pv.Name, pv.Status.Phase).watching(watchVolume(pv.Name))
	}
	return nil
}

// unknownJournal refuses a volume that carries marks of a transfer and no
// journal of this sidecar.
func unknownJournal(pv *corev1.PersistentVolume, driver string) *Refusal {
	switch j, err := ParseJournal(pv, driver); {
	case err != nil:
		return refuse(ReasonVolumeJournalUnknown, "%v", err).watching(watchVolume(pv.Name))
	case j == nil:
		return refuse(ReasonVolumeJournalUnknown, "PersistentVolume %s carries the label %s and no journal", pv.Name, v1alpha1.LabelInFlight).watching(watchVolume(pv.Name))
	}
	return nil
}

// volumeManagers refuses a volume of which another tool applies the fields that
// a transfer changes: it would put them back in the middle.
func volumeManagers(s subject) *Refusal {
	if s.verify {
		return nil
	}
	for _, entry := range s.pv.ManagedFields {
		for _, field := range []string{"claimRef", "persistentVolumeReclaimPolicy"} {
			if entry.Operation == metav1.ManagedFieldsOperationApply && managesSpecField(entry, field) {
				return refuse(ReasonVolumeFieldManaged, "spec.%s of PersistentVolume %s is applied by %s", field, s.pv.Name, entry.Manager).watching(watchVolume(s.pv.Name))
			}
		}
	}
	return nil
}

// managesSpecField reports whether an entry of managedFields covers a field of spec.
func managesSpecField(entry metav1.ManagedFieldsEntry, field string) bool {
	var fields struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}
	_, ok := fields.Spec["f:"+field]
	return ok
}

func snapshotsPending(s subject) *Refusal {
	var names []string
	var watch []WatchRef
	for _, snapshot := range s.Facts.Snapshots {
		if !snapshot.Ready {
			names = append(names, snapshot.describe(s.Source.Namespace))
			watch = append(watch, watchSnapshot(snapshot))
		}
	}
	switch {
	case len(names) > 0:
		return refuse(ReasonSnapshotInProgress, "%s is still being made", list(names)).watching(watch...)
	case slices.Contains(s.Source.Finalizers, snapshotSourceFinalizer):
		return refuse(ReasonSnapshotInProgress, "%s is the source of a snapshot that is still being made", claimName(s.Source))
	}
	return nil
}

// describe names a snapshot of the giver. What belongs to others is not named.
func (s Snapshot) describe(namespace string) string {
	if s.Namespace == namespace {
		return s.Kind + " " + s.Namespace + "/" + s.Name
	}
	return "a " + s.Kind
}

func clonesPending(s subject) *Refusal {
	if len(s.Facts.Clones) > 0 {
		return refuse(ReasonCloneInProgress, "%s is the data source of %s", claimName(s.Source), list(s.Facts.Clones))
	}
	return nil
}

func pods(s subject) *Refusal {
	if len(s.Facts.Pods) > 0 {
		return refuse(ReasonInUse, "%s is used in namespace %s by pod %s", claimName(s.Source), s.Source.Namespace, list(s.Facts.Pods))
	}
	return nil
}

func forceDeleted(s subject) *Refusal {
	if len(s.Facts.ForceDeleted) == 0 {
		return nil
	}
	r := refuse(ReasonPodForceDeleted, "%s may still be used by pod %s of namespace %s, which was deleted by force", claimName(s.Source), list(s.Facts.ForceDeleted), s.Source.Namespace)
	r.Until = s.Facts.ForceDeletedUntil
	return r
}

func attachments(s subject) *Refusal {
	if len(s.Facts.Attachments) == 0 {
		return nil
	}
	var names []string
	var watch []WatchRef
	for _, a := range s.Facts.Attachments {
		names = append(names, fmt.Sprintf("node %s (VolumeAttachment %s)", a.Node, a.Name))
		watch = append(watch, watchAttachment(a.Name))
	}
	return refuse(ReasonAttached, "PersistentVolume %s is attached to %s", s.pv.Name, list(names)).watching(watch...)
}

func twins(s subject) *Refusal {
	if len(s.Facts.Twins) == 0 {
		return nil
	}
	r := refuse(ReasonVolumeHandleShared, "PersistentVolume %s has the same driver and volume handle as %s", list(s.Facts.Twins), s.pv.Name)
	for _, name := range s.Facts.Twins {
		r.watching(watchVolume(name))
	}
	return r
}

// tied reports whether what names the giving namespace is a reason to refuse.
// Within one namespace nothing is left behind, and a driver that vouches for
// the volume has looked.
func (s subject) tied() bool {
	return s.Source.Namespace != s.Name.Namespace && !s.Facts.Verdict.Confirmed
}

func secrets(s subject) *Refusal {
	if !s.tied() {
		return nil
	}
	csi := s.pv.Spec.CSI
	for _, secret := range []struct {
		field string
		ref   *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", csi.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", csi.ControllerExpandSecretRef},
		{"nodeStageSecretRef", csi.NodeStageSecretRef},
		{"nodePublishSecretRef", csi.NodePublishSecretRef},
		{"nodeExpandSecretRef", csi.NodeExpandSecretRef},
	} {
		if secret.ref != nil && secret.ref.Namespace == s.Source.Namespace {
			return refuse(ReasonSecretTied, "spec.csi.%s of PersistentVolume %s names Secret %s/%s", secret.field, s.pv.Name, secret.ref.Namespace, secret.ref.Name).polledIf(s.Driver.Validate)
		}
	}
	for _, key := range []string{deletionSecretNamespace, modificationSecretNamespace} {
		if s.pv.Annotations[key] == s.Source.Namespace {
			return refuse(ReasonSecretTied, "annotation %s of PersistentVolume %s names namespace %s", key, s.pv.Name, s.Source.Namespace).polledIf(s.Driver.Validate)
		}
	}
	return nil
}

func attributes(s subject) *Refusal {
	if !s.tied() {
		return nil
	}
	for _, key := range sets.List(sets.KeySet(s.pv.Spec.CSI.VolumeAttributes)) {
		value := s.pv.Spec.CSI.VolumeAttributes[key]
		if value == s.Source.Namespace || strings.HasPrefix(value, s.Source.Namespace+"/") {
			return refuse(ReasonAttributeTied, "spec.csi.volumeAttributes[%q] of PersistentVolume %s names namespace %s", key, s.pv.Name, s.Source.Namespace).polledIf(s.Driver.Validate)
		}
	}
	return nil
}

func class(s subject) *Refusal {
	name := s.pv.Spec.StorageClassName
	switch c := s.Facts.Class; {
	case name == "":
		return refuse(ReasonClassMissing, "PersistentVolume %s has no StorageClass", s.pv.Name)
	case c == nil:
		return refuse(ReasonClassMissing, "StorageClass %s of PersistentVolume %s does not exist", name, s.pv.Name)
	case c.Provisioner != s.Driver.Name:
		return refuse(ReasonClassOfOtherDriver, "StorageClass %s is of provisioner %s and PersistentVolume %s of driver %s", name, c.Provisioner, s.pv.Name, s.Driver.Name)
	case c.Annotations[v1alpha1.AnnotationAllow] != "true":
		return refuse(ReasonClassNotAllowed, "StorageClass %s is not annotated %s: \"true\"", name, v1alpha1.AnnotationAllow)
	}
	return nil
}

// path refuses classes whose parameters make the backend's path out of the
// claim's name: a new claim of that name would get the directory that moved.
// Parameters that choose a Secret use the same templates and are looked at by
// the secrets check, on the volume itself.
func path(s subject) *Refusal {
	if s.Facts.Class == nil || s.Facts.Verdict.Confirmed {
		return nil
	}
	for _, key := range sets.List(sets.KeySet(s.Facts.Class.Parameters)) {
		if strings.Contains(s.Facts.Class.Parameters[key], "${pvc.") && !strings.Contains(key, "secret") {
			return refuse(ReasonPathTied, "parameter %s of StorageClass %s is %q", key, s.Facts.Class.Name, s.Facts.Class.Parameters[key]).polledIf(s.Driver.Validate)
		}
	}
	return nil
}

// LinkageOf is how the driver's volumes of a class depend on their snapshots:
// the class overrides the driver, because administrators know the parameters.
// ok is false where neither says that volumes can be transferred.
func LinkageOf(info driver.Info, class *storagev1.StorageClass) (l driver.Linkage, ok bool) {
	if class != nil {
		if value, set := class.Annotations[v1alpha1.AnnotationSnapshotLinkage]; set {
			l, _ = driver.ParseLinkage(value)
			return l, true
		}
	}
	return info.Linkage, info.Advertised
}

func linkage(s subject) *Refusal {
	l, capable := LinkageOf(s.Driver, s.Facts.Class)
	if !capable {
		return refuse(ReasonDriverNotCapable, "driver %s does not advertise %s", s.Driver.Name, v1alpha1.AnnotationSnapshotLinkage)
	}
	if s.Facts.Verdict.Confirmed || verdict(s) != nil {
		return nil // the driver says more
	}
	switch l {
	case driver.LinkageNone:
		return nil
	case driver.LinkageSnapshots:
		var mine []string
		var watch []WatchRef
		others := 0
		for _, snapshot := range s.Facts.Snapshots {
			watch = append(watch, watchSnapshot(snapshot))
			if snapshot.Namespace == s.Source.Namespace {
				mine = append(mine, snapshot.describe(s.Source.Namespace))
			} else {
				others++
			}
		}
		others = max(others, len(s.Facts.DriverSnapshots)-len(mine))
		switch {
		case len(mine) > 0 && others > 0:
			return refuse(ReasonSnapshotsLinked, "PersistentVolume %s is tied to its snapshots: %s, and %d more outside this namespace", s.pv.Name, list(mine), others).watching(watch...).polledIf(s.Driver.ListSnapshots)
		case len(mine) > 0:
			return refuse(ReasonSnapshotsLinked, "PersistentVolume %s is tied to its snapshots: %s", s.pv.Name, list(mine)).watching(watch...).polledIf(s.Driver.ListSnapshots)
		case others > 0:
			return refuse(ReasonSnapshotsLinked, "PersistentVolume %s is tied to its snapshots, of which it has %d", s.pv.Name, others).watching(watch...).polledIf(s.Driver.ListSnapshots)
		}
		return nil
	}
	return refuse(ReasonChainLinked, "driver %s ties PersistentVolume %s to snapshots, clones and their sources", s.Driver.Name, s.pv.Name).polledIf(s.Driver.Validate)
}

func verdict(s subject) *Refusal {
	if s.Facts.DriverError != "" {
		return refuse(ReasonDriverUnavailable, "driver %s could not be asked about PersistentVolume %s: %s", s.Driver.Name, s.pv.Name, s.Facts.DriverError).polled()
	}
	if len(s.Facts.Verdict.Blockers) == 0 {
		return nil
	}
	var blockers []string
	for _, b := range s.Facts.Verdict.Blockers {
		blockers = append(blockers, fmt.Sprintf("%s %s: %s", b.Type, b.ID, b.Message))
	}
	return refuse(ReasonDriverRefused, "driver %s refuses PersistentVolume %s: %s", s.Driver.Name, s.pv.Name, list(blockers)).polled()
}

func (r *Refusal) polledIf(yes bool) *Refusal {
	r.Poll = r.Poll || yes
	return r
}

// receiver refuses unless exactly one claim is there to receive.
func receiver(s subject) *Refusal {
	switch len(s.Receivers) {
	case 0:
		return refuse(ReasonReceivingClaimMissing, "no PersistentVolumeClaim in namespace %s has %s %s as its spec.dataSourceRef", s.Name.Namespace, v1alpha1.RequestKind, s.Name.Name)
	case 1:
	default:
		var names []string
		for _, c := range s.Receivers {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		return refuse(ReasonReceivingClaimAmbiguous, "PersistentVolumeClaims %s in namespace %s all name %s %s", list(names), s.Name.Namespace, v1alpha1.RequestKind, s.Name.Name)
	}
	switch c := s.Receivers[0]; {
	case c.DeletionTimestamp != nil:
		return refuse(ReasonReceivingClaimBeingDeleted, "%s is being deleted", claimName(c))
	case s.Facts.ReceivingNamespaceGone:
		// The volume would be deleted together with the claim, in a moment.
		return refuse(ReasonReceivingClaimBeingDeleted, "%s is being deleted together with its namespace", claimName(c))
	case c.Spec.DataSourceRef.Namespace != nil:
		return refuse(ReasonReceivingClaimCrossNamespace, "%s sets spec.dataSourceRef.namespace", claimName(c))
	// The binder sets volumeName together with the annotation; without it the
	// user did.
	case c.Spec.VolumeName != "" && (c.Status.Phase == corev1.ClaimBound || c.Annotations[bindCompleted] != ""):
		return refuse(ReasonReceivingClaimBound, "%s is bound to PersistentVolume %s", claimName(c), c.Spec.VolumeName)
	case c.Spec.VolumeName != "" || c.Spec.Selector != nil:
		return refuse(ReasonReceivingClaimSelective, "%s sets spec.volumeName or spec.selector", claimName(c))
	}
	return nil
}

// bindCompleted is set by the binder on a claim it has bound.
const bindCompleted = "pv.kubernetes.io/bind-completed"

func receiverShape(s subject) *Refusal {
	if len(s.Receivers) != 1 {
		return nil
	}
	c, pv := s.Receivers[0], s.pv
	if asked, has := ptr.Deref(c.Spec.VolumeMode, corev1.PersistentVolumeFilesystem), ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem); asked != has {
		return refuse(ReasonVolumeModeMismatch, "%s asks for volumeMode %s and PersistentVolume %s has %s", claimName(c), asked, pv.Name, has)
	}
	for _, mode := range c.Spec.AccessModes {
		if !slices.Contains(pv.Spec.AccessModes, mode) {
			return refuse(ReasonAccessModesMismatch, "%s asks for access mode %s and PersistentVolume %s has %v", claimName(c), mode, pv.Name, pv.Spec.AccessModes)
		}
	}
	if asked := ptr.Deref(c.Spec.StorageClassName, ""); asked != pv.Spec.StorageClassName {
		return refuse(ReasonClassMismatch, "%s asks for StorageClass %q and PersistentVolume %s has %q", claimName(c), asked, pv.Name, pv.Spec.StorageClassName)
	}
	if asked, has := ptr.Deref(c.Spec.VolumeAttributesClassName, ""), ptr.Deref(pv.Spec.VolumeAttributesClassName, ""); asked != has {
		return refuse(ReasonAttributesClassMismatch, "%s asks for VolumeAttributesClass %q and PersistentVolume %s has %q", claimName(c), asked, pv.Name, has)
	}
	return nil
}

func receiverSize(s subject) *Refusal {
	if len(s.Receivers) != 1 {
		return nil
	}
	c, capacity := s.Receivers[0], s.pv.Spec.Capacity[corev1.ResourceStorage]
	if asked := c.Spec.Resources.Requests[corev1.ResourceStorage]; asked.Cmp(capacity) != 0 {
		return refuse(ReasonCapacityMismatch, "%s asks for %s and PersistentVolume %s has %s", claimName(c), asked.String(), s.pv.Name, capacity.String())
	}
	return nil
}
