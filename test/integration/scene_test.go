// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	typedv1alpha1 "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/typed/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// scene is what one test acts in: a giving and a receiving namespace. Names that
// tests do not choose are the same in every scene: claim data, request
// take-data, approval give-data.
type scene struct {
	*testing.T
	*world
	ctx             context.Context
	giver, receiver string
	// class is the StorageClass of new claims.
	class string
	// own is the driver of the scene's own, if it has one.
	own *cluster.Driver
	// moving is the name of the volume that source has made.
	moving string
	// kept is what a test has put aside for later.
	kept *corev1.PersistentVolume
}

// scenes counts them, for names.
var scenes atomic.Int32

// newScene makes a scene in the shared world, in parallel with others.
func newScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return makeScene(t, shared)
}

// newQuietScene makes a scene while no other is played, for what is measured.
func newQuietScene(t *testing.T) *scene {
	t.Helper()
	return makeScene(t, shared)
}

// newFrailScene makes a scene whose controller manager can be frozen.
func newFrailScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	frail.Lock()
	t.Cleanup(frail.Unlock)
	w, err := frail.start()
	if err != nil {
		t.Fatal(err)
	}
	s := makeScene(t, w)
	t.Cleanup(s.thaw)
	return s
}

func makeScene(t *testing.T, w *world) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	n := scenes.Add(1)
	s := &scene{T: t, world: w, ctx: ctx, giver: fmt.Sprintf("prod-%d", n), receiver: fmt.Sprintf("dev-%d", n), class: className}
	for _, ns := range []string{s.giver, s.receiver} {
		s.must(w.CreateNamespace(ctx, ns))
	}
	return s
}

// another is a scene of the same driver.
func (s *scene) another() *scene {
	s.Helper()
	other := makeScene(s.T, s.world)
	other.own, other.class = s.own, s.class
	return other
}

// freeze stops the volume binder and all other controllers of Kubernetes.
func (s *scene) freeze() {
	s.Helper()
	s.must(s.Process("kube-controller-manager").Pause())
}

// thaw lets them go on.
func (s *scene) thaw() {
	s.Helper()
	s.must(s.Process("kube-controller-manager").Resume())
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func must[T any](s *scene) func(T, error) T {
	return func(v T, err error) T {
		s.Helper()
		s.must(err)
		return v
	}
}

func (s *scene) claims(namespace string) typedcorev1.PersistentVolumeClaimInterface {
	return s.Client.CoreV1().PersistentVolumeClaims(namespace)
}

func (s *scene) requests() typedv1alpha1.NamespaceTransferRequestInterface {
	return s.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver)
}

func (s *scene) approvals() typedv1alpha1.NamespaceTransferApprovalInterface {
	return s.transfer.TransferV1alpha1().NamespaceTransferApprovals(s.giver)
}

// vendor brings a driver of the test's own, with a class that new claims use.
// They end with the test. Its sidecar is started by sidecarOf. One with a
// Snapshotter has snapshot classes of the same name.
func (s *scene) vendor(options cluster.DriverOptions) *cluster.Driver {
	s.Helper()
	options.Name = fmt.Sprintf("mock-%d.example.com", scenes.Add(1))
	d := must[*cluster.Driver](s)(s.StartDriver(s.ctx, options))
	s.Cleanup(func() {
		for _, p := range []*cluster.Process{d.Provisioner, d.Snapshotter, d.Resizer, d.Attacher, d.Process} {
			if p != nil {
				p.Kill()
			}
		}
	})
	s.own = d
	s.newClass()
	if options.Snapshotter {
		s.snapshotClasses()
	}
	return d
}

// sidecarOf starts the sidecar of a driver of the scene's own.
func (s *scene) sidecarOf(d *cluster.Driver, flags ...string) *cluster.Process {
	s.Helper()
	p := must[*cluster.Process](s)(s.startSidecar(s.ctx, d.Name, d, flags...))
	s.Cleanup(p.Kill)
	return p
}

// driverName is that of the driver that the scene's volumes are of.
func (s *scene) driverName() string {
	if s.own != nil {
		return s.own.Name
	}
	return driverName
}

// newClass makes a class of the scene's own, which new claims use.
func (s *scene) newClass(change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	s.Helper()
	c := class(fmt.Sprintf("class-%d", scenes.Add(1)), s.driverName())
	for _, f := range change {
		f(c)
	}
	s.class = c.Name
	return must[*storagev1.StorageClass](s)(s.Client.StorageV1().StorageClasses().Create(s.ctx, c, metav1.CreateOptions{}))
}

