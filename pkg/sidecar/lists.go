// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"slices"

	volumegroupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	volumesnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// A listing asks for a list of a namespace, or of the cluster where that is
// empty. Not live, it is served from the API server's cache as it stands, which
// is good enough to say no; live, it is not older than the call.
type listing struct {
	namespace string
	live      bool
}

func (l listing) options() metav1.ListOptions {
	if l.live {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{ResourceVersion: "0"}
}

// lists are the reads that one call can do for many transfers.
type lists struct {
	// pods maps the claims of a namespace to the scheduled pods that name them.
	pods *batch[listing, map[string][]string]
	// namespaces are whether a namespace is terminating or gone, always live.
	namespaces *batch[string, bool]
	// attachments maps volumes to their VolumeAttachments.
	attachments *batch[listing, map[string][]protocol.Attachment]
	// handles maps the driver's volume handles to the volumes that have them.
	handles *batch[listing, map[string][]string]
	// snapshots of a namespace, by the claim they are made from.
	snapshots *batch[listing, map[string][]protocol.Snapshot]
	// groups of a namespace that are still being made, whose members are chosen
	// by the labels of claims.
	groups *batch[listing, []group]
	// contents maps volume handles to the snapshots and group snapshots of them.
	contents *batch[listing, map[string][]protocol.Snapshot]
}

type group struct {
	snapshot protocol.Snapshot
	selector labels.Selector
}

func newLists(c Clients, driver string) *lists {
	return &lists{
		pods: newBatch(func(ctx context.Context, l listing) (map[string][]string, error) {
			list, err := c.Core.Pods(l.namespace).List(ctx, l.options())
			if err != nil {
				return nil, err
			}
			byClaim := map[string][]string{}
			for i := range list.Items {
				for _, claim := range claimsOf(&list.Items[i]) {
					byClaim[claim] = append(byClaim[claim], list.Items[i].Name)
				}
			}
			return byClaim, nil
		}),
		namespaces: newBatch(func(ctx context.Context, name string) (bool, error) {
			ns, err := orNil(c.Core.Namespaces().Get(ctx, name, metav1.GetOptions{}))
			return err == nil && (ns == nil || ns.DeletionTimestamp != nil), err
		}),
		attachments: newBatch(func(ctx context.Context, l listing) (map[string][]protocol.Attachment, error) {
			list, err := c.Storage.VolumeAttachments().List(ctx, l.options())
			if err != nil {
				return nil, err
			}
			byVolume := map[string][]protocol.Attachment{}
			for _, a := range list.Items {
				if name := ptr.Deref(a.Spec.Source.PersistentVolumeName, ""); name != "" && a.Spec.Attacher == driver {
					byVolume[name] = append(byVolume[name], protocol.Attachment{Name: a.Name, Node: a.Spec.NodeName})
				}
			}
			return byVolume, nil
		}),
		handles: newBatch(func(ctx context.Context, l listing) (map[string][]string, error) {
			list, err := c.Core.PersistentVolumes().List(ctx, l.options())
			if err != nil {
				return nil, err
			}
			byHandle := map[string][]string{}
			for _, pv := range list.Items {
				if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver {
					byHandle[pv.Spec.CSI.VolumeHandle] = append(byHandle[pv.Spec.CSI.VolumeHandle], pv.Name)
				}
			}
			return byHandle, nil
		}),
		snapshots: newBatch(func(ctx context.Context, l listing) (map[string][]protocol.Snapshot, error) {
			list, err := c.Snapshots.VolumeSnapshots(l.namespace).List(ctx, l.options())
			if noSuchResource(err) {
				return nil, nil
			} else if err != nil {
				return nil, err
			}
			byClaim := map[string][]protocol.Snapshot{}
			for _, s := range list.Items {
				if claim := ptr.Deref(s.Spec.Source.PersistentVolumeClaimName, ""); claim != "" {
					byClaim[claim] = append(byClaim[claim], protocol.Snapshot{Kind: "VolumeSnapshot", Namespace: s.Namespace, Name: s.Name, Ready: ready(s.Status)})
				}
			}
			return byClaim, nil
		}),
		groups: newBatch(func(ctx context.Context, l listing) ([]group, error) {
			list, err := c.GroupSnapshots.VolumeGroupSnapshots(l.namespace).List(ctx, l.options())
			if noSuchResource(err) {
				return nil, nil
			} else if err != nil {
				return nil, err
			}
			var open []group
			for _, g := range list.Items {
				if g.Spec.Source.Selector == nil || groupReady(g.Status) {
					continue
				}
				selector, err := metav1.LabelSelectorAsSelector(g.Spec.Source.Selector)
				if err != nil {
					continue // the group controller cannot make it either
				}
				open = append(open, group{protocol.Snapshot{Kind: "VolumeGroupSnapshot", Namespace: g.Namespace, Name: g.Name}, selector})
			}
			return open, nil
		}),
		contents: newBatch(func(ctx context.Context, l listing) (map[string][]protocol.Snapshot, error) {
			byHandle := map[string][]protocol.Snapshot{}
			list, err := c.Snapshots.VolumeSnapshotContents().List(ctx, l.options())
			if err != nil && !noSuchResource(err) {
				return nil, err
			}
			for _, c := range items(list) {
				if handle := ptr.Deref(c.Spec.Source.VolumeHandle, ""); handle != "" && c.Spec.Driver == driver {
					byHandle[handle] = append(byHandle[handle], protocol.Snapshot{
						Kind: "VolumeSnapshot", Namespace: c.Spec.VolumeSnapshotRef.Namespace, Name: c.Spec.VolumeSnapshotRef.Name,
						Ready: c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false),
					})
				}
			}
			groups, err := c.GroupSnapshots.VolumeGroupSnapshotContents().List(ctx, l.options())
			if noSuchResource(err) {
				return byHandle, nil
			} else if err != nil {
				return nil, err
			}
			for _, c := range groups.Items {
				if c.Spec.Driver != driver {
					continue
				}
				for _, handle := range c.Spec.Source.VolumeHandles {
					byHandle[handle] = append(byHandle[handle], protocol.Snapshot{
						Kind: "VolumeGroupSnapshot", Namespace: c.Spec.VolumeGroupSnapshotRef.Namespace, Name: c.Spec.VolumeGroupSnapshotRef.Name,
						Ready: c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false),
					})
				}
			}
			return byHandle, nil
		}),
	}
}

// noSuchResource reports an API that is not installed: then there is nothing of
// it. It is found out by every list anew, so that one installed later counts.
func noSuchResource(err error) bool { return apierrors.IsNotFound(err) }

func items(l *volumesnapshotv1.VolumeSnapshotContentList) []volumesnapshotv1.VolumeSnapshotContent {
	if l == nil {
		return nil
	}
	return l.Items
}

func ready(s *volumesnapshotv1.VolumeSnapshotStatus) bool {
	return s != nil && ptr.Deref(s.ReadyToUse, false)
}

func groupReady(s *volumegroupsnapshotv1.VolumeGroupSnapshotStatus) bool {
	return s != nil && ptr.Deref(s.ReadyToUse, false)
}

// claimsOf are the claims that a scheduled pod names, finished or not: kubelet
// reports a pod's end before it unmounts, and Kubernetes' own protection counts
// finished pods for the same reason.
func claimsOf(pod *corev1.Pod) []string {
	if pod.Spec.NodeName == "" {
		return nil
	}
	var claims []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			claims = append(claims, pod.Name+"-"+v.Name)
		}
	}
	slices.Sort(claims)
	return slices.Compact(claims)
}
