// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// world is a cluster small enough to be read in a transcript: objects, the
// parts of Kubernetes that write them, and sidecars. Objects are never changed
// in place, and neither are maps that a walk or an exploration changes, so that
// a shallow copy is another world.
type world struct {
	testing.TB
	settings protocol.Settings
	now      time.Time
	// table is set where worlds are compared: then objects of the same content
	// are the same, and resourceVersions tell only whether one is of now.
	table *table

	objects map[id]object
	// binder is what the volume binder's caches have; nil: everything as it is.
	binder map[id]object
	// sidecars are those that run, of which one is at work.
	sidecars []sidecar
	*sidecar
	// life is what users and nodes do.
	life

	// counts number what is created, by kind, and all writes.
	counts map[string]int
	// synced are the versions of the claims that the binder has looked at.
	synced map[id]string

	pods        map[string]id
	attachments []protocol.Attachment
	twins       []string
	snapshots   []protocol.Snapshot
	terminating bool

	verdict         driver.Verdict
	driverSnapshots []string
	driverError     string
	ownerError      string
	// refusesOwner: the error is that the driver will not have that owner.
	refusesOwner bool
	// crowded and finishAfter are due to other transfers.
	crowded     bool
	finishAfter time.Time
	// forbidden is what the API server says to writes of volumes.
	forbidden string
}

type sidecar struct {
	driver driver.Info
	memory memory
	// seen is what its caches have; nil: everything as it is.
	seen map[id]object
	// intent is what it has decided and not done yet.
	intent *intent
}

// memory is what a sidecar forgets when it crashes.
type memory struct {
	owner     protocol.Ref
	ownerErr  string
	toldOwner time.Time
	attempts  int
	notBefore time.Time
	// forced is a pod of prod/data that was deleted by force.
	forced      string
	forcedUntil time.Time
}

type object interface {
	metav1.Object
	runtime.Object
}

// id names an object. Kinds have the short names of the transcripts.
type id struct{ kind, namespace, name string }

func (i id) String() string { return strings.TrimPrefix(i.namespace+"/"+i.name, "/") }

// parseID reads "pv1" or "prod/data".
func parseID(kind, s string) id {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok {
		return id{kind, "", s}
	}
	return id{kind, namespace, name}
}

var kinds = map[string]func() object{
	"claim":    func() object { return &corev1.PersistentVolumeClaim{} },
	"volume":   func() object { return &corev1.PersistentVolume{} },
	"request":  func() object { return &v1alpha1.NamespaceTransferRequest{} },
	"approval": func() object { return &v1alpha1.NamespaceTransferApproval{} },
	"class":    func() object { return &storagev1.StorageClass{} },
}

const driverName = "csi.example.com"

// The objects of every transcript.
var (
	source   = id{"claim", "prod", "data"}
	receiver = id{"claim", "dev", "data"}
	request  = id{"request", "dev", "take-data"}
	approval = id{"approval", "prod", "give-data"}
	volume   = id{"volume", "", "pv1"}
	class    = id{"class", "", "fast"}
)

// newWorld has a claim Bound to a provisioned volume, and nobody who asks for it.
func newWorld(t testing.TB) *world {
	w := &world{
		TB: t,
		settings: protocol.Settings{
			Driver:        driver.Info{Name: driverName, Advertised: true, Linkage: driver.LinkageNone},
			User:          "system:serviceaccount:csi:csi-transfer",
			VerifyTimeout: 2 * time.Minute,
			ReportDelay:   10 * time.Second,
			PollInterval:  30 * time.Second,
		},
		now:     time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		objects: map[id]object{},
		counts:  map[string]int{},
		synced:  map[id]string{},
		pods:    map[string]id{},
		sidecar: &sidecar{},
	}
	w.create(class, `
provisioner: csi.example.com
metadata: {annotations: {transfer.storage.x-k8s.io/allow: "true"}}
`)
	claim := w.create(source, `
metadata:
  finalizers: [kubernetes.io/pvc-protection]
  annotations: {pv.kubernetes.io/bind-completed: "yes"}
spec: {volumeName: pv1, storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
status: {phase: Bound, capacity: {storage: 1Gi}}
`)
	w.create(volume, fmt.Sprintf(`
metadata:
  finalizers: [external-provisioner.volume.kubernetes.io/finalizer, kubernetes.io/pv-protection]
  annotations: {pv.kubernetes.io/provisioned-by: csi.example.com}
spec:
  csi: {driver: csi.example.com, volumeHandle: handle-1}
  capacity: {storage: 1Gi}
  storageClassName: fast
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: prod, name: data, uid: %s, resourceVersion: "7"}
status: {phase: Bound}
`, claim.GetUID()))
	w.kubernetes(false)
	w.now = w.now.Add(time.Hour)
	return w
}