// claim makes a claim of 1Gi.
func (s *scene) claim(namespace, name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.Helper()
	return must[*corev1.PersistentVolumeClaim](s)(s.claims(namespace).Create(s.ctx, s.newClaim(name, change...), metav1.CreateOptions{}))
}

func (s *scene) newClaim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(s.class),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	size("1Gi")(c)
	for _, f := range change {
		f(c)
	}
	return c
}

// Changes to a claim.

func size(quantity string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(quantity)}
	}
}

// from makes a claim receive what a request asks for.
func from(request string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: request}
	}
}

// on asks for one volume.
func on(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

// bound waits until a claim is Bound.
func (s *scene) bound(namespace, name string) *corev1.PersistentVolumeClaim {
	s.Helper()
	return must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, namespace, name, corev1.ClaimBound))
}

// source provisions the claim data in the giving namespace.
func (s *scene) source(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.Helper()
	s.claim(s.giver, "data", change...)
	source := s.bound(s.giver, "data")
	s.moving = source.Spec.VolumeName
	return source
}

// receive makes the claim data in the receiving namespace, for take-data.
func (s *scene) receive(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.Helper()
	return s.claim(s.receiver, "data", append([]func(*corev1.PersistentVolumeClaim){from("take-data")}, change...)...)
}

// static makes a volume by hand, for a claim of the scene. The class is one of
// the scene's own: the binder gives a volume to any claim that it suits.
func (s *scene) static(name, claimNamespace, claimName string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	s.Helper()
	if s.class == className {
		s.newClass()
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.giver + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:              s.class,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claimNamespace, Name: claimName},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: s.driverName(), VolumeHandle: s.giver + "-" + name},
			},
		},
	}
	for _, f := range change {
		f(pv)
	}
	return must[*corev1.PersistentVolume](s)(s.Client.CoreV1().PersistentVolumes().Create(s.ctx, pv, metav1.CreateOptions{}))
}

// request asks for the claim data, as take-data.
func (s *scene) request(change ...func(*v1alpha1.NamespaceTransferRequest)) *v1alpha1.NamespaceTransferRequest {
	s.Helper()
	return must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Create(s.ctx, s.newRequest(change...), metav1.CreateOptions{}))
}

func (s *scene) newRequest(change ...func(*v1alpha1.NamespaceTransferRequest)) *v1alpha1.NamespaceTransferRequest {
	r := &v1alpha1.NamespaceTransferRequest{ObjectMeta: metav1.ObjectMeta{Name: "take-data"}}
	r.Spec.Source = v1alpha1.RequestSource{Namespace: s.giver, SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}}
	for _, f := range change {
		f(r)
	}
	return r
}

// approve gives the claim data, as give-data, pinned if the claim is given.
func (s *scene) approve(source *corev1.PersistentVolumeClaim, change ...func(*v1alpha1.NamespaceTransferApproval)) *v1alpha1.NamespaceTransferApproval {
	s.Helper()
	return must[*v1alpha1.NamespaceTransferApproval](s)(s.approvals().Create(s.ctx, s.newApproval(source, change...), metav1.CreateOptions{}))
}

func (s *scene) newApproval(source *corev1.PersistentVolumeClaim, change ...func(*v1alpha1.NamespaceTransferApproval)) *v1alpha1.NamespaceTransferApproval {
	a := &v1alpha1.NamespaceTransferApproval{ObjectMeta: metav1.ObjectMeta{Name: "give-data"}}
	a.Spec.Source = v1alpha1.ApprovalSource{SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}}
	if source != nil {
		a.Spec.Source.UID = source.UID
	}
	a.Spec.TargetNamespace = s.receiver
	for _, f := range change {
		f(a)
	}
	return a
}

// offer makes everything that a transfer needs: source, request, receiving claim
// and approval.
func (s *scene) offer() *corev1.PersistentVolumeClaim {
	s.Helper()
	source := s.source()
	s.grant(source)
	return source
}

// grant makes all but the source.
func (s *scene) grant(source *corev1.PersistentVolumeClaim) {
	s.Helper()
	s.request()
	s.receive()
	s.approve(source)
}

// transferred waits until the request is.
func (s *scene) transferred() *v1alpha1.NamespaceTransferRequest {
	s.Helper()
	must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, "take-data", v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
	return must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Get(s.ctx, "take-data", metav1.GetOptions{}))
}

// spent waits until the approval is.
func (s *scene) spent() {
	s.Helper()
	must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, "give-data", v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
}

