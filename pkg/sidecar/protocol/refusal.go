// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Refusal says why a transfer does not go on. It is never terminal.
type Refusal struct {
	Reason Reason
	// Message is a sentence that names the object and what is wrong with it, and
	// the remedy.
	Message string
	// Watch names what, beyond the objects that are always watched, may lift it.
	Watch []WatchRef
	// Poll is true where nothing that can be watched says that it was lifted.
	Poll bool
	// Until is when it is lifted, where that is known.
	Until time.Time
}

// Refuse makes the Refusal for a reason: the sentence, then the remedy that
// stands in the table.
func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...) + "; " + remedies[reason]}
}

func (r *Refusal) watching(refs ...WatchRef) *Refusal {
	r.Watch = append(r.Watch, refs...)
	return r
}

func (r *Refusal) polled() *Refusal {
	r.Poll = true
	return r
}

// merge makes one refusal of several: the first is told in full, the others by
// their reasons, and whatever lifts any of them is watched.
func merge(all []*Refusal) *Refusal {
	if len(all) == 0 {
		return nil
	}
	r := *all[0]
	var also []string
	for _, other := range all[1:] {
		also = append(also, string(other.Reason))
		r.Watch = append(r.Watch, other.Watch...)
		r.Poll = r.Poll || other.Poll
		r.Until = earlier(r.Until, other.Until)
	}
	if len(also) > 0 {
		r.Message += " (also: " + strings.Join(also, ", ") + ")"
	}
	return &r
}

// earlier of two times, of which either may be zero, for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// list joins names for a message and counts those beyond the first few.
func list(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func watchVolume(name string) WatchRef {
	return WatchRef{Resource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, Name: name}
}

func watchAttachment(name string) WatchRef {
	return WatchRef{Resource: schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}, Name: name}
}

// snapshotResources are the resources of the kinds that Snapshot names.
var snapshotResources = map[string]schema.GroupVersionResource{
	"VolumeSnapshot":      {Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"},
	"VolumeGroupSnapshot": {Group: "groupsnapshot.storage.k8s.io", Version: "v1", Resource: "volumegroupsnapshots"},
}

func watchSnapshot(s Snapshot) WatchRef {
	return WatchRef{Resource: snapshotResources[s.Kind], Namespace: s.Namespace, Name: s.Name}
}