// ask creates what the two users create: the request, the receiving claim and
// the approval.
func (w *world) ask(receiver id) {
	w.request(request, "")
	w.receive(receiver, "")
	w.approve(approval, "")
}

func (w *world) request(i id, change string) object {
	return w.create(i, `spec: {source: {namespace: prod, kind: PersistentVolumeClaim, name: data}}`, change)
}

func (w *world) approve(i id, change string) object {
	return w.create(i, fmt.Sprintf(`spec: {source: {kind: PersistentVolumeClaim, name: data}, targetNamespace: %s}`, w.receivingNamespace()), change)
}

// receivingNamespace is that of the first request.
func (w *world) receivingNamespace() string {
	for _, i := range w.all("request") {
		return i.namespace
	}
	return request.namespace
}

func (w *world) receive(i id, change string) object {
	return w.create(i, `
metadata: {finalizers: [kubernetes.io/pvc-protection]}
spec:
  dataSourceRef: {apiGroup: transfer.storage.x-k8s.io, kind: NamespaceTransferRequest, name: take-data}
  storageClassName: fast
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
status: {phase: Pending}
`, change)
}

// create makes an object of YAML merge patches.
func (w *world) create(i id, patches ...string) object {
	if w.objects[i] != nil {
		w.Fatalf("%s %s exists", i.kind, i)
	}
	w.counts = with(w.counts, i.kind, w.counts[i.kind]+1)
	uid := types.UID(fmt.Sprintf("%s-%d", i.kind, w.counts[i.kind]))
	o := w.table.once(nil, fmt.Sprint(i, uid, w.now, patches), func() object {
		o := kinds[i.kind]()
		for _, p := range patches {
			o = w.merge(i, o, yamlToJSON(w, p))
		}
		o.SetNamespace(i.namespace)
		o.SetName(i.name)
		o.SetUID(uid)
		o.SetCreationTimestamp(metav1.NewTime(w.now))
		return o
	})
	w.put(i, o)
	return o
}

func (w *world) merge(i id, o object, patch []byte) object {
	before, err := json.Marshal(o)
	if err != nil {
		w.Fatal(err)
	}
	after, err := jsonpatch.MergePatch(before, patch)
	if err != nil {
		w.Fatal(err)
	}
	merged := kinds[i.kind]()
	if err := json.Unmarshal(after, merged); err != nil {
		w.Fatalf("%s %s: %v", i.kind, i, err)
	}
	return merged
}

// put stores what was written. An object that is being deleted is gone with its
// last finalizer.
func (w *world) put(i id, o object) {
	w.counts = with(w.counts, "writes", w.counts["writes"]+1)
	if o == nil || o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
		w.objects = sans(w.objects, i)
		if pv, ok := o.(*corev1.PersistentVolume); ok && w.table != nil {
			if c := w.owner(pv); c != nil && c.DeletionTimestamp == nil || pv.Annotations[v1alpha1.AnnotationJournal] != "" {
				w.Errorf("the object of volume %s is gone, and the volume is somebody's", i)
			}
		}
	} else if w.table != nil {
		w.objects = with(w.objects, i, w.table.current(o))
	} else {
		o.SetResourceVersion(fmt.Sprint(w.counts["writes"]))
		w.objects = with(w.objects, i, o)
	}
	if w.table != nil {
		w.outdate(i)
	}
}

// with and sans are a map with a change.
func with[M ~map[K]V, K comparable, V any](m M, k K, v V) M {
	c := make(M, len(m)+1)
	maps.Copy(c, m)
	c[k] = v
	return c
}