// refused waits until the request says that it waits for a reason, and returns
// the sentence.
func (s *scene) refused(reason protocol.Reason) string {
	s.Helper()
	c := must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, "take-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(reason)))
	reached.Store(reason, true)
	return c.Message
}

// told waits for an event about an object and returns its message. It finds what
// a condition has said only for a moment, too.
func (s *scene) told(namespace, kind, name, reason string) string {
	s.Helper()
	events := s.Client.CoreV1().Events(namespace)
	selector := fields.Set{"involvedObject.kind": kind, "involvedObject.name": name, "reason": reason}.String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return events.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return events.Watch(ctx, o)
		},
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	event, err := watchtools.UntilWithSync(ctx, lw, &corev1.Event{}, nil, func(e watch.Event) (bool, error) { return e.Type == watch.Added, nil })
	if err != nil {
		s.Fatalf("waiting for an event %s on %s %s/%s: %v", reason, kind, namespace, name, err)
	}
	reached.Store(protocol.Reason(reason), true)
	return event.Object.(*corev1.Event).Message
}

// lookedAt returns when the sidecar has looked at everything that was there when
// it was called: a transfer that begins later is through.
func (s *scene) lookedAt() {
	s.Helper()
	later := s.another()
	later.own, later.class = nil, className
	later.offer()
	later.transferred()
	later.spent()
}

// contains fails unless a text has all that a user needs from it, where names
// stand for what they are in this scene.
func (s *scene) contains(text string, wants ...string) {
	s.Helper()
	names := strings.NewReplacer("{giver}", s.giver, "{receiver}", s.receiver, "{volume}", s.moving, "{class}", s.class, "{driver}", s.driverName())
	for _, want := range wants {
		want = names.Replace(want)
		if !strings.Contains(text, want) {
			s.Errorf("%q does not say %q", text, want)
		}
	}
}

func (s *scene) volume(name string) *corev1.PersistentVolume {
	s.Helper()
	return must[*corev1.PersistentVolume](s)(s.Client.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{}))
}

// waitVolume waits until a volume is as wanted.
func (s *scene) waitVolume(name string, done func(*corev1.PersistentVolume) bool) *corev1.PersistentVolume {
	s.Helper()
	return must[*corev1.PersistentVolume](s)(cluster.Wait(s.ctx, s.Cluster, cluster.Volumes, "", name, done))
}

// arrived fails unless a volume has moved to the claim data of the receiving
// namespace and is as it was before in everything else.
func (s *scene) arrived(before *corev1.PersistentVolume) {
	s.Helper()
	s.owned(before, s.bound(s.receiver, "data"))
}

// owned fails unless a volume is bound to a claim and as it was before.
func (s *scene) owned(before *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	s.Helper()
	after := s.volume(before.Name)
	if claim.Spec.VolumeName != after.Name || after.Spec.ClaimRef == nil || after.Spec.ClaimRef.UID != claim.UID || after.Status.Phase != corev1.VolumeBound {
		s.Errorf("claim %s/%s has volume %q; volume %s is %s and refers to %+v", claim.Namespace, claim.Name, claim.Spec.VolumeName, after.Name, after.Status.Phase, after.Spec.ClaimRef)
	}
	if was, is := before.Spec.PersistentVolumeReclaimPolicy, after.Spec.PersistentVolumeReclaimPolicy; was != is {
		s.Errorf("the policy of volume %s was %s and is %s", after.Name, was, is)
	}
	if left := ours(after.ObjectMeta); len(left) > 0 {
		s.Errorf("volume %s keeps %v", after.Name, left)
	}
	if was, is := slices.Sorted(slices.Values(before.Finalizers)), slices.Sorted(slices.Values(after.Finalizers)); !slices.Equal(was, is) {
		s.Errorf("the finalizers of volume %s were %v and are %v", after.Name, was, is)
	}
}

// returned waits until the source claim works as before: Bound to its volume,
// with nothing of a transfer left on either.
func (s *scene) returned(before *corev1.PersistentVolume) {
	s.Helper()
	s.waitVolume(before.Name, func(pv *corev1.PersistentVolume) bool {
		return len(ours(pv.ObjectMeta)) == 0 && pv.Status.Phase == corev1.VolumeBound
	})
	source := s.bound(s.giver, "data")
	s.owned(before, source)
	if left := ours(source.ObjectMeta); len(left) > 0 {
		s.Errorf("claim %s/%s keeps %v", source.Namespace, source.Name, left)
	}
}

