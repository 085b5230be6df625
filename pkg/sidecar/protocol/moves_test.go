// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// life is what goes on beside objects.
type life struct {
	// mounted are the volumes that pods have mounted.
	mounted map[string]string
	// bound are the volumes that the receiver may have written to.
	bound map[string]bool
	// without is a safeguard that is left out.
	without *safeguard
	marks
}

// marks are what life has to remember.
type marks struct {
	// did are the things of users that were done.
	did uint32
	// tampered: somebody wrote to the volume who has no business there.
	tampered bool
	// completed: the first request has been that.
	completed bool
	// cutting: the backend is making a snapshot, cloning: a clone.
	cutting, cloning bool
	// arrived: a sidecar has restored the volume for the receiving claim.
	arrived bool
	// given: a sidecar has bound the volume to a receiving claim.
	given bool
	// seized: the binder has bound it to one, after somebody's tampering.
	seized bool
	// exposed: an administrator has set policy Delete in flight.
	exposed bool
	// elsewhere is the receiving claim that was bound to another volume.
	elsewhere types.UID
}

// intent is a choice that is not acted upon yet.
type intent struct {
	*choice
	// stale: the object was written since.
	stale bool
}

// scenario is who takes part in a world, so that all ways through it can be gone.
type scenario struct {
	name string
	// sidecars run at the same time, and each believes to be the leader.
	sidecars int
	// slow sidecars may be stopped between what they decide and what they do.
	slow bool
	// stale sidecars may decide on what their caches had before.
	stale bool
	// lag lets the binder's caches be behind, each on its own.
	lag bool
	// users may do so many of these things, each once.
	budget int
	things []string
	// depth is how many moves there may be beside those of an undisturbed transfer.
	// A deeper run adds as many as stride says, or one.
	depth, stride int
}

// enter makes the world of a scenario, where a transfer is about to begin.
func (s *scenario) enter(t testing.TB, tab *table) *world {
	w := newWorld(t)
	w.table = tab
	before := w.objects
	for i, o := range before {
		w.put(i, o)
	}
	w.edit(volume, "metadata: {annotations: {pv.kubernetes.io/bound-by-controller: 'yes'}}")
	w.ask(receiver)
	mine := w.settings.Driver
	w.sidecars = []sidecar{{driver: mine}}
	for len(w.sidecars) < s.sidecars {
		w.sidecars = append(w.sidecars, sidecar{driver: mine})
	}
	w.become(0)
	if s.lag {
		w.binder = w.objects
	}
	return w
}

// become makes it another sidecar's turn.
func (w *world) become(n int) {
	w.sidecar = &w.sidecars[n]
	w.settings.Driver = w.driver
}

// clone is another world in which something else can be done.
func (w *world) clone(t testing.TB) *world {
	c := *w
	c.TB = t
	c.sidecars = slices.Clone(w.sidecars)
	c.become(0)
	return &c
}

// move is one thing that may happen next.
type move struct {
	name string
	do   func(w *world)
	// usual: nothing is late, old or the doing of users.
	usual bool
}

func silent(string, ...any) {}

// moves are all.
func (s *scenario) moves(w *world) []move {
	var all []move
	add := func(name string, do func(w *world)) {
		unusual := strings.HasPrefix(name, "user: ") || strings.Contains(name, ", having heard") || strings.Contains(name, "old caches") || strings.HasSuffix(name, ", decided")
		all = append(all, move{name, do, !unusual})
	}
	for n := range w.sidecars {
		s.sidecarMoves(w, n, add)
	}
	s.binderMoves(w, add)
	for _, i := range w.all("volume") {
		add("provisioner: "+i.name, func(w *world) { w.provisioner(i, silent) })
	}
	add("protection", func(w *world) { w.protect(silent) })
	for pod := range w.pods {
		if w.mounted[pod] == "" {
			add("kubelet: mount for "+pod, func(w *world) { w.mount(pod) })
		}
	}
	if len(w.snapshots) > 0 {
		add("snapshot controller", (*world).snapshotter)
	}
	if w.claim(clone) != nil {
		add("provisioner: clone", (*world).cloner)
	}
	if w.did&(1<<thingNamed("expand source")) != 0 {
		add("resizer", (*world).resizer)
	}
	if bits.OnesCount32(w.did) < s.budget {
		for n, thing := range things {
			if w.did&(1<<n) == 0 && slices.Contains(s.things, thing.name) && thing.possible(w) {
				add("user: "+thing.name, func(w *world) {
					w.did |= 1 << n
					w.tampered = w.tampered || thing.tampers
					thing.do(w)
				})
			}
		}
	}
	return all
}

