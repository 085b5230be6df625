// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// extent says what to list: what may use or tie volumes that come from a
// namespace. Not live, it is served from the API server's cache as it stands,
// which is good enough to say no; live, it is not older than the call.
type extent struct {
	namespace string
	live      bool
}

func (e extent) options() metav1.ListOptions {
	if e.live {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{ResourceVersion: "0"}
}

// surroundings are what lies around the volumes that come from a namespace. They
// are read in one go and serve all transfers from there.
type surroundings struct {
	// terminating is true where the namespace is terminating or gone, and pods
	// maps its claims to the scheduled pods that name them. Live only: otherwise
	// the watches tell.
	terminating bool
	pods        map[string][]string
	// attachments maps volumes to their VolumeAttachments.
	attachments map[string][]protocol.Attachment
	// snapshots of the namespace, by the claim they are made from.
	snapshots map[string][]protocol.Snapshot
	// groups of the namespace that are still being made.
	groups []openGroup
	// contents maps volume handles to the snapshots and group snapshots of them.
	contents, groupContents map[string][]protocol.Snapshot
}

// openGroup is a group snapshot whose members are chosen by the labels of claims.
type openGroup struct {
	snapshot protocol.Snapshot
	selector labels.Selector
}

// reader reads surroundings.
type reader struct {
	Clients
	driver string
	// attaches reports whether the driver's volumes are attached to nodes.
	attaches func() bool
	// noSnapshots is true where there was no snapshot API the last time.
	noSnapshots atomic.Bool
}

func (r *reader) read(ctx context.Context, e extent) (*surroundings, error) {
	s := &surroundings{}
	first := []part{{"VolumeSnapshots of namespace " + e.namespace, r.snapshots}}
	if e.live {
		first = append(first, part{"Namespace " + e.namespace, r.namespace}, part{"Pods of namespace " + e.namespace, r.pods})
	}
	if r.attaches() {
		first = append(first, part{"VolumeAttachments", r.attachments})
	}
	more := []part{
		{"VolumeGroupSnapshots of namespace " + e.namespace, r.groups},
		{"VolumeSnapshotContents", r.contents},
		{"VolumeGroupSnapshotContents", r.groupContents},
	}
	// Without VolumeSnapshots there is nothing of the others. Where the API was
	// absent the last time, it is asked first whether it still is.
	if !r.noSnapshots.Load() {
		first, more = append(first, more...), nil
	}
	if err := s.read(ctx, e, first); err != nil || r.noSnapshots.Load() {
		return s, err
	}
	return s, s.read(ctx, e, more)
}

// part is one of the reads that surroundings are made of.
type part struct {
	what string
	read func(context.Context, *surroundings, extent) error
}

// read does the parts at the same time.
func (s *surroundings) read(ctx context.Context, e extent, parts []part) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		g.Go(func() error {
			if err := p.read(ctx, s, e); err != nil {
				return fmt.Errorf("reading %s: %w", p.what, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (r *reader) namespace(ctx context.Context, s *surroundings, e extent) (err error) {
	s.terminating, err = r.terminating(ctx, e.namespace)
	return err
}

// terminating reports whether a namespace is terminating or gone.
func (r *reader) terminating(ctx context.Context, name string) (bool, error) {
	ns, err := orNil(r.Core.Namespaces().Get(ctx, name, metav1.GetOptions{}))
	return err == nil && (ns == nil || ns.DeletionTimestamp != nil), err
}

func (r *reader) pods(ctx context.Context, s *surroundings, e extent) error {
	list, err := r.Core.Pods(e.namespace).List(ctx, e.options())
	if err != nil {
		return err
	}
	s.pods = map[string][]string{}
	for i := range list.Items {
		for _, claim := range protocol.ClaimsOf(&list.Items[i]) {
			s.pods[claim] = append(s.pods[claim], list.Items[i].Name)
		}
	}
	return nil
}

func (r *reader) attachments(ctx context.Context, s *surroundings, e extent) error {
	list, err := r.Storage.VolumeAttachments().List(ctx, e.options())
	if err != nil {
		return err
	}
	s.attachments = map[string][]protocol.Attachment{}
	for _, a := range list.Items {
		if name := ptr.Deref(a.Spec.Source.PersistentVolumeName, ""); name != "" && a.Spec.Attacher == r.driver {
			s.attachments[name] = append(s.attachments[name], protocol.Attachment{Name: a.Name, Node: a.Spec.NodeName})
		}
	}
	return nil
}

func (r *reader) snapshots(ctx context.Context, s *surroundings, e extent) error {
	list, err := r.Snapshots.VolumeSnapshots(e.namespace).List(ctx, e.options())
	r.noSnapshots.Store(apierrors.IsNotFound(err))
	if err != nil {
		return unlessAbsent(err)
	}
	s.snapshots = map[string][]protocol.Snapshot{}
	for _, v := range list.Items {
		if claim := ptr.Deref(v.Spec.Source.PersistentVolumeClaimName, ""); claim != "" {
			ready := v.Status != nil && ptr.Deref(v.Status.ReadyToUse, false)
			s.snapshots[claim] = append(s.snapshots[claim], protocol.Snapshot{Kind: "VolumeSnapshot", Namespace: v.Namespace, Name: v.Name, Ready: ready})
		}
	}
	return nil
}

func (r *reader) groups(ctx context.Context, s *surroundings, e extent) error {
	list, err := r.GroupSnapshots.VolumeGroupSnapshots(e.namespace).List(ctx, e.options())
	if err != nil {
		return unlessAbsent(err)
	}
	for _, g := range list.Items {
		if g.Spec.Source.Selector == nil || g.Status != nil && ptr.Deref(g.Status.ReadyToUse, false) {
			continue
		}
		// The group controller looks at matchLabels alone.
		selector := labels.SelectorFromSet(g.Spec.Source.Selector.MatchLabels)
		s.groups = append(s.groups, openGroup{protocol.Snapshot{Kind: "VolumeGroupSnapshot", Namespace: g.Namespace, Name: g.Name}, selector})
	}
	return nil
}

func (r *reader) contents(ctx context.Context, s *surroundings, e extent) error {
	list, err := r.Snapshots.VolumeSnapshotContents().List(ctx, e.options())
	if err != nil {
		return unlessAbsent(err)
	}
	s.contents = map[string][]protocol.Snapshot{}
	for _, c := range list.Items {
		if handle := ptr.Deref(c.Spec.Source.VolumeHandle, ""); handle != "" && c.Spec.Driver == r.driver {
			ref, ready := c.Spec.VolumeSnapshotRef, c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false)
			s.contents[handle] = append(s.contents[handle], protocol.Snapshot{Kind: "VolumeSnapshot", Namespace: ref.Namespace, Name: ref.Name, Ready: ready})
		}
	}
	return nil
}

func (r *reader) groupContents(ctx context.Context, s *surroundings, e extent) error {
	list, err := r.GroupSnapshots.VolumeGroupSnapshotContents().List(ctx, e.options())
	if err != nil {
		return unlessAbsent(err)
	}
	s.groupContents = map[string][]protocol.Snapshot{}
	for _, c := range list.Items {
		if c.Spec.Driver != r.driver {
			continue
		}
		ref, ready := c.Spec.VolumeGroupSnapshotRef, c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false)
		for _, handle := range c.Spec.Source.VolumeHandles {
			s.groupContents[handle] = append(s.groupContents[handle], protocol.Snapshot{Kind: "VolumeGroupSnapshot", Namespace: ref.Namespace, Name: ref.Name, Ready: ready})
		}
	}
	return nil
}

// unlessAbsent takes an API that is not installed for one that has nothing. It is
// found out by every list anew, so that one installed later counts.
func unlessAbsent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// handles maps the driver's volume handles to the volumes that have them.
func (r *reader) handles(ctx context.Context, e extent) (map[string][]string, error) {
	list, err := r.Core.PersistentVolumes().List(ctx, e.options())
	if err != nil {
		return nil, fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	byHandle := map[string][]string{}
	for _, pv := range list.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == r.driver {
			byHandle[pv.Spec.CSI.VolumeHandle] = append(byHandle[pv.Spec.CSI.VolumeHandle], pv.Name)
		}
	}
	return byHandle, nil
}
