// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// Action is what to do next. Exactly one of its fields after Why is set, or
// none: then there is nothing to do until something changes.
type Action struct {
	// Why says in a few words for the log why this is next.
	Why string

	// Read asks for another Decide with more observed.
	Read *Read
	// Wait until At; something may change earlier. Watch names the objects whose
	// change would, beyond those that are always watched.
	Wait *Wait
	// Patch changes the volume or the source claim.
	Patch *Patch
	// Status writes the status of the request or of the approval, whichever is set.
	Status *Status
	// SetOwner tells the driver who owns the parked volume next.
	SetOwner *SetOwner
}

// Read says what is missing.
type Read struct {
	// Volume is the name of the volume to read.
	Volume string
	// Facts are to be read, about Volume if that is set, else about the
	// Observation's.
	Facts bool
	// Live: everything, the transfer's own objects included, from the API server.
	Live bool
}

// Wait says what is waited for.
type Wait struct {
	// At is zero where only a change can end the wait.
	At    time.Time
	Watch []WatchRef
	// Turn: until fewer volumes are on their way.
	Turn bool
}

// WatchRef names an object, or all of a resource where Name is empty, of a
// namespace or of the cluster.
type WatchRef struct {
	Resource  schema.GroupVersionResource
	Namespace string
	Name      string
}

// Step names a write to a volume or a source claim.
type Step string

// The steps of a transfer, and of its way back.
const (
	Park    Step = "Park"
	Mark    Step = "Mark"
	Bind    Step = "Bind"
	Restore Step = "Restore"

	Return Step = "Return"
	Unmark Step = "Unmark"

	// Repark takes the volume back into the transfer after somebody else's write
	// left it without an owner.
	Repark Step = "Repark"
	// Retain sets the reclaim policy again that somebody else changed in flight.
	Retain Step = "Retain"
	// Abandon ends a transfer whose claim its user deleted: the volume is kept.
	Abandon Step = "Abandon"
)

// Patch is one merge patch, guarded by the UID and resourceVersion of the
// object on which it was decided.
type Patch struct {
	Step Step
	// Volume or Claim is the object on which it was decided.
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Data is the JSON merge patch.
	Data []byte
	// Refusal is why the volume goes back or is given up, for Return and Abandon.
	Refusal *Refusal
}

// Status is a status to be written, on the object on which it was decided.
type Status struct {
	Request  *v1alpha1.NamespaceTransferRequest
	Approval *v1alpha1.NamespaceTransferApproval
	// Refusal is why the transfer does not go on, for the event.
	Refusal *Refusal
	// Completed is true for the write that completes the transfer, for events on
	// the claims.
	Completed bool
}

// SetOwner swaps the owner that the driver has on record.
type SetOwner struct {
	Volume   *corev1.PersistentVolume
	From, To Ref
	Transfer Ref
}

func read(why string, r Read) Action       { return Action{Why: why, Read: &r} }
func wait(why string) Action               { return Action{Why: why, Wait: &Wait{}} }
func until(why string, t time.Time) Action { return Action{Why: why, Wait: &Wait{At: t}} }

// Step names the action for the log.
func (a Action) Step() string {
	switch {
	case a.Patch != nil:
		return string(a.Patch.Step)
	case a.Status != nil && a.Status.Request != nil:
		return "RequestStatus"
	case a.Status != nil:
		return "ApprovalStatus"
	case a.SetOwner != nil:
		return "SetOwner"
	case a.Read != nil:
		return "Read"
	}
	return "Wait"
}
