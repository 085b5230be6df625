// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

var walks = flag.Int("walks", 500, "how many ways TestWalks goes")

// TestWalks goes at random through what sidecars, Kubernetes and users may do
// one after another, and makes sure of the invariants at every step. In the end
// everybody comes to rest, and each volume is where it belongs.
func TestWalks(t *testing.T) {
	for seed := range *walks {
		w := &walk{world: newWorld(t), random: rand.New(rand.NewPCG(uint64(seed), 0)), mounted: map[string]string{}, bound: map[string]bool{}}
		w.hurry = true
		w.ask(receiver)
		mine := w.settings.Driver
		mine.SetOwner = w.random.IntN(4) == 0
		w.sidecars = []sidecar{{driver: mine}, {driver: mine}, {driver: driver.Info{Name: "other.example.com"}}}
		w.become(0)
		for range 20 + w.random.IntN(80) {
			w.any()
		}
		w.rest()
		if t.Failed() {
			t.Fatalf("walk %d:\n%s", seed, strings.Join(w.path[:min(len(w.path), 200)], "\n"))
		}
	}
}

// walk is one way through.
type walk struct {
	*world
	random *rand.Rand
	// path is what was done.
	path []string
	// sidecars are two that both believe to be the leader, and one of another driver.
	sidecars []sidecar
	at       int
	// mounted are the volumes that pods have mounted.
	mounted map[string]string
	// tampered: somebody wrote to the volume who has no business there.
	tampered bool
	// bound are the volumes that the receiver may have written to.
	bound map[string]bool
	// completed: the first request has been that.
	completed bool
}

type sidecar struct {
	driver driver.Info
	memory memory
	seen   map[id]object
}

// become makes it another sidecar's turn.
func (w *walk) become(n int) {
	w.sidecars[w.at] = sidecar{w.sidecars[w.at].driver, w.memory, w.seen}
	w.at = n
	w.settings.Driver, w.memory, w.seen = w.sidecars[n].driver, w.sidecars[n].memory, w.sidecars[n].seen
}

func (w *walk) told(format string, args ...any) {
	w.path = append(w.path, fmt.Sprintf(format, args...))
}

// any does one thing.
func (w *walk) any() {
	switch n := w.random.IntN(100); {
	case n < 45:
		w.sidecar()
	case n < 75:
		w.controller()
	case n < 80:
		w.kubelet()
	case n < 84:
		if w.seen == nil {
			w.told("lag")
			w.seen = w.copy(w.objects)
		} else {
			w.told("catch-up")
			w.seen = nil
		}
	case n < 86:
		w.told("crash")
		w.memory, w.seen = memory{}, nil
	case n < 88:
		w.told("minutes pass")
		w.now = w.now.Add(3 * time.Minute)
	default:
		w.user()
	}
	w.check()
}

// sidecar takes one of them a step further.
func (w *walk) sidecar() {
	w.become(w.random.IntN(len(w.sidecars)))
	keys := w.requests()
	if len(keys) == 0 {
		return
	}
	key := keys[w.random.IntN(len(keys))]
	_, a, _ := w.decide(key)
	if a.Wait != nil {
		return
	}
	w.told("sidecar %d: %s (%s)", w.at, a.Step(), a.Why)
	if a.Patch != nil && a.Patch.Step == protocol.Bind {
		w.checkBind(a)
	}
	if _, _, err := w.act(a); err != nil {
		w.told("  %v", err)
		w.saw(written(a))
	} else if a.Step() == string(protocol.Bind) {
		w.bound[a.Patch.Volume.Name] = true
	}
}

// controller lets one of Kubernetes' look at one object.
func (w *walk) controller() {
	var looks []func()
	tell := func(format string, args ...any) { w.told("  "+format, args...) }
	for _, i := range w.all("volume") {
		looks = append(looks, func() { w.syncVolume(i, tell) }, func() { w.provisioner(i, tell) })
	}
	for _, i := range w.all("claim") {
		if w.synced[i] != w.objects[i].GetResourceVersion() || w.random.IntN(10) == 0 {
			looks = append(looks, func() { w.syncClaim(i, tell) })
		}
	}
	looks = append(looks, func() { w.protect(tell) })
	looks[w.random.IntN(len(looks))]()
}

// kubelet mounts and unmounts.
func (w *walk) kubelet() {
	for pod, i := range w.pods {
		c := w.claim(i)
		if w.mounted[pod] != "" || c == nil || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		pv := w.volume(id{"volume", "", c.Spec.VolumeName})
		if pv != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID {
			w.told("  %s mounts %s", pod, i)
			w.mounted[pod] = pv.Name
		}
	}
}

