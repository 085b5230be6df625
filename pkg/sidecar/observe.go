// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// observe gathers from the caches what concerns one transfer. It returns false
// where that is not complete yet; the transfer is looked at again when it is.
func (c *Controller) observe(key types.NamespacedName) (*protocol.Observation, bool) {
	o := &protocol.Observation{
		Settings:  c.settings,
		Now:       c.now(),
		NotBefore: c.holdoff.notBefore(key),
		Name:      key,
		Request:   get[v1alpha1.NamespaceTransferRequest](c.requests, key),
		Exists:    c.requestExists,
	}
	journal := c.inFlight(o)
	from, to := "", key.Namespace
	switch {
	case journal != nil:
		from, to = journal.Source.Namespace, journal.Claim.Namespace
	case o.Request != nil:
		from = o.Request.Spec.Source.Namespace
	}
	if journal != nil {
		o.Approvals = c.approvalsOf(journal.Source.NamespacedName())
	} else if o.Request != nil {
		o.Approvals = c.approvalsOf(types.NamespacedName{Namespace: from, Name: o.Request.Spec.Source.Name})
	}

	// Nothing of a namespace is read before its users agreed to it.
	if journal == nil && (o.Request == nil || match.Completed(o.Request) || match.Find(o.Request, o.Approvals, nil, c.requestExists).Approval == nil && !started(o.Request)) {
		c.watches.want(c.base, key)
		return o, true
	}
	if !c.watches.want(c.base, key, append(c.extraOf(key), claimsIn(from), podsIn(from), claimsIn(to))...) {
		return nil, false
	}
	if journal != nil {
		o.Source = c.claim(journal.Source.NamespacedName())
		o.Claim = c.claim(journal.Claim.NamespacedName())
	} else {
		source := types.NamespacedName{Namespace: from, Name: o.Request.Spec.Source.Name}
		o.Source = c.claim(source)
		o.Rivals = byIndex[v1alpha1.NamespaceTransferRequest](c.requests, indexBySource, source.String())
	}
	o.Receivers = c.receivers(key)
	return o, true
}

// started reports whether a transfer of the request has begun at some time: then
// it is seen to its end even if its approval is gone.
func started(r *v1alpha1.NamespaceTransferRequest) bool { return r.Status.VolumeName != "" }

// inFlight finds the volume in flight for a request. A former request of the
// same name comes first: its volume has to land before the name is used again.
func (c *Controller) inFlight(o *protocol.Observation) *protocol.Journal {
	var found *protocol.Journal
	for _, pv := range byIndex[corev1.PersistentVolume](c.volumes, indexByRequest, o.Name.String()) {
		j, err := protocol.ParseJournal(pv, c.settings.Driver.Name)
		if err != nil || j == nil || j.Request.NamespacedName() != o.Name {
			continue
		}
		if found == nil || o.Request == nil || j.Request.UID != o.Request.UID {
			found, o.Volume = j, &protocol.Volume{Name: pv.Name, PV: pv}
		}
	}
	return found
}

func (c *Controller) requestExists(ref v1alpha1.RequestReference) bool {
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if r := get[v1alpha1.NamespaceTransferRequest](c.requests, name); r != nil && r.UID == ref.UID {
		return true
	}
	return slices.ContainsFunc(byIndex[corev1.PersistentVolume](c.volumes, indexByRequest, name.String()), func(pv *corev1.PersistentVolume) bool {
		j, err := protocol.ParseJournal(pv, c.settings.Driver.Name)
		return err == nil && j != nil && j.Request.UID == ref.UID
	})
}

// approvalsOf are those that give an object of that name, of any kind.
func (c *Controller) approvalsOf(source types.NamespacedName) []*v1alpha1.NamespaceTransferApproval {
	return byIndex[v1alpha1.NamespaceTransferApproval](c.approvals, indexBySource, source.String())
}

func (c *Controller) claim(key types.NamespacedName) *corev1.PersistentVolumeClaim {
	if w := c.watches.scope(claimsIn(key.Namespace)); w != nil {
		return get[corev1.PersistentVolumeClaim](overlay{w.informer, w.recent}, key)
	}
	return nil
}

func (c *Controller) receivers(request types.NamespacedName) []*corev1.PersistentVolumeClaim {
	if w := c.watches.scope(claimsIn(request.Namespace)); w != nil {
		return byIndex[corev1.PersistentVolumeClaim](overlay{w.informer, w.recent}, indexByDataSource, v1alpha1.RequestKind+"/"+request.Name)
	}
	return nil
}