// keys are the requests that there may be.
var keys = []types.NamespacedName{{Namespace: request.namespace, Name: request.name}, {Namespace: rival.namespace, Name: rival.name}}

// sidecarMoves are what one of them may do: decide and act at once, or with a
// pause in which anything may happen, on caches of now or of before; or crash.
func (s *scenario) sidecarMoves(w *world, n int, add func(string, func(*world))) {
	name := fmt.Sprintf("sidecar %d: ", n)
	w.become(n)
	if w.intent != nil {
		add(name+"does what it decided: "+w.intent.Step(), func(w *world) {
			w.become(n)
			i := w.intent
			w.intent = nil
			if i.stale {
				w.saw(written(i.Action))
			} else {
				w.does(i.choice)
			}
		})
	}
	if w.intent != nil || w.memory != (memory{}) {
		add(name+"crash", func(w *world) {
			w.become(n)
			w.memory, w.seen, w.intent = memory{}, nil, nil
		})
	}
	if w.intent != nil {
		return
	}
	before := w.seen
	for _, fresh := range []bool{true, false} {
		if !fresh && before == nil {
			continue
		}
		for _, key := range keys[:1+min(1, w.counts["request"]-1)] {
			w.seen = before
			if fresh {
				w.seen = nil
			}
			c := w.choose(key)
			if c.Wait != nil {
				continue
			}
			name := name + map[bool]string{true: "", false: "with old caches: "}[fresh] + c.Step() + " (" + c.Why + ")"
			begin := func(w *world) {
				w.become(n)
				if fresh && s.stale {
					w.seen = w.objects
				}
			}
			add(name, func(w *world) {
				begin(w)
				w.does(c)
			})
			if s.slow {
				add(name+", decided", func(w *world) {
					begin(w)
					w.intent = &intent{c, writes(c.Action) && base(c.Action).GetResourceVersion() == "0"}
				})
			}
		}
	}
	w.seen = before
}

func writes(a protocol.Action) bool { return a.Patch != nil || a.Status != nil }

// base is the object on which a write was decided.
func base(a protocol.Action) object {
	switch {
	case a.Patch != nil && a.Patch.Volume != nil:
		return a.Patch.Volume
	case a.Patch != nil:
		return a.Patch.Claim
	case a.Status.Request != nil:
		return a.Status.Request
	}
	return a.Status.Approval
}

// does acts, and makes sure that the action is lawful.
func (w *world) does(c *choice) {
	first := c.Patch != nil && c.Patch.Step == protocol.Bind
	if first {
		j, _ := protocol.ParseJournal(c.Patch.Volume, driverName)
		first = !j.Bound
	}
	if c.Patch != nil && c.Patch.Step == protocol.Park {
		w.checkPark(c.Patch)
	}
	_, _, err := w.act(c.Action)
	if err != nil {
		w.saw(written(c.Action))
		return
	}
	// What the sidecar writes and leaves on policy Delete is its own doing.
	w.exposed = w.exposed && (c.Patch == nil || c.Patch.Volume == nil)
	if c.Patch != nil && c.Patch.Step == protocol.Restore {
		j, _ := protocol.ParseJournal(c.Patch.Volume, driverName)
		w.arrived = w.arrived || j.Bound
	}
	if c.Patch == nil || c.Patch.Step != protocol.Bind {
		return
	}
	w.given = true
	w.checkUnused(c.Patch.Volume.Name)
	if first && !w.tampered {
		w.checkBound(c.Patch.Volume)
	}
}