func sans[M ~map[K]V, K comparable, V any](m M, k K) M {
	c := maps.Clone(m)
	delete(c, k)
	return c
}

// edit writes an object as a user would.
func (w *world) edit(i id, patch string) {
	o := w.objects[i]
	if o == nil {
		w.Fatalf("no %s %s", i.kind, i)
	}
	w.put(i, w.table.once(o, patch, func() object { return w.merge(i, o, yamlToJSON(w, patch)) }))
}

func (w *world) delete(i id) {
	was := w.objects[i]
	if was == nil {
		w.Fatalf("no %s %s", i.kind, i)
	}
	if was.GetDeletionTimestamp() == nil {
		w.put(i, w.table.once(was, w.now, func() object {
			o := was.DeepCopyObject().(object)
			o.SetDeletionTimestamp(ptr.To(metav1.NewTime(w.now)))
			return o
		}))
	}
}

// all lists the objects of a kind in order.
func (w *world) all(kind string) []id {
	return sorted(w.objects, kind)
}

func sorted(objects map[id]object, kind string) []id {
	var ids []id
	for i := range objects {
		if i.kind == kind {
			ids = append(ids, i)
		}
	}
	slices.SortFunc(ids, func(a, b id) int { return strings.Compare(a.String(), b.String()) })
	return ids
}

func get[T object](objects map[id]object, i id) T {
	o, _ := objects[i].(T)
	return o
}

func (w *world) claim(i id) *corev1.PersistentVolumeClaim {
	return get[*corev1.PersistentVolumeClaim](w.objects, i)
}

func (w *world) volume(i id) *corev1.PersistentVolume {
	return get[*corev1.PersistentVolume](w.objects, i)
}

// decide asks for the next action of a transfer and reads what that takes.
// Live reads are told.
func (w *world) decide(key types.NamespacedName) (o *protocol.Observation, a protocol.Action, told []string) {
	o = w.observe(key)
	a = w.pure(o)
	for reads := 0; a.Read != nil; reads++ {
		if reads > 4 {
			w.Fatalf("reads for ever: %s", a.Why)
		}
		if a.Read.Live {
			told = append(told, fmt.Sprintf("Read live (%s)", a.Why))
		}
		w.read(o, a.Read)
		a = w.pure(o)
	}
	return o, a, told
}

// pure decides, and makes sure that what was observed stays as it was: it is
// shared with caches.
func (w *world) pure(o *protocol.Observation) protocol.Action {
	switch {
	case w.without != nil:
		return w.without.decide(*o)
	case w.table != nil:
		return protocol.Decide(*o)
	}
	before := w.copy(w.objects)
	a := protocol.Decide(*o)
	if !apiequality.Semantic.DeepEqual(before, w.objects) {
		w.Fatalf("Decide changed an object that it was shown; it wanted to %s (%s)", a.Step(), a.Why)
	}
	return a
}

func (w *world) copy(objects map[id]object) map[id]object {
	c := make(map[id]object, len(objects))
	for i, o := range objects {
		c[i] = o.DeepCopyObject().(object)
	}
	return c
}