// readMore reads what Decide asked for. It returns false while the driver is
// still being asked.
func (c *Controller) readMore(ctx context.Context, o *protocol.Observation, r *protocol.Read) (bool, error) {
	if r.Volume != "" && (o.Volume == nil || o.Volume.Name != r.Volume) {
		pv, err := orNil(c.core.PersistentVolumes().Get(ctx, r.Volume, metav1.GetOptions{}))
		if err != nil {
			return false, fmt.Errorf("reading PersistentVolume %s: %w", r.Volume, err)
		}
		o.Volume, o.Facts = &protocol.Volume{Name: r.Volume, PV: pv}, nil
	}
	if !r.Facts {
		return true, nil
	}
	parties := c.partiesOf(o)
	f := &protocol.Facts{Live: r.Live, Class: get[storagev1.StorageClass](overlay{informer: c.classes}, types.NamespacedName{Name: o.Volume.PV.Spec.StorageClassName})}
	// The driver first: it may take its time, and all else is read when it has
	// answered.
	if ready := c.askDriver(o, f, parties); !ready {
		return false, nil
	}
	if r.Live {
		if err := c.readLive(ctx, o, parties); err != nil {
			return false, err
		}
	}
	if err := c.readFacts(ctx, o, f, parties); err != nil {
		return false, err
	}
	o.Facts = f
	return true, nil
}

// parties are who takes part in a transfer, from the journal once it is written.
type parties struct {
	source, request protocol.Ref
	// to is the claim that would receive the volume now.
	to protocol.Ref
	// approval and claim are known from the journal only.
	approval, claim protocol.Ref
}

func (c *Controller) partiesOf(o *protocol.Observation) parties {
	var p parties
	if j, _ := protocol.ParseJournal(o.Volume.PV, c.settings.Driver.Name); j != nil && j.Request.NamespacedName() == o.Name {
		p = parties{source: j.Source, claim: j.Claim, request: j.Request, approval: j.Approval}
	} else {
		p = parties{source: protocol.RefOf(o.Source), request: protocol.RefOf(o.Request)}
	}
	p.to = p.claim
	if len(o.Receivers) == 1 {
		p.to = protocol.RefOf(o.Receivers[0])
	}
	return p
}

// askDriver returns false until the driver has answered.
func (c *Controller) askDriver(o *protocol.Observation, f *protocol.Facts, p parties) bool {
	if p.to != (protocol.Ref{}) {
		l, _ := protocol.LinkageOf(c.settings.Driver, f.Class)
		v, ready := c.asker.volume(c.base, o.Name, o.Volume.PV, p.source, p.to, p.request, l == driver.LinkageSnapshots)
		if !ready {
			return false
		}
		f.Verdict, f.DriverSnapshots = v.verdict, v.snapshots
		if v.err != nil {
			f.DriverError = v.err.Error()
		}
	}
	owner, err, ready := c.asker.owner(o.Name)
	if !ready {
		return false
	}
	f.Owner = owner
	if err != nil {
		f.OwnerError, f.OwnerRefused = err.Error(), status.Code(err) == codes.FailedPrecondition
	}
	return true
}

// readLive replaces the transfer's own objects, which came from caches, by what
// the API server has.
func (c *Controller) readLive(ctx context.Context, o *protocol.Observation, p parties) (err error) {
	if o.Request, err = orNil(c.transfer.NamespaceTransferRequests(o.Name.Namespace).Get(ctx, o.Name.Name, metav1.GetOptions{})); err != nil {
		return fmt.Errorf("reading %s %s: %w", v1alpha1.RequestKind, o.Name, err)
	}
	approval, err := orNil(c.transfer.NamespaceTransferApprovals(p.approval.Namespace).Get(ctx, p.approval.Name, metav1.GetOptions{}))
	if err != nil {
		return fmt.Errorf("reading %s %s: %w", v1alpha1.ApprovalKind, p.approval, err)
	}
	o.Approvals = nil
	if approval != nil {
		o.Approvals = append(o.Approvals, approval)
	}
	// Of a source claim that is there the cache will do: it has shown it Lost, and
	// nothing can use a Lost claim. That one is gone is looked at twice.
	if o.Source == nil || o.Source.UID != p.source.UID {
		if o.Source, err = c.liveClaim(ctx, p.source.NamespacedName()); err != nil {
			return err
		}
	}
	names := sets.New(p.claim.Name)
	for _, claim := range o.Receivers {
		names.Insert(claim.Name)
	}
	o.Receivers, o.Claim = nil, nil
	for name := range names {
		claim, err := c.liveClaim(ctx, types.NamespacedName{Namespace: o.Name.Namespace, Name: name})
		if err != nil {
			return err
		}
		if claim == nil {
			continue
		}
		if name == p.claim.Name {
			o.Claim = claim
		}
		if slices.Contains(dataSource(claim), v1alpha1.RequestKind+"/"+o.Name.Name) {
			o.Receivers = append(o.Receivers, claim)
		}
	}
	return nil
}

func (c *Controller) liveClaim(ctx context.Context, key types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
	claim, err := orNil(c.core.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{}))
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s: %w", key, err)
	}
	return claim, nil
}