// binderMoves let one of the binder's two workers look at one object, with
// caches that are of now or as they are, each on its own.
func (s *scenario) binderMoves(w *world, add func(string, func(*world))) {
	refreshes := []string{"volumes and claims"}
	if s.lag {
		refreshes = []string{"volumes and claims", "volumes", "claims", "nothing"}
	}
	for _, kind := range []string{"volume", "claim"} {
		for _, i := range w.all(kind) {
			for _, what := range refreshes {
				name := "binder: " + kind + " " + i.String()
				if what != refreshes[0] {
					name += ", having heard of " + what
				}
				add(name, func(w *world) {
					if s.lag {
						w.hear(what)
					}
					if kind == "volume" {
						w.syncVolume(i, silent)
					} else {
						w.syncClaim(i, silent)
					}
					w.synced = nil
				})
			}
		}
	}
}

// hear brings the binder's caches to now.
func (w *world) hear(what string) {
	for i := range w.binder {
		if strings.Contains(what, i.kind) && w.objects[i] == nil {
			w.binder = sans(w.binder, i)
		}
	}
	for i, o := range w.objects {
		if (strings.Contains(what, i.kind) || i.kind != "claim" && i.kind != "volume") && w.binder[i] != o {
			w.binder = with(w.binder, i, o)
		}
	}
}

// mount is kubelet's.
func (w *world) mount(pod string) {
	c := w.claim(w.pods[pod])
	if c == nil || c.Status.Phase != corev1.ClaimBound {
		return
	}
	if pv := w.volume(id{"volume", "", c.Spec.VolumeName}); pv != nil && w.owner(pv) == c {
		w.mounted = with(w.mounted, pod, pv.Name)
	}
}

func (w *world) unmount(pod string) {
	w.pods, w.mounted = sans(w.pods, pod), sans(w.mounted, pod)
}

// snapshotter is a snapshot controller that begins with a claim that is Bound,
// and ends some time later.
func (w *world) snapshotter() {
	s := w.snapshots[0]
	switch c := w.claim(source); {
	case w.cutting:
		s.Ready, w.cutting = true, false
		w.snapshots = []protocol.Snapshot{s}
	case !s.Ready && c != nil && c.Status.Phase == corev1.ClaimBound:
		pv := w.volume(id{"volume", "", c.Spec.VolumeName})
		w.cutting = pv != nil && pv.Name == volume.name && w.owner(pv) == c
	}
}

// cloner is csi-provisioner for a clone: it begins while the claim to be cloned
// is Bound, and ends some time later.
func (w *world) cloner() {
	switch c := w.claim(source); {
	case w.cloning:
		w.cloning = false
		w.put(clone, nil) // its further life is another's
	case c != nil && c.Status.Phase == corev1.ClaimBound:
		pv := w.volume(id{"volume", "", c.Spec.VolumeName})
		w.cloning = pv != nil && pv.Name == volume.name && w.owner(pv) == c
	}
}

// resizer first says on the claim what it is about to do. Its write of the claim
// fails where somebody else wrote it.
func (w *world) resizer() {
	c := w.claim(source)
	if c == nil || c.UID != "claim-1" {
		return
	}
	pv := w.volume(volume)
	switch has := c.Status.Capacity[corev1.ResourceStorage]; {
	case pv == nil:
	case len(c.Status.Conditions) == 1 && c.Status.Conditions[0].Type == corev1.PersistentVolumeClaimResizing:
		w.edit(volume, "spec: {capacity: {storage: 2Gi}}")
		w.edit(source, "status: {conditions: [{type: FileSystemResizePending, status: 'True'}]}")
	case len(c.Status.Conditions) == 0 && c.Status.Phase == corev1.ClaimBound && w.owner(pv) == c && has.Cmp(resource.MustParse("1Gi")) == 0:
		w.edit(source, "status: {conditions: [{type: Resizing, status: 'True'}]}")
	}
}

// thing is what users and administrators may do.
type thing struct {
	name     string
	possible func(w *world) bool
	do       func(w *world)
	tampers  bool
}