// observe shows what the sidecar's caches have.
func (w *world) observe(key types.NamespacedName) *protocol.Observation {
	seen := w.seen
	if seen == nil {
		seen = w.objects
	}
	o := &protocol.Observation{
		Settings: w.settings, Now: w.now, NotBefore: w.memory.notBefore, Name: key,
		Crowded: w.crowded, FinishAfter: w.finishAfter,
		Request: get[*v1alpha1.NamespaceTransferRequest](seen, id{"request", key.Namespace, key.Name}),
	}
	journals := map[types.UID]*protocol.Journal{}
	for _, i := range sorted(seen, "volume") {
		pv := get[*corev1.PersistentVolume](seen, i)
		j, err := protocol.ParseJournal(pv, w.settings.Driver.Name)
		if err != nil || j == nil || pv.Labels[v1alpha1.LabelInFlight] != w.settings.Driver.Name {
			continue
		}
		journals[j.Request.UID] = j
		if j.Request.NamespacedName() == key {
			o.Volume = &protocol.Volume{Name: pv.Name, PV: pv}
		}
	}
	o.Exists = func(r v1alpha1.RequestReference) bool {
		found := get[*v1alpha1.NamespaceTransferRequest](seen, id{"request", r.Namespace, r.Name})
		return found != nil && found.UID == r.UID || journals[r.UID] != nil
	}
	var from types.NamespacedName
	switch {
	case o.Volume != nil:
		j, _ := protocol.ParseJournal(o.Volume.PV, w.settings.Driver.Name)
		from = j.Source.NamespacedName()
		o.Claim = get[*corev1.PersistentVolumeClaim](seen, id{"claim", j.Claim.Namespace, j.Claim.Name})
	case o.Request != nil:
		from = types.NamespacedName{Namespace: o.Request.Spec.Source.Namespace, Name: o.Request.Spec.Source.Name}
	}
	for _, i := range sorted(seen, "approval") {
		if i.namespace == from.Namespace {
			o.Approvals = append(o.Approvals, get[*v1alpha1.NamespaceTransferApproval](seen, i))
		}
	}
	o.Source = get[*corev1.PersistentVolumeClaim](seen, id{"claim", from.Namespace, from.Name})
	o.Receivers = w.receivers(seen, key)
	for _, i := range sorted(seen, "request") {
		if r := get[*v1alpha1.NamespaceTransferRequest](seen, i); r.Spec.Source.Namespace == from.Namespace && r.Spec.Source.Name == from.Name {
			o.Rivals = append(o.Rivals, r)
		}
	}
	return o
}

func (w *world) receivers(objects map[id]object, key types.NamespacedName) []*corev1.PersistentVolumeClaim {
	var found []*corev1.PersistentVolumeClaim
	for _, i := range sorted(objects, "claim") {
		c := get[*corev1.PersistentVolumeClaim](objects, i)
		if ref := c.Spec.DataSourceRef; i.namespace == key.Namespace && ref != nil && ref.Kind == v1alpha1.RequestKind && ref.Name == key.Name {
			found = append(found, c)
		}
	}
	return found
}

// read adds what Decide asked for.
func (w *world) read(o *protocol.Observation, r *protocol.Read) {
	if r.Volume != "" {
		o.Volume = &protocol.Volume{Name: r.Volume, PV: w.volume(id{"volume", "", r.Volume})}
	}
	if !r.Facts {
		return
	}
	pv := o.Volume.PV
	from := source
	if j, _ := protocol.ParseJournal(pv, w.settings.Driver.Name); j != nil {
		from = id{"claim", j.Source.Namespace, j.Source.Name}
		if r.Live {
			o.Claim = w.claim(id{"claim", j.Claim.Namespace, j.Claim.Name})
		}
	}
	if r.Live {
		o.Request = get[*v1alpha1.NamespaceTransferRequest](w.objects, id{"request", o.Name.Namespace, o.Name.Name})
		o.Source = w.claim(from)
		o.Receivers = w.receivers(w.objects, o.Name)
		o.Approvals = nil
		for _, i := range w.all("approval") {
			if i.namespace == from.namespace {
				o.Approvals = append(o.Approvals, get[*v1alpha1.NamespaceTransferApproval](w.objects, i))
			}
		}
	}
	if w.memory.ownerErr != "" && !w.now.Before(w.memory.toldOwner.Add(w.settings.PollInterval)) {
		w.memory.owner, w.memory.ownerErr = protocol.Ref{}, ""
	}
	f := &protocol.Facts{
		Live:                r.Live,
		Class:               get[*storagev1.StorageClass](w.objects, id{"class", "", pv.Spec.StorageClassName}),
		SourceNamespaceGone: r.Live && w.terminating,
		Attachments:         w.attachments,
		Twins:               w.twins,
		Snapshots:           w.snapshots,
		Verdict:             w.verdict,
		DriverSnapshots:     w.driverSnapshots,
		DriverError:         w.driverError,
		Owner:               w.memory.owner,
		OwnerError:          w.memory.ownerErr,
		OwnerRefused:        w.memory.ownerErr != "" && w.refusesOwner,
	}
	for _, pod := range slices.Sorted(maps.Keys(w.pods)) {
		if w.pods[pod] == from {
			f.Pods = append(f.Pods, pod)
		}
	}
	for _, i := range w.all("claim") {
		c := w.claim(i)
		if ref := c.Spec.DataSourceRef; ref != nil && ref.Kind == "PersistentVolumeClaim" && i.namespace == from.namespace && ref.Name == from.name && c.Status.Phase == corev1.ClaimPending {
			f.Clones = append(f.Clones, i.String())
		}
	}
	if w.now.Before(w.memory.forcedUntil) {
		f.ForceDeleted, f.ForceDeletedUntil = []string{w.memory.forced}, w.memory.forcedUntil
	}
	o.Facts = f
}

