// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// TestR17_SnapshotOrCloneThenTransfer: a claim that was made from a snapshot or
// from another claim moves with its data, unless the driver ties it to what it
// was made from.
func TestR17_SnapshotOrCloneThenTransfer(t *testing.T) {
	for name, mode := range map[string]struct {
		flags []string
		// refused is why the transfer does not happen, if it does not.
		refused protocol.Reason
	}{
		"none":               {flags: []string{"--snapshot-linkage=none"}},
		"snapshots":          {flags: []string{"--snapshot-linkage=snapshots"}},
		"chain":              {[]string{"--snapshot-linkage=chain"}, protocol.ReasonChainLinked},
		"chain with service": {[]string{"--snapshot-linkage=chain", "--transfer-service"}, protocol.ReasonDriverRefused},
	} {
		t.Run(name, func(t *testing.T) {
			backend := newScene(t)
			backend.sidecarOf(backend.vendor(cluster.DriverOptions{Snapshotter: true, Flags: mode.flags}))
			for made, change := range map[string]func(*corev1.PersistentVolumeClaim){
				"restored": restoreOf("backup"),
				"cloned":   cloneOf("origin"),
			} {
				t.Run(made, func(t *testing.T) {
					s := backend.in(t)
					s.claim(s.giver, "origin")
					s.write(s.bound(s.giver, "origin"), "the giver's")
					s.snapshot("backup", "origin")
					s.waitReady(cluster.Snapshots, s.giver, "backup")
					source := s.source(change)
					before := s.volume(source.Spec.VolumeName)
					s.grant(source)
					if mode.refused != "" {
						s.contains(s.refused(mode.refused), "{driver}", "{volume}")
						return
					}
					s.transferred()
					s.arrived(before)
					s.holds(s.bound(s.receiver, "data"), "the giver's")
				})
			}
		})
	}
}

// TestR17_SnapshotsOfTheVolumeStay: where they are independent, the giver keeps
// the snapshots, and the receiver a volume like any other.
func TestR17_SnapshotsOfTheVolumeStay(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Snapshotter: true, Resizer: true}))
	s.attributesClass()
	source := s.source()
	s.write(source, "the giver's")
	s.snapshot("backup", "data")
	s.waitReady(cluster.Snapshots, s.giver, "backup")
	s.grant(source)
	s.transferred()
	moved := s.bound(s.receiver, "data")
	s.write(moved, "the receiver's")

	s.claim(s.giver, "again", restoreOf("backup"))
	s.holds(s.bound(s.giver, "again"), "the giver's")

	receiver := *s
	receiver.giver = s.receiver
	receiver.snapshot("mine", "data")
	s.waitReady(cluster.Snapshots, s.receiver, "mine")
	s.claim(s.receiver, "copy", cloneOf("data"))
	s.holds(s.bound(s.receiver, "copy"), "the receiver's")
	s.patchClaim(s.receiver, "data", fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, s.class))
	s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool {
		return ptr.Deref(pv.Spec.VolumeAttributesClassName, "") == s.class
	})
	s.patchClaim(s.receiver, "data", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool { return pv.Spec.Capacity.Storage().Value() == 2<<30 })

	content := s.content(moved)
	s.deleteClaim(s.receiver, "data", true)
	s.must(s.WaitGone(s.ctx, cluster.Volumes, "", s.moving))
	if _, err := os.Stat(content); !os.IsNotExist(err) {
		s.Errorf("the driver still has the volume: %v", err)
	}
}

// TestR16_GroupSnapshotTies: a volume is tied to a group snapshot like to any
// other, and free again when that is deleted.
func TestR16_GroupSnapshotTies(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Snapshotter: true, Flags: []string{"--snapshot-linkage=snapshots"}}))
	source := s.database()
	s.must(operations["group snapshot"].begin(s))
	s.waitReady(groupSnapshots, s.giver, "all")
	s.grant(source)
	s.contains(s.refused(protocol.ReasonSnapshotsLinked), "{volume}", "VolumeGroupSnapshot {giver}/all")
	s.must(s.Dynamic.Resource(groupSnapshots).Namespace(s.giver).Delete(s.ctx, "all", metav1.DeleteOptions{}))
	s.transferred()
}