// ours lists what of a transfer is on an object.
func ours(o metav1.ObjectMeta) []string {
	var left []string
	for _, keys := range []map[string]string{o.Labels, o.Annotations} {
		for key := range keys {
			if strings.HasPrefix(key, v1alpha1.GroupName) {
				left = append(left, key)
			}
		}
	}
	for _, f := range o.Finalizers {
		if strings.HasPrefix(f, v1alpha1.GroupName) {
			left = append(left, f)
		}
	}
	return left
}

// parked says that a volume belongs to a transfer.
func parked(pv *corev1.PersistentVolume) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Kind == v1alpha1.RequestKind
}

// pod makes a pod that is scheduled and uses the claim. Nothing runs it.
func (s *scene) pod(namespace, name, claim string, change ...func(*corev1.Pod)) *corev1.Pod {
	s.Helper()
	pod := podOn(name, claim)
	for _, f := range change {
		f(pod)
	}
	return must[*corev1.Pod](s)(s.Client.CoreV1().Pods(namespace).Create(s.ctx, pod, metav1.CreateOptions{}))
}

func podOn(name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:   "node-1",
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

// deletePod deletes a pod at once: no kubelet is there to confirm.
func (s *scene) deletePod(namespace, name string) {
	s.Helper()
	s.must(s.Client.CoreV1().Pods(namespace).Delete(s.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

// deleteClaim deletes a claim and, if wanted, waits until it is gone.
func (s *scene) deleteClaim(namespace, name string, gone bool) {
	s.Helper()
	s.must(s.claims(namespace).Delete(s.ctx, name, metav1.DeleteOptions{}))
	if gone {
		s.must(s.WaitGone(s.ctx, cluster.Claims, namespace, name))
	}
}

// patchClaim and patchVolume apply a merge patch as an administrator, to a
// subresource if one is given.
func (s *scene) patchClaim(namespace, name, patch string, subresource ...string) {
	s.Helper()
	must[*corev1.PersistentVolumeClaim](s)(s.claims(namespace).Patch(s.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...))
}

func (s *scene) patchVolume(name, patch string, subresource ...string) {
	s.Helper()
	must[*corev1.PersistentVolume](s)(s.Client.CoreV1().PersistentVolumes().Patch(s.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...))
}

// logged waits until a program has logged something.
func (s *scene) logged(p *cluster.Process, text string) {
	s.Helper()
	s.must(wait.PollUntilContextCancel(s.ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		log, err := os.ReadFile(p.Log)
		return bytes.Contains(log, []byte(text)), err
	}))
}

func annotation(key, value string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, must1(json.Marshal(value)))
}

// must1 is for what cannot fail.
func must1(b []byte, err error) string {
	if err != nil {
		panic(err)
	}
	return string(b)
}

// forbid makes an admission policy that refuses every change of a volume for
// which a CEL expression is true, waits until it is in force, and returns what
// lifts it. It holds a transfer at any step for as long as a test needs.
func (s *scene) forbid(volume, expression string) (lift func()) {
	s.Helper()
	name := fmt.Sprintf("forbid-%d", scenes.Add(1))
	api := s.Client.AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(s.ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				ResourceNames: []string{volume},
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"persistentvolumes"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{
				{Expression: "!(" + expression + ")", Message: "held by " + name},
				{Expression: `!("probe" in object.metadata.?labels.orValue({}))`},
			},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(s.ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        name,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	lift = func() { s.must(api.ValidatingAdmissionPolicies().Delete(s.ctx, name, metav1.DeleteOptions{})) }
	s.must(wait.PollUntilContextCancel(s.ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"probe":""}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil, nil
	}))
	return lift
}

// binding is the CEL expression of the write by which a transfer passes its
// point of no return.
const binding = `object.spec.?claimRef.kind.orValue("") == "PersistentVolumeClaim" && oldObject.spec.?claimRef.kind.orValue("") == "` + v1alpha1.RequestKind + `" && ` +
	`object.spec.claimRef.namespace.startsWith("dev-")`

// inFlight brings a transfer to the point before it binds: the volume is parked,
// the source claim Lost. It goes on after lift.
func (s *scene) inFlight() (before *corev1.PersistentVolume, lift func()) {
	s.Helper()
	return s.heldAt(binding)
}

// heldAt brings a transfer to the point before a write of the volume for which a
// CEL expression is true, with the source claim Lost. It goes on after lift.
func (s *scene) heldAt(write string) (before *corev1.PersistentVolume, lift func()) {
	s.Helper()
	source := s.source()
	before = s.volume(source.Spec.VolumeName)
	lift = s.forbid(before.Name, write)
	s.grant(source)
	s.contains(s.refused(protocol.ReasonWriteRefused), before.Name)
	must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, s.giver, "data", corev1.ClaimLost))
	return before, lift
}