// user does what users and administrators may do, most of it at most once.
func (w *walk) user() {
	things := []struct {
		name     string
		possible bool
		do       func()
		tampers  bool
	}{
		{"delete source", w.claim(source) != nil, func() { w.delete(source) }, false},
		{"delete receiver", w.claim(receiver) != nil, func() { w.delete(receiver) }, false},
		{"create receiver", w.claim(receiver) == nil, func() { w.receive(receiver, "") }, false},
		{"create greedy receiver", w.claim(receiver) == nil, func() { w.receive(receiver, "spec: {resources: {requests: {storage: 9Gi}}}") }, false},
		{"withdraw", w.objects[approval] != nil, func() { w.delete(approval) }, false},
		{"approve again", w.objects[approval] == nil, func() { w.approve(approval, "") }, false},
		{"delete request", w.objects[request] != nil, func() { w.delete(request) }, false},
		{"request again", w.objects[request] == nil, func() { w.request(request, "") }, false},
		{"source anew", w.claim(source) == nil, w.anew, false},
		{"request twice", w.objects[rival] == nil, func() { w.request(rival, "") }, false},
		{"receive twice", w.claim(rivalReceiver) == nil, func() { w.receive(rivalReceiver, "spec: {dataSourceRef: {name: take-too}}") }, false},
		{"approve twice", w.objects[rivalApproval] == nil, func() { w.approve(rivalApproval, "") }, false},
		{"prod pod", w.pods["db-0"] == id{}, func() { w.pods["db-0"] = source }, false},
		{"prod pod goes", w.pods["db-0"] != id{}, func() { w.unmount("db-0") }, false},
		{"dev pod", w.pods["test-0"] == id{}, func() { w.pods["test-0"] = receiver }, false},
		{"dev pod goes", w.pods["test-0"] != id{}, func() { w.unmount("test-0") }, false},
		{"terminate", !w.terminating, func() { w.terminating = true }, false},
		{"the driver fails", w.driverError == "", func() { w.driverError, w.ownerError = "down", "down" }, false},
		{"the driver is back", w.driverError != "", func() { w.driverError, w.ownerError = "", "" }, false},
		{"delete volume", w.volume(volume) != nil, func() { w.delete(volume) }, true},
		{"claimRef loses its UID", w.volume(volume) != nil, func() { w.edit(volume, "spec: {claimRef: {uid: null}}") }, true},
		{"claimRef is removed", w.volume(volume) != nil, func() { w.edit(volume, "spec: {claimRef: null}") }, true},
	}
	thing := things[w.random.IntN(len(things))]
	if !thing.possible || thing.tampers && (w.random.IntN(4) > 0 || w.volume(volume).Annotations[v1alpha1.AnnotationJournal] == "") {
		return
	}
	w.told("user: %s", thing.name)
	w.tampered = w.tampered || thing.tampers
	thing.do()
}

// Who asks for the same claim at the same time.
var (
	rival         = id{"request", "dev", "take-too"}
	rivalReceiver = id{"claim", "dev", "data-too"}
	rivalApproval = id{"approval", "prod", "give-too"}
)

// anew makes another source claim, with another volume.
func (w *walk) anew() {
	name := fmt.Sprintf("pv%d", w.counts["volume"]+1)
	c := w.create(source, fmt.Sprintf(`
metadata: {annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec: {volumeName: %s, storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
status: {phase: Bound, capacity: {storage: 1Gi}}
`, name))
	w.create(id{"volume", "", name}, fmt.Sprintf(`
metadata: {annotations: {pv.kubernetes.io/provisioned-by: csi.example.com}}
spec:
  csi: {driver: csi.example.com, volumeHandle: %s}
  capacity: {storage: 1Gi}
  storageClassName: fast
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
  claimRef: {kind: PersistentVolumeClaim, namespace: prod, name: data, uid: %s}
status: {phase: Bound}
`, name, c.GetUID()))
}

func (w *walk) unmount(pod string) {
	delete(w.pods, pod)
	delete(w.mounted, pod)
}

// check makes sure of what must be true at every moment.
func (w *walk) check() {
	if !w.tampered && w.mounted["db-0"] != "" && w.mounted["db-0"] == w.mounted["test-0"] {
		w.Errorf("both sides have the volume mounted")
	}
	pv := w.volume(volume)
	if pv == nil {
		return
	}
	if ref := pv.Spec.ClaimRef; !w.tampered && (ref == nil || ref.UID == "" || pv.Status.Phase == corev1.VolumeAvailable) {
		w.Errorf("anybody may have the volume")
	}
	if r := get[*v1alpha1.NamespaceTransferRequest](w.objects, request); r != nil && match.Completed(r) && r.UID == "request-1" && !w.completed {
		w.completed = true
		if pv.DeletionTimestamp == nil && (pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || pv.Annotations[v1alpha1.AnnotationJournal] != "") {
			w.Errorf("completed before the volume is as it was")
		}
	}
}