// act performs an action as the API server and the driver would. It tells what
// was changed and how.
func (w *world) act(a protocol.Action) (on, change string, err error) {
	switch {
	case a.Patch != nil:
		return w.patch(a.Patch)
	case a.Status != nil && a.Status.Request != nil:
		r := a.Status.Request
		return w.write(id{"request", r.Namespace, r.Name}, r, func(o object) { o.(*v1alpha1.NamespaceTransferRequest).Status = r.Status }, r.Status.Conditions)
	case a.Status != nil:
		ap := a.Status.Approval
		return w.write(id{"approval", ap.Namespace, ap.Name}, ap, func(o object) { o.(*v1alpha1.NamespaceTransferApproval).Status = ap.Status }, ap.Status.Conditions)
	case a.SetOwner != nil:
		w.memory.owner, w.memory.ownerErr, w.memory.toldOwner = a.SetOwner.To, w.ownerError, w.now
		return a.SetOwner.Volume.Name, fmt.Sprintf("from %s to %s", refName(a.SetOwner.From), refName(a.SetOwner.To)), nil
	}
	return "", "", nil
}

func (w *world) patch(p *protocol.Patch) (name, change string, err error) {
	var i id
	var on object
	if p.Volume != nil {
		i, on = id{"volume", "", p.Volume.Name}, p.Volume
	} else {
		i, on = id{"claim", p.Claim.Namespace, p.Claim.Name}, p.Claim
	}
	if w.without == nil {
		checkPatch(w, p)
	}
	current := w.objects[i]
	switch unguarded := w.without != nil && w.without.unguarded; {
	case current == nil:
		return i.String(), "", fmt.Errorf("%s %s not found", i.kind, i)
	case !unguarded && (current.GetUID() != on.GetUID() || current.GetResourceVersion() != on.GetResourceVersion()):
		return i.String(), "", errConflict
	case p.Volume != nil && w.forbidden != "":
		return i.String(), "", fmt.Errorf("%s", w.forbidden)
	}
	after := w.table.once(current, string(p.Data), func() object { return w.merge(i, current, p.Data) })
	if current.GetDeletionTimestamp() != nil && slices.ContainsFunc(after.GetFinalizers(), func(f string) bool { return !slices.Contains(current.GetFinalizers(), f) }) {
		return i.String(), "", fmt.Errorf("no new finalizers can be added to %s %s, which is being deleted", i.kind, i)
	}
	w.put(i, after)
	w.saw(i)
	if p.Claim != nil {
		return i.String(), w.changes(current, after), nil
	}
	if j, _ := protocol.ParseJournal(p.Volume, driverName); p.Step == protocol.Return && p.Refusal.Reason != protocol.ReasonApprovalWithdrawn || p.Step == protocol.Restore && !j.Bound && j.Reason == "" {
		w.memory.attempts++
		w.memory.notBefore = w.now.Add(time.Second << (w.memory.attempts - 1))
	}
	return i.String(), w.changes(current, after), nil
}

var errConflict = fmt.Errorf("conflict: the object has changed")

// conditionReason is what the API server accepts.
var conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