// TestR16_DriverKnowsTheSnapshot: a snapshot that no object of Kubernetes shows,
// on a cluster that need not know snapshots at all.
func TestR16_DriverKnowsTheSnapshot(t *testing.T) {
	s := newScene(t)
	d := s.vendor(cluster.DriverOptions{Flags: []string{"--snapshot-linkage=snapshots"}})
	s.sidecarOf(d)
	source := s.source()
	conn := must[*grpc.ClientConn](s)(grpc.NewClient("unix://"+d.Address, grpc.WithTransportCredentials(insecure.NewCredentials())))
	defer conn.Close()
	backend := csi.NewControllerClient(conn)
	taken := must[*csi.CreateSnapshotResponse](s)(backend.CreateSnapshot(s.ctx, &csi.CreateSnapshotRequest{
		Name: "by hand", SourceVolumeId: s.volume(s.moving).Spec.CSI.VolumeHandle,
	}))
	s.grant(source)
	s.contains(s.refused(protocol.ReasonSnapshotsLinked), "{volume} is tied to its snapshots, of which it has 1")
	must[*csi.DeleteSnapshotResponse](s)(backend.DeleteSnapshot(s.ctx, &csi.DeleteSnapshotRequest{SnapshotId: taken.GetSnapshot().GetSnapshotId()}))
	s.transferred() // when the driver is asked again
}

// A moment is a step of a transfer at which it is held.
type moment struct {
	name string
	// hold brings the transfer there.
	hold func(s *scene, source *corev1.PersistentVolumeClaim) (lift func())
}

var moments = []moment{
	{"before it starts", func(s *scene, source *corev1.PersistentVolumeClaim) func() {
		lift := s.forbid(source.Spec.VolumeName, `object.spec.?claimRef.kind.orValue("") == "NamespaceTransferRequest"`)
		s.grant(source)
		s.refused(protocol.ReasonWriteRefused)
		return lift
	}},
	{"in flight", func(s *scene, source *corev1.PersistentVolumeClaim) func() {
		lift := s.forbid(source.Spec.VolumeName, binding)
		s.grant(source)
		s.refused(protocol.ReasonWriteRefused)
		must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, s.giver, "data", corev1.ClaimLost))
		return lift
	}},
	{"bound", func(s *scene, source *corev1.PersistentVolumeClaim) func() {
		lift := s.forbid(source.Spec.VolumeName, `object.spec.persistentVolumeReclaimPolicy == "Delete"`)
		s.grant(source)
		s.bound(s.receiver, "data")
		return lift
	}},
}

const (
	beforeStart = iota
	inFlight
	afterBind
	// parkedOnly: the claim does not know yet that it has lost its volume.
	parkedOnly
)