// Who asks for the same claim at the same time, and who waits for any volume.
var (
	rival         = id{"request", "dev", "take-too"}
	rivalReceiver = id{"claim", "dev", "data-too"}
	rivalApproval = id{"approval", "prod", "give-too"}
	stranger      = id{"claim", "other", "scratch"}
	clone         = id{"claim", "prod", "copy"}
)

func there(i id) func(*world) bool  { return func(w *world) bool { return w.objects[i] != nil } }
func absent(i id) func(*world) bool { return func(w *world) bool { return w.objects[i] == nil } }
func running(pod string) func(*world) bool {
	return func(w *world) bool { return w.pods[pod] != id{} }
}
func idle(pod string) func(*world) bool { return func(w *world) bool { return w.pods[pod] == id{} } }
func inFlightNow(w *world) bool {
	return w.volume(volume) != nil && w.volume(volume).Annotations[v1alpha1.AnnotationJournal] != ""
}

var things = []thing{
	{name: "delete source", possible: there(source), do: func(w *world) { w.delete(source) }},
	{name: "delete receiver", possible: there(receiver), do: func(w *world) { w.delete(receiver) }},
	{name: "create receiver", possible: absent(receiver), do: func(w *world) { w.receive(receiver, "") }},
	{name: "create greedy receiver", possible: absent(receiver), do: func(w *world) { w.receive(receiver, "spec: {resources: {requests: {storage: 9Gi}}}") }},
	{name: "receiver names a volume", possible: func(w *world) bool {
		c := w.claim(receiver)
		return c != nil && c.Spec.VolumeName == "" && w.volume(volume) != nil
	}, do: func(w *world) {
		w.edit(receiver, "spec: {volumeName: pv1}")
	}},
	{name: "volume for anybody", possible: absent(spare), do: (*world).spareVolume},
	{name: "withdraw", possible: there(approval), do: func(w *world) { w.delete(approval) }},
	{name: "approve again", possible: absent(approval), do: func(w *world) { w.approve(approval, "") }},
	{name: "delete request", possible: there(request), do: func(w *world) { w.delete(request) }},
	{name: "request again", possible: absent(request), do: func(w *world) { w.request(request, "") }},
	{name: "source anew", possible: absent(source), do: func(w *world) { w.anew() }},
	{name: "opt out", possible: there(source), do: func(w *world) { w.edit(source, "metadata: {annotations: {transfer.storage.x-k8s.io/allow: 'false'}}") }},
	{name: "request twice", possible: absent(rival), do: func(w *world) { w.request(rival, "") }},
	{name: "receive twice", possible: absent(rivalReceiver), do: func(w *world) { w.receive(rivalReceiver, "spec: {dataSourceRef: {name: take-too}}") }},
	{name: "approve twice", possible: absent(rivalApproval), do: func(w *world) { w.approve(rivalApproval, "") }},
	{name: "prod pod", possible: idle("db-0"), do: func(w *world) { w.pods = with(w.pods, "db-0", source) }},
	{name: "prod pod goes", possible: running("db-0"), do: func(w *world) { w.unmount("db-0") }},
	{name: "dev pod", possible: idle("test-0"), do: func(w *world) { w.pods = with(w.pods, "test-0", receiver) }},
	{name: "dev pod goes", possible: running("test-0"), do: func(w *world) { w.unmount("test-0") }},
	{name: "terminate", possible: func(w *world) bool { return !w.terminating }, do: func(w *world) { w.terminating = true }},
	{name: "a burst", possible: func(w *world) bool { return !w.crowded }, do: func(w *world) {
		w.crowded, w.finishAfter = true, w.now.Add(30*time.Second)
	}},
	{name: "minutes pass", possible: func(*world) bool { return true }, do: func(w *world) { w.now = w.now.Add(3 * time.Minute) }},
	{name: "snapshot", possible: there(source), do: func(w *world) {
		w.snapshots = []protocol.Snapshot{{Kind: "VolumeSnapshot", Namespace: "prod", Name: "s"}}
	}},
	{name: "group snapshot", possible: there(source), do: func(w *world) {
		w.snapshots = []protocol.Snapshot{{Kind: "VolumeGroupSnapshot", Namespace: "prod", Name: "g"}}
	}},
	{name: "clone", possible: func(w *world) bool { return w.claim(source) != nil && w.claim(clone) == nil }, do: func(w *world) {
		w.receive(clone, "spec: {dataSourceRef: {apiGroup: null, kind: PersistentVolumeClaim, name: data}}")
	}},
	{name: "expand source", possible: there(source), do: func(w *world) { w.edit(source, "spec: {resources: {requests: {storage: 2Gi}}}") }},
	{name: "stranger asks", possible: absent(stranger), do: func(w *world) { w.receive(stranger, "spec: {dataSourceRef: null}") }},
	{name: "the driver fails", possible: func(w *world) bool { return w.driverError == "" }, do: func(w *world) { w.driverError = "down" }},
	{name: "delete volume", possible: inFlightNow, do: func(w *world) { w.delete(volume) }, tampers: true},
	{name: "claimRef loses its UID", possible: inFlightNow, do: func(w *world) { w.edit(volume, "spec: {claimRef: {uid: null}}") }, tampers: true},
	{name: "policy Delete", possible: inFlightNow, do: func(w *world) {
		w.exposed = true
		w.edit(volume, "spec: {persistentVolumeReclaimPolicy: Delete}")
	}, tampers: true},
	{name: "claimRef is removed", possible: inFlightNow, do: func(w *world) { w.edit(volume, "spec: {claimRef: null}") }, tampers: true},
}