// checkBind makes sure that nothing speaks against it.
func (w *walk) checkBind(a protocol.Action) {
	j, err := protocol.ParseJournal(a.Patch.Volume, driverName)
	if err != nil {
		w.Fatal(err)
	}
	current := w.volume(id{"volume", "", a.Patch.Volume.Name})
	if current == nil || current.ResourceVersion != a.Patch.Volume.ResourceVersion {
		return // a conflict
	}
	for pod, i := range w.pods {
		if i == source {
			w.Errorf("bound while pod %s of the giver uses it", pod)
		}
	}
	if j.Bound {
		return
	}
	if c := w.claim(source); c != nil && c.UID == j.Source.UID && c.Status.Phase != corev1.ClaimLost {
		w.Errorf("bound while the source claim is %s", c.Status.Phase)
	}
	if r := w.objects[id{"request", j.Request.Namespace, j.Request.Name}]; r == nil || r.GetUID() != j.Request.UID {
		w.Errorf("bound without the request")
	}
	if o := w.objects[id{"approval", j.Approval.Namespace, j.Approval.Name}]; !w.terminating && (o == nil || o.GetUID() != j.Approval.UID) {
		w.Errorf("bound without the approval")
	}
}

// rest ends what users do and lets everybody come to rest.
func (w *walk) rest() {
	w.told("rest")
	w.pods, w.mounted = map[string]id{}, nil
	w.driverError, w.ownerError = "", ""
	for n := range w.sidecars {
		w.become(n)
		w.seen, w.memory = nil, memory{}
	}
	for i := range w.objects {
		if w.terminating && i.namespace == source.namespace {
			w.delete(i)
		}
	}
	for idle, round := 0, 0; idle < 2; round++ {
		before := w.counts["writes"]
		for n := range w.sidecars {
			w.become(n)
			steps, _ := w.run("")
			for _, s := range append(steps, w.kubernetes(true)...) {
				w.told("  %d %s", n, s)
			}
		}
		if idle++; w.counts["writes"] == before {
			w.now = w.now.Add(time.Hour)
		} else {
			idle = 0
		}
		if round > 50 {
			w.Errorf("nobody comes to rest")
			return
		}
	}
	for _, c := range w.all("claim") {
		if claim := w.claim(c); !w.tampered && claim.Status.Phase == corev1.ClaimBound && w.volume(id{"volume", "", claim.Spec.VolumeName}) == nil {
			w.Errorf("claim %s is Bound and its volume is gone", c)
		}
	}
	for _, i := range w.all("volume") {
		w.checkEnd(i)
	}
}

// checkEnd makes sure that a volume is where it belongs.
func (w *walk) checkEnd(i id) {
	pv, from := w.volume(i), w.claim(source)
	owner := w.owner(pv)
	j, err := protocol.ParseJournal(pv, driverName)
	switch {
	case err != nil:
		w.Error(err)
	case j != nil && (pv.DeletionTimestamp != nil || from == nil || from.UID != j.Source.UID || w.terminating):
		// It waits for a claim that can have it, or for the end of the one that has it.
	case j != nil:
		w.Errorf("%s is still in flight", i)
	case owner != nil && (owner.Status.Phase != corev1.ClaimBound || pv.Status.Phase != corev1.VolumeBound):
		w.Errorf("claim %s is %s, its volume %s", owner.Name, owner.Status.Phase, pv.Status.Phase)
	case owner != nil && pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		w.Errorf("the policy of %s was not restored", i)
	case owner == nil && pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain && !w.tampered:
		w.Errorf("%s has no owner and is not retained", i)
	}
	if owner == nil || owner != from {
		return
	}
	if w.bound[i.name] {
		w.Errorf("the giver has what the receiver may have written")
	}
	if from.Annotations[v1alpha1.AnnotationTransferUID] != "" || from.Annotations[v1alpha1.AnnotationTransferredTo] != "" {
		w.Errorf("the source claim has its volume, and says that it went")
	}
}

// owner is the claim to which the volume belongs.
func (w *walk) owner(pv *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	if pv.Spec.ClaimRef == nil {
		return nil
	}
	c := w.claim(id{"claim", pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name})
	if c == nil || c.UID != pv.Spec.ClaimRef.UID {
		return nil
	}
	return c
}