func (w *world) write(i id, on object, change func(object), conditions []metav1.Condition) (name, changed string, err error) {
	current := w.objects[i]
	switch {
	case current == nil:
		return i.String(), "", fmt.Errorf("%s %s not found", i.kind, i)
	case current.GetUID() != on.GetUID() || current.GetResourceVersion() != on.GetResourceVersion():
		return i.String(), "", errConflict
	}
	for _, c := range conditions {
		if !conditionReason.MatchString(c.Reason) {
			w.Errorf("the API server would not accept condition %s of %s with reason %q", c.Type, i, c.Reason)
		}
		if len(c.Message) > 32<<10 {
			w.Errorf("the API server would not accept condition %s of %s with a message of %d bytes", c.Type, i, len(c.Message))
		}
		if c.Message == "" || strings.ContainsFunc(c.Message, func(r rune) bool { return !unicode.IsGraphic(r) }) || strings.TrimRight(c.Message, " .;:,\n") != c.Message {
			w.Errorf("condition %s of %s says %q", c.Type, i, c.Message)
		}
	}
	after := w.table.once(current, on, func() object {
		after := current.DeepCopyObject().(object)
		change(after)
		return after
	})
	w.put(i, after)
	w.saw(i)
	return i.String(), w.changes(current, after), nil
}

// changes tells what a write did, where somebody reads it.
func (w *world) changes(before, after object) string {
	if w.table != nil {
		return ""
	}
	return changes(before, after)
}

// saw puts into the sidecar's caches what it wrote, or read after a conflict.
func (w *world) saw(i id) {
	switch o := w.objects[i]; {
	case w.seen == nil:
	case o == nil:
		w.seen = sans(w.seen, i)
	default:
		w.seen = with(w.seen, i, o)
	}
}

// requests are those that exist or have a volume in flight.
func (w *world) requests() []types.NamespacedName {
	names := map[types.NamespacedName]bool{}
	for _, i := range w.all("request") {
		names[types.NamespacedName{Namespace: i.namespace, Name: i.name}] = true
	}
	for _, i := range w.all("volume") {
		if j, err := protocol.ParseJournal(w.volume(i), w.settings.Driver.Name); err == nil && j != nil {
			names[j.Request.NamespacedName()] = true
		}
	}
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}

// checkPatch makes sure of what must hold for every write to a volume or claim.
func checkPatch(t testing.TB, p *protocol.Patch) {
	t.Helper()
	var patch struct {
		Metadata map[string]any
		Spec     map[string]any
		Status   any
	}
	if err := json.Unmarshal(p.Data, &patch); err != nil {
		t.Errorf("%s: %v", p.Step, err)
	}
	on := object(p.Claim)
	if p.Volume != nil {
		on = p.Volume
	}
	if patch.Metadata["uid"] != string(on.GetUID()) || patch.Metadata["resourceVersion"] != on.GetResourceVersion() {
		t.Errorf("%s is not guarded by UID and resourceVersion: %s", p.Step, p.Data)
	}
	if patch.Status != nil {
		t.Errorf("%s writes a status: %s", p.Step, p.Data)
	}
	if p.Claim != nil {
		if patch.Spec != nil {
			t.Errorf("%s writes the spec of a claim: %s", p.Step, p.Data)
		}
		return
	}
	for field := range patch.Spec {
		if field != "claimRef" && field != "persistentVolumeReclaimPolicy" {
			t.Errorf("%s writes spec.%s", p.Step, field)
		}
	}
	if ref, written := patch.Spec["claimRef"]; written {
		fields, _ := ref.(map[string]any)
		for _, f := range []string{"apiVersion", "kind", "namespace", "name", "uid"} {
			if s, _ := fields[f].(string); s == "" {
				t.Errorf("%s leaves claimRef.%s empty: %s", p.Step, f, p.Data)
			}
		}
		for _, f := range []string{"resourceVersion", "fieldPath"} {
			if v, ok := fields[f]; !ok || v != nil {
				t.Errorf("%s does not take claimRef.%s away: %s", p.Step, f, p.Data)
			}
		}
	}
	policy, written := patch.Spec["persistentVolumeReclaimPolicy"]
	switch {
	case written && policy != string(corev1.PersistentVolumeReclaimRetain) && p.Step != protocol.Restore:
		t.Errorf("%s sets policy %v", p.Step, policy)
	case !written && p.Volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		t.Errorf("%s leaves policy %s", p.Step, p.Volume.Spec.PersistentVolumeReclaimPolicy)
	case p.Step == protocol.Restore && p.Volume.Status.Phase != corev1.VolumeBound:
		t.Errorf("%s of a volume that is %s", p.Step, p.Volume.Status.Phase)
	}
}