// operations are what the giver may begin at any moment, and how that and the
// transfer end. Up to the last check the transfer waits for it, or goes back for
// it; after that it no longer works on the volume.
var operations = map[string]struct {
	begin func(s *scene) error
	// ends is given what begin returned. It lets the transfer go on.
	ends func(s *scene, at int, begun error, lift func())
}{
	"snapshot": {
		func(s *scene) error { s.snapshot("backup", "data"); return nil },
		func(s *scene, at int, _ error, lift func()) {
			s.takenUnless(at == afterBind, cluster.Snapshots, "backup", lift)
		},
	},
	"group snapshot": {
		func(s *scene) error {
			return s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {namespace: %[1]s, name: all}
spec:
  volumeGroupSnapshotClassName: %[2]s
  source: {selector: {matchLabels: {app: db}}}
`, s.giver, s.class))
		},
		func(s *scene, at int, begun error, lift func()) {
			s.must(begun)
			s.takenUnless(at == afterBind, groupSnapshots, "all", lift)
		},
	},
	"clone": {
		func(s *scene) error { s.claim(s.giver, "copy", cloneOf("data")); return nil },
		func(s *scene, at int, _ error, lift func()) {
			if at != afterBind {
				s.holds(s.bound(s.giver, "copy"), "the giver's")
			}
			lift()
			s.transferred()
			if copied := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.giver).Get(s.ctx, "copy", metav1.GetOptions{})); at == afterBind && copied.Spec.VolumeName != "" {
				s.Errorf("the receiver's volume was cloned into %s", copied.Spec.VolumeName)
			}
		},
	},
	"expansion": {
		func(s *scene) error { return s.tryPatchClaim(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`) },
		func(s *scene, at int, begun error, lift func()) {
			if s.lost(at, begun) {
				lift()
				s.transferred()
				return
			}
			s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool { return pv.Spec.Capacity.Storage().Value() == 2<<30 })
			lift()
			s.contains(s.refused(protocol.ReasonResizePending), "{giver}/data")
		},
	},
	"other attributes": {
		func(s *scene) error {
			return s.tryPatchClaim(fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, s.class))
		},
		func(s *scene, at int, begun error, lift func()) {
			if s.lost(at, begun) {
				lift()
				s.transferred()
				return
			}
			s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool {
				return ptr.Deref(pv.Spec.VolumeAttributesClassName, "") == s.class
			})
			lift()
			s.contains(s.refused(protocol.ReasonAttributesClassMismatch), "{receiver}/data")
		},
	},
}

// lost reports whether the claim is Lost at that moment: then the API server has
// refused to change what it asks for.
func (s *scene) lost(at int, begun error) bool {
	s.Helper()
	if at == inFlight || at == afterBind {
		if !apierrors.IsInvalid(begun) {
			s.Errorf("changing what a Lost claim asks for: %v", begun)
		}
		return true
	}
	s.must(begun)
	return false
}

// TestR12_OperationsDuringATransfer: whatever the giver begins on the claim, and
// when, either it ends before the volume changes hands, or it does not reach the
// volume any more.
func TestR12_OperationsDuringATransfer(t *testing.T) {
	backend := newScene(t)
	backend.sidecarOf(backend.vendor(cluster.DriverOptions{Snapshotter: true, Resizer: true}))
	backend.attributesClass()
	for name, operation := range operations {
		for at, m := range moments {
			t.Run(name+" "+m.name, func(t *testing.T) {
				s := backend.in(t)
				lift := m.hold(s, s.database())
				operation.ends(s, at, operation.begin(s), lift)
			})
		}
	}
}

// TestR12_OperationsOnAParkedVolume is the same where the volume is parked and
// the volume binder has not seen it yet: to all others the claim is Bound.
func TestR12_OperationsOnAParkedVolume(t *testing.T) {
	backend := newFrailScene(t)
	backend.sidecarOf(backend.vendor(cluster.DriverOptions{Snapshotter: true, Resizer: true}))
	backend.attributesClass()
	scenes, sources, begun := map[string]*scene{}, map[string]*corev1.PersistentVolumeClaim{}, map[string]error{}
	for name := range operations {
		scenes[name] = backend.another()
		sources[name] = scenes[name].database()
	}
	backend.freeze()
	for name, s := range scenes {
		s.grant(sources[name])
		s.waitVolume(s.moving, parked)
		begun[name] = operations[name].begin(s)
	}
	backend.thaw()
	for name, s := range scenes {
		operations[name].ends(s, parkedOnly, begun[name], func() {})
	}
}

// database is the source claim, with data, and a label to choose it by.
func (s *scene) database() *corev1.PersistentVolumeClaim {
	s.Helper()
	source := s.source(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"app": "db"} })
	s.write(source, "the giver's")
	return source
}