func thingNamed(name string) int {
	return slices.IndexFunc(things, func(t thing) bool { return t.name == name })
}

// spare is another volume, that anybody may have.
var spare = id{"volume", "", "spare"}

func (w *world) spareVolume() {
	w.create(spare, `
spec:
  csi: {driver: csi.example.com, volumeHandle: spare}
  capacity: {storage: 1Gi}
  storageClassName: fast
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
status: {phase: Available}
`)
}

// anew makes another source claim, with another volume.
func (w *world) anew() {
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

// check makes sure of what must be true at every moment.
func (w *world) check() {
	if !w.tampered && w.mounted["db-0"] != "" && w.mounted["db-0"] == w.mounted["test-0"] {
		w.Errorf("both sides have the volume mounted")
	}
	pv := w.volume(volume)
	if pv == nil {
		return
	}
	w.exposed = w.exposed && pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain
	j := w.table.versions(pv).journal
	if !w.tampered {
		w.checkOwner(pv, j)
	}
	if c := w.owner(pv); c != nil && c.Namespace == receiver.namespace && c.Spec.VolumeName == pv.Name {
		if w.given {
			w.bound = with(w.bound, pv.Name, true)
		} else { // only tampering gives it the volume before bind
			w.seized = true
		}
	}
	if r := get[*v1alpha1.NamespaceTransferRequest](w.objects, request); r != nil && match.Completed(r) && r.UID == "request-1" && !w.completed {
		w.completed = true
		if pv.DeletionTimestamp == nil && (pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || pv.Annotations[v1alpha1.AnnotationJournal] != "") {
			w.Errorf("completed before the volume is as it was")
		}
	}
}

// checkOwner makes sure that the volume is nobody's but the two sides'. Phase
// Available means nothing where claimRef has a UID: the binder looks at claimRef.
func (w *world) checkOwner(pv *corev1.PersistentVolume, j *protocol.Journal) {
	ref := pv.Spec.ClaimRef
	if c := w.claim(receiver); c != nil && c.Spec.VolumeName != "" && c.Spec.VolumeName != pv.Name {
		w.elsewhere = c.UID
	}
	switch {
	case ref == nil:
		w.Errorf("anybody may have the volume")
		return
	case ref.UID != "":
	case w.elsewhere == "" || j != nil && j.Claim.UID != w.elsewhere || ref.Namespace != receiver.namespace || ref.Name != receiver.name:
		// But for the binder, which takes the UID away where the receiving claim was
		// bound to another volume. Then only a claim of its name fits.
		w.Errorf("claimRef lacks a UID")
	}
	for _, i := range w.all("claim") {
		c := w.claim(i)
		if c.Spec.VolumeName != pv.Name || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		switch owner := w.owner(pv); {
		case i != source && i.namespace != receiver.namespace:
			w.Errorf("a stranger has the volume")
		case i == source && owner != nil && owner != c:
			w.Errorf("the source claim is Bound, and its volume is another's")
		case i != source && owner == c && !w.given:
			w.Errorf("the receiving claim has the volume before bind")
		}
	}
}

// rivalry: there may be another approval, that served.
func (w *world) rivalry() bool { return w.counts["approval"] > 1 }

// checkPark makes sure that the approval was made for the claim, and is good.
func (w *world) checkPark(p *protocol.Patch) {
	j, _ := protocol.ParseJournal(w.merge(volume, p.Volume, p.Data).(*corev1.PersistentVolume), driverName)
	for _, i := range w.all("approval") {
		if a := get[*v1alpha1.NamespaceTransferApproval](w.objects, i); j != nil && a.UID == j.Approval.UID && match.Spent(a) {
			w.Errorf("an approval serves twice")
		}
	}
	c, a := w.claim(source), get[*v1alpha1.NamespaceTransferApproval](w.objects, approval)
	if c != nil && a != nil && !w.rivalry() && p.Volume.Name == c.Spec.VolumeName && !c.CreationTimestamp.Before(&a.CreationTimestamp) {
		w.Errorf("a claim is given away by an approval that was there before it")
	}
}

// checkUnused makes sure that the giver's pods are done with a volume that was
// just bound, whatever was done to it before.
func (w *world) checkUnused(name string) {
	for pod, mounted := range w.mounted {
		if w.pods[pod] == source && mounted == name {
			w.Errorf("bound while pod %s of the giver uses it", pod)
		}
	}
}

// checkBound makes sure that nothing spoke against the bind that was just done.
func (w *world) checkBound(was *corev1.PersistentVolume) {
	j, err := protocol.ParseJournal(was, driverName)
	if err != nil {
		w.Fatal(err)
	}
	if w.cutting {
		w.Errorf("bound while the giver's snapshot is being made")
	}
	if w.cloning {
		w.Errorf("bound while the giver's clone is being made")
	}
	if c := w.claim(source); c != nil && c.UID == j.Source.UID && c.Status.Phase != corev1.ClaimLost {
		w.Errorf("bound while the source claim is %s", c.Status.Phase)
	}
	if c := w.owner(w.volume(id{"volume", "", was.Name})); c != nil {
		if asked, has := c.Spec.Resources.Requests[corev1.ResourceStorage], was.Spec.Capacity[corev1.ResourceStorage]; asked.Cmp(has) != 0 {
			w.Errorf("bound to a claim that asks for %s while the volume has %s", asked.String(), has.String())
		}
	}
}

// rest ends what users do and lets everybody come to rest. At every step, seen
// may tell that the rest is known.
func (w *world) rest(tell func(string, ...any), seen func() bool) {
	for pod := range w.pods {
		w.unmount(pod)
	}
	w.driverError, w.ownerError, w.snapshots, w.cutting, w.cloning, w.crowded, w.did = "", "", nil, false, false, false, 0
	if w.claim(clone) != nil {
		w.put(clone, nil)
	}
	for n := range w.sidecars {
		w.become(n)
		w.seen, w.memory, w.intent = nil, memory{}, nil
	}
	if w.binder != nil {
		w.binder = w.objects
	}
	for i := range w.objects {
		if w.terminating && i.namespace == source.namespace {
			w.delete(i)
		}
	}
	w.become(0)
	for idle, round := 0, 0; idle < 2; round++ {
		before := w.counts["writes"]
		for steps := 0; ; steps++ {
			if seen() {
				return
			}
			if !w.sidecarRests(tell) {
				break
			}
			if steps > 30 {
				w.Errorf("the sidecar never waits")
				return
			}
		}
		w.hear("volumes and claims")
		for _, s := range w.kubernetes(true) {
			tell("%s", s)
		}
		w.synced = nil
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
	w.checkRest()
}

// sidecarRests takes one step, if there is one.
func (w *world) sidecarRests(tell func(string, ...any)) bool {
	for _, key := range keys {
		if c := w.choose(key); c.Wait == nil {
			tell("sidecar: %s (%s)", c.Step(), c.Why)
			before := w.counts["writes"]
			w.does(c)
			w.check()
			if writes(c.Action) && w.counts["writes"] == before {
				w.Errorf("%s is refused, and tried for ever", c.Step())
			}
			return true
		}
	}
	return false
}

// checkRest makes sure that everything is where it belongs.
func (w *world) checkRest() {
	for _, c := range w.all("claim") {
		if claim := w.claim(c); !w.tampered && claim.Status.Phase == corev1.ClaimBound && w.volume(id{"volume", "", claim.Spec.VolumeName}) == nil {
			w.Errorf("claim %s is Bound and its volume is gone", c)
		}
	}
	r, a := get[*v1alpha1.NamespaceTransferRequest](w.objects, request), get[*v1alpha1.NamespaceTransferApproval](w.objects, approval)
	if served := w.arrived || r != nil && match.Completed(r) && r.UID == "request-1"; served && a != nil && a.UID == "approval-1" && !w.rivalry() && !match.Spent(a) {
		w.Errorf("an approval has served a transfer and is not spent")
	}
	if r != nil && match.Completed(r) && r.UID == "request-1" && !w.given && !w.seized && w.volume(volume) == nil {
		w.Errorf("completed, and the volume was deleted before anybody could have it")
	}
	inFlight := false
	for _, i := range w.all("volume") {
		if i != spare {
			w.checkEnd(i)
			inFlight = inFlight || w.volume(i).Annotations[v1alpha1.AnnotationJournal] != ""
		}
	}
	if r != nil && r.Status.Phase == v1alpha1.PhaseTransferring && !inFlight && !w.tampered {
		w.Errorf("the request says Transferring for ever")
	}
}

// checkEnd makes sure that a volume is where it belongs.
func (w *world) checkEnd(i id) {
	pv, from := w.volume(i), w.claim(source)
	owner := w.owner(pv)
	j, err := protocol.ParseJournal(pv, driverName)
	switch {
	case err != nil:
		w.Error(err)
	case j != nil && pv.DeletionTimestamp == nil && pv.Spec.ClaimRef.Kind == "PersistentVolumeClaim" && owner == nil:
		w.Errorf("%s is in flight to a claim that is gone", i)
	case w.taken(pv, j):
		// An administrator decides whose it is.
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

// taken reports whether a volume that is another claim's is kept, and said to be
// so to those of the transfer who are still there: a stranger's after tampering;
// or, in the one moment without a UID, the one that its user made again under the
// receiving claim's name.
func (w *world) taken(pv *corev1.PersistentVolume, j *protocol.Journal) bool {
	owner, reason := w.owner(pv), protocol.ReasonVolumeTaken
	switch {
	case owner == nil || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return false
	case owner == w.claim(stranger) && w.tampered && j != nil:
	case owner == w.claim(receiver) && j != nil && j.Claim.UID == w.elsewhere:
	case owner == w.claim(receiver) && j == nil && w.elsewhere != "":
		reason = protocol.ReasonReceivingClaimDeleted // and given up before
	default:
		return false
	}
	r, a := get[*v1alpha1.NamespaceTransferRequest](w.objects, request), get[*v1alpha1.NamespaceTransferApproval](w.objects, approval)
	return (r == nil || r.UID != "request-1" || says(r.Status.Conditions, reason)) && (a == nil || a.UID != "approval-1" || match.Spent(a) || says(a.Status.Conditions, reason))
}

func says(conditions []metav1.Condition, reason protocol.Reason) bool {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionTransferred)
	return c != nil && c.Reason == string(reason)
}

// owner is the claim to which the volume belongs.
func (w *world) owner(pv *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	if pv.Spec.ClaimRef == nil {
		return nil
	}
	c := w.claim(id{"claim", pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name})
	if c == nil || c.UID != pv.Spec.ClaimRef.UID {
		return nil
	}
	return c
}