// readFacts reads what lies outside the transfer's own objects.
func (c *Controller) readFacts(ctx context.Context, o *protocol.Observation, f *protocol.Facts, p parties) error {
	pv, e := o.Volume.PV, extent{namespace: p.source.Namespace, live: f.Live}
	// A read of a moment ago will do to say that nothing stands in the way yet.
	// What it says does is looked at anew: it may be gone, and have been waited for.
	around, ok := c.surroundings.recent(e)
	if !ok || f.Live || around.concern(f, p.source, pv, o.Source) {
		var err error
		if around, err = c.surroundings.get(ctx, e); err != nil {
			return err
		}
	}
	around.concern(f, p.source, pv, o.Source)
	if f.Live {
		var err error
		if f.ReceivingNamespaceGone, err = c.terminating.get(ctx, o.Name.Namespace); err != nil {
			return fmt.Errorf("reading Namespace %s: %w", o.Name.Namespace, err)
		}
	}

	// The cache will do for claims even when verifying: it has shown the source
	// claim Lost, and so everything that was written to claims of the namespace
	// before. Nothing clones a claim that is Lost.
	if w := c.watches.scope(claimsIn(p.source.Namespace)); w != nil {
		f.Clones = clones(byIndex[corev1.PersistentVolumeClaim](overlay{informer: w.informer}, indexByDataSource, "PersistentVolumeClaim/"+p.source.Name))
	}
	// A pod that the cache still shows counts even when verifying: what comes next
	// tells how it ended.
	if w := c.watches.scope(podsIn(p.source.Namespace)); w != nil {
		if !f.Live {
			f.Pods = nil
		}
		for _, pod := range byIndex[corev1.Pod](overlay{informer: w.informer}, indexByClaim, p.source.Name) {
			f.Pods = append(f.Pods, pod.Name)
		}
	}
	slices.Sort(f.Pods)
	f.Pods = slices.Compact(f.Pods)
	if !c.attaches() {
		f.ForceDeleted, f.ForceDeletedUntil = c.forced.of(p.source.NamespacedName(), c.now())
	}
	if protocol.Dynamic(pv) {
		return nil
	}
	handles, err := c.handles.get(ctx, extent{live: f.Live})
	f.Twins = slices.DeleteFunc(slices.Clone(handles[pv.Spec.CSI.VolumeHandle]), func(name string) bool { return name == pv.Name })
	return err
}

// concern notes what of the surroundings concerns one volume, and reports whether
// there is anything.
func (s *surroundings) concern(f *protocol.Facts, source protocol.Ref, pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	f.SourceNamespaceGone = s.terminating
	f.Pods = slices.Clone(s.pods[source.Name])
	f.Attachments = s.attachments[pv.Name]
	all := slices.Concat(s.snapshots[source.Name], s.contents[pv.Spec.CSI.VolumeHandle], s.groupContents[pv.Spec.CSI.VolumeHandle])
	for _, g := range s.groups {
		if claim != nil && g.selector.Matches(labels.Set(claim.Labels)) {
			all = append(all, g.snapshot)
		}
	}
	f.Snapshots = mergeSnapshots(all)
	return len(f.Pods)+len(f.Attachments)+len(f.Snapshots) > 0
}

// mergeSnapshots makes one of a snapshot and its content. It is ready when both
// say so.
func mergeSnapshots(all []protocol.Snapshot) []protocol.Snapshot {
	slices.SortFunc(all, func(a, b protocol.Snapshot) int {
		return strings.Compare(a.Kind+"/"+a.Namespace+"/"+a.Name, b.Kind+"/"+b.Namespace+"/"+b.Name)
	})
	var merged []protocol.Snapshot
	for _, s := range all {
		if n := len(merged) - 1; n >= 0 && merged[n].Kind == s.Kind && merged[n].Namespace == s.Namespace && merged[n].Name == s.Name {
			merged[n].Ready = merged[n].Ready && s.Ready
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// attaches reports whether volumes of the driver are attached to nodes. One that
// says it needs no attachment has no VolumeAttachments; the field is immutable.
func (c *Controller) attaches() bool {
	d := get[storagev1.CSIDriver](overlay{informer: c.csiDriver}, types.NamespacedName{Name: c.settings.Driver.Name})
	return d == nil || ptr.Deref(d.Spec.AttachRequired, true)
}

// clones are the names of those claims that still wait for their volume.
func clones(claims []*corev1.PersistentVolumeClaim) []string {
	var names []string
	for _, c := range claims {
		if c.Status.Phase == corev1.ClaimPending {
			names = append(names, c.Namespace+"/"+c.Name)
		}
	}
	slices.Sort(names)
	return names
}

// orNil turns a NotFound error into nil.
func orNil[T any](object *T, err error) (*T, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return object, nil
}