var groupSnapshots = schema.GroupVersionResource{Group: "groupsnapshot.storage.k8s.io", Version: "v1", Resource: "volumegroupsnapshots"}

// takenUnless waits until a snapshot is ready or, where it came too late, has
// failed, lets the transfer go on, and waits for its end.
func (s *scene) takenUnless(late bool, resource schema.GroupVersionResource, name string, lift func()) {
	s.Helper()
	if late {
		s.waitSnapshot(resource, s.giver, name, func(v *snapshotStatus) bool { return v.Status.Error.Message != "" })
	} else {
		s.waitReady(resource, s.giver, name)
	}
	lift()
	s.transferred()
	if late {
		s.waitSnapshot(resource, s.giver, name, func(v *snapshotStatus) bool {
			if v.Status.ReadyToUse {
				s.Errorf("the receiver's volume was snapshotted as %s/%s", s.giver, name)
			}
			return true
		})
	}
}

// in is a scene of the same driver in a subtest.
func (s *scene) in(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	sub := makeScene(t, s.world)
	sub.own, sub.class = s.own, s.class
	return sub
}

func restoreOf(snapshot string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: snapshot}
	}
}

// content is where the scene's driver keeps what is in the volume of a claim.
func (s *scene) content(claim *corev1.PersistentVolumeClaim) string {
	s.Helper()
	return filepath.Join(s.own.StateDir, "volumes", s.volume(claim.Spec.VolumeName).Spec.CSI.VolumeHandle, "data")
}

// write is what a pod would write.
func (s *scene) write(claim *corev1.PersistentVolumeClaim, text string) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.content(claim), "file"), []byte(text), 0o600))
}

// holds fails unless the volume of a claim has what was written.
func (s *scene) holds(claim *corev1.PersistentVolumeClaim, text string) {
	s.Helper()
	if found := string(must[[]byte](s)(os.ReadFile(filepath.Join(s.content(claim), "file")))); found != text {
		s.Errorf("claim %s/%s holds %q, want %q", claim.Namespace, claim.Name, found, text)
	}
}

func (s *scene) tryPatchClaim(patch string) error {
	_, err := s.claims(s.giver).Patch(s.ctx, "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// snapshotClasses makes those of the scene's driver, with the name of its class.
func (s *scene) snapshotClasses() {
	s.Helper()
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %[1]s}
driver: %[2]s
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: %[1]s}
driver: %[2]s
deletionPolicy: Delete
`, s.class, s.driverName())))
}

// snapshot begins a snapshot of a claim of the giver.
func (s *scene) snapshot(name, claim string) {
	s.Helper()
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  volumeSnapshotClassName: %[3]s
  source: {persistentVolumeClaimName: %[4]s}
`, s.giver, name, s.class, claim)))
}

func (s *scene) deleteSnapshot() {
	s.Helper()
	s.must(s.Dynamic.Resource(cluster.Snapshots).Namespace(s.giver).Delete(s.ctx, "backup", metav1.DeleteOptions{}))
}

// snapshotStatus is of a VolumeSnapshot or a VolumeGroupSnapshot.
type snapshotStatus struct {
	Status struct {
		ReadyToUse bool `json:"readyToUse"`
		Error      struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"status"`
}

func (s *scene) waitSnapshot(resource schema.GroupVersionResource, namespace, name string, done func(*snapshotStatus) bool) {
	s.Helper()
	must[*snapshotStatus](s)(cluster.Wait(s.ctx, s.Cluster, resource, namespace, name, done))
}

// waitReady waits until a snapshot can be restored.
func (s *scene) waitReady(resource schema.GroupVersionResource, namespace, name string) {
	s.Helper()
	s.waitSnapshot(resource, namespace, name, func(v *snapshotStatus) bool { return v.Status.ReadyToUse })
}
