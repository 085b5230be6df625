// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// each runs f for every number below count, by as many workers as the floor has.
func each(ctx context.Context, count int, f func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range count {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

func name(i int) string { return fmt.Sprintf("data-%05d", i) }

func claim(namespace, name, class string, source *corev1.TypedObjectReference) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(class),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			DataSourceRef:    source,
		},
	}
}

// provision makes the namespaces prod-x and dev-x with count bound claims in the
// first and as many waiting claims in the second, whose data source are requests
// of their own names.
func (b *bench) provision(ctx context.Context, x string, count int) (sources []corev1.PersistentVolumeClaim, err error) {
	fmt.Printf("bench: provisioning %d volumes for the %s part\n", count, x)
	for _, ns := range []string{"prod-" + x, "dev-" + x} {
		if err := b.CreateNamespace(ctx, ns); err != nil {
			return nil, err
		}
	}
	done, err := b.allBound(ctx, "prod-"+x, count)
	if err != nil {
		return nil, err
	}
	if err := each(ctx, count, func(ctx context.Context, i int) error {
		_, err := b.Client.CoreV1().PersistentVolumeClaims("prod-"+x).Create(ctx, claim("prod-"+x, name(i), className, nil), createOptions)
		return err
	}); err != nil {
		return nil, err
	}
	if err := done(); err != nil {
		return nil, err
	}
	if err := each(ctx, count, func(ctx context.Context, i int) error {
		_, err := b.Client.CoreV1().PersistentVolumeClaims("dev-"+x).Create(ctx, claim("dev-"+x, name(i), className, &corev1.TypedObjectReference{
			APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: name(i),
		}), createOptions)
		return err
	}); err != nil {
		return nil, err
	}
	list, err := b.Client.CoreV1().PersistentVolumeClaims("prod-"+x).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	// What was written until now is not written to disk while something is measured.
	syscall.Sync()
	return list.Items, nil
}

// allBound returns a function that waits until count claims of a namespace are
// Bound. The watch begins before it returns.
func (b *bench) allBound(ctx context.Context, namespace string, count int) (func() error, error) {
	ctx, stop := context.WithTimeoutCause(ctx, 5*time.Minute, fmt.Errorf("not all %d claims of namespace %s are Bound after 5 minutes", count, namespace))
	done := make(chan struct{})
	bound := sets.New[string]() // changed by the informer's one goroutine only
	see := func(o any) {
		if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Status.Phase == corev1.ClaimBound && !bound.Has(c.Name) {
			if bound.Insert(c.Name); bound.Len() == count {
				close(done)
			}
		}
	}
	informer := coreinformers.NewPersistentVolumeClaimInformer(b.Client, namespace, 0, nil)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }}); err != nil {
		stop()
		return nil, err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		stop()
		return nil, context.Cause(ctx)
	}
	return func() error {
		defer stop()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, nil
}

// floor moves n volumes with the protocol's three writes and nothing else: no
// check, no wait between them, no status, no way back.
func (b *bench) floor(ctx context.Context) error {
	sources, err := b.provision(ctx, "floor", n)
	if err != nil {
		return err
	}
	receivers, err := b.Client.CoreV1().PersistentVolumeClaims("dev-floor").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	done, err := b.allBound(ctx, "dev-floor", n)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := each(ctx, n, func(ctx context.Context, i int) error {
		source, receiver := sources[i], receivers.Items[i]
		parked := corev1.ObjectReference{
			APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.RequestKind,
			Namespace: receiver.Namespace, Name: v1alpha1.ParkedNamePrefix + receiver.Name, UID: receiver.UID,
		}
		to := corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: receiver.Namespace, Name: receiver.Name, UID: receiver.UID}
		if err := b.setClaimRef(ctx, source.Spec.VolumeName, parked); err != nil {
			return err
		}
		mark := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationTransferredTo, receiver.Namespace+"/"+receiver.Name)
		if _, err := b.Client.CoreV1().PersistentVolumeClaims(source.Namespace).Patch(ctx, source.Name, types.MergePatchType, []byte(mark), metav1.PatchOptions{}); err != nil {
			return err
		}
		return b.setClaimRef(ctx, source.Spec.VolumeName, to)
	}); err != nil {
		return err
	}
	if err := done(); err != nil {
		return err
	}
	b.result.FloorSeconds = time.Since(start).Seconds()
	fmt.Printf("bench: floor: %d claims Bound in %.1f s\n", n, b.result.FloorSeconds)
	return nil
}

func (b *bench) setClaimRef(ctx context.Context, volume string, ref corev1.ObjectReference) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"persistentVolumeReclaimPolicy": corev1.PersistentVolumeReclaimRetain,
		"claimRef": map[string]any{
			"apiVersion": ref.APIVersion, "kind": ref.Kind, "namespace": ref.Namespace, "name": ref.Name, "uid": ref.UID,
			"resourceVersion": nil, "fieldPath": nil,
		},
	}})
	if err != nil {
		return err
	}
	_, err = b.Client.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// agree makes request and approval for a source claim.
func (b *bench) agree(ctx context.Context, source corev1.PersistentVolumeClaim, receiver string) error {
	if err := b.ask(ctx, source, receiver); err != nil {
		return err
	}
	return b.approve(ctx, source, receiver)
}

func (b *bench) ask(ctx context.Context, source corev1.PersistentVolumeClaim, receiver string) error {
	r := &v1alpha1.NamespaceTransferRequest{ObjectMeta: metav1.ObjectMeta{Namespace: receiver, Name: source.Name}}
	r.Spec.Source = v1alpha1.RequestSource{Namespace: source.Namespace, SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: source.Name}}
	_, err := b.transfer.TransferV1alpha1().NamespaceTransferRequests(receiver).Create(ctx, r, createOptions)
	return err
}

func (b *bench) approve(ctx context.Context, source corev1.PersistentVolumeClaim, receiver string) error {
	a := &v1alpha1.NamespaceTransferApproval{ObjectMeta: metav1.ObjectMeta{Namespace: source.Namespace, Name: source.Name}}
	a.Spec.Source = v1alpha1.ApprovalSource{UID: source.UID, SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: source.Name}}
	a.Spec.TargetNamespace = receiver
	_, err := b.transfer.TransferV1alpha1().NamespaceTransferApprovals(source.Namespace).Create(ctx, a, createOptions)
	return err
}

// transfers moves n volumes with csi-transfer. The time runs from the start of
// the sidecar, for which everything is ready, until all claims are Bound.
func (b *bench) transfers(ctx context.Context) error {
	sources, err := b.provision(ctx, "many", n)
	if err != nil {
		return err
	}
	if err := each(ctx, n, func(ctx context.Context, i int) error { return b.agree(ctx, sources[i], "dev-many") }); err != nil {
		return err
	}
	done, err := b.allBound(ctx, "dev-many", n)
	if err != nil {
		return err
	}
	mark, err := b.AuditMark()
	if err != nil {
		return err
	}
	start := time.Now()
	p, err := b.startSidecar(ctx, "csi-transfer-many", []string{fmt.Sprintf("--worker-threads=%d", workers), "--kube-api-qps=-1"})
	if err != nil {
		return err
	}
	if err := done(); err != nil {
		return err
	}
	b.result.TransfersSeconds = time.Since(start).Seconds()
	b.result.Ratio = b.result.TransfersSeconds / b.result.FloorSeconds
	fmt.Printf("bench: %d transfers: all claims Bound in %.1f s, %.2f times the floor\n", n, b.result.TransfersSeconds, b.result.Ratio)

	if err := each(ctx, n, func(ctx context.Context, i int) error {
		for ns, resource := range map[string]string{"prod-many": "namespacetransferapprovals", "dev-many": "namespacetransferrequests"} {
			if _, err := b.WaitCondition(ctx, v1alpha1.SchemeGroupVersion.WithResource(resource), ns, sources[i].Name, v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Printf("bench: %d transfers: all Completed in %.1f s\n", n, time.Since(start).Seconds())
	if b.result.RSSMiB, err = memory(p.PID(), "VmHWM"); err != nil {
		return err
	}
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return b.countWrites(mark)
}

// countWrites prints the sidecar's writes by verb and resource.
func (b *bench) countWrites(mark cluster.AuditMark) error {
	events, err := b.Audit(cluster.AuditFilter{Since: mark, User: sidecar})
	if err != nil {
		return err
	}
	writes, reads, perTransfer := map[string]int{}, map[string]int{}, 0
	for _, e := range events {
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		if !slices.Contains(cluster.WriteVerbs, e.Verb) {
			reads[e.Verb+" "+resource]++
			continue
		}
		key := e.Verb + " " + resource
		refused := e.ResponseStatus.Code >= 300
		if refused {
			key += fmt.Sprintf(" (%d)", e.ResponseStatus.Code)
		}
		writes[key]++
		// When it starts, the sidecar asks who it is, and shows on the CSIDriver object
		// what the driver can do. What the API server refuses, a conflict for
		// instance, writes nothing.
		if !refused && resource != "events" && resource != "selfsubjectreviews" && resource != "csidrivers" {
			perTransfer++
		}
	}
	for kind, counts := range map[string]map[string]int{"writes": writes, "reads": reads} {
		fmt.Printf("bench: %s by the sidecar:\n", kind)
		for _, key := range slices.Sorted(maps.Keys(counts)) {
			fmt.Printf("  %6d  %s\n", counts[key], key)
		}
	}
	b.result.WritesPerTransfer = float64(perTransfer) / n
	return nil
}

// oneAtATime measures single transfers with the shipped flags on a cluster that
// does nothing else. Request and receiving claim wait for the approval.
func (b *bench) oneAtATime(ctx context.Context) error {
	sources, err := b.provision(ctx, "single", single)
	if err != nil {
		return err
	}
	p, err := b.startSidecar(ctx, "csi-transfer-single", b.shipped)
	if err != nil {
		return err
	}
	for i := range sources {
		if err := b.ask(ctx, sources[i], "dev-single"); err != nil {
			return err
		}
	}
	var took, lost []time.Duration
	for _, source := range sources {
		t, l, err := b.one(ctx, source)
		if err != nil {
			return err
		}
		took, lost = append(took, t), append(lost, l)
	}
	b.result.P50Milliseconds, b.result.P99Milliseconds = percentile(took, 50), percentile(took, 99)
	b.result.LostMilliseconds = percentile(lost, 99)
	fmt.Printf("bench: %d transfers one at a time: %.0f ms p50, %.0f ms p99\n", single, b.result.P50Milliseconds, b.result.P99Milliseconds)
	return p.Stop(ctx)
}

// one moves one volume and returns the time from approval to Bound and from park
// to the source claim being Lost.
func (b *bench) one(ctx context.Context, source corev1.PersistentVolumeClaim) (took, lost time.Duration, err error) {
	byName := func(name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	}
	volume, err := b.Client.CoreV1().PersistentVolumes().Watch(ctx, byName(source.Spec.VolumeName))
	if err != nil {
		return 0, 0, err
	}
	defer volume.Stop()
	giver, err := b.Client.CoreV1().PersistentVolumeClaims(source.Namespace).Watch(ctx, byName(source.Name))
	if err != nil {
		return 0, 0, err
	}
	defer giver.Stop()
	receiver, err := b.Client.CoreV1().PersistentVolumeClaims("dev-single").Watch(ctx, byName(source.Name))
	if err != nil {
		return 0, 0, err
	}
	defer receiver.Stop()

	start := time.Now()
	if err := b.approve(ctx, source, "dev-single"); err != nil {
		return 0, 0, err
	}
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	var parked time.Time
	for took == 0 || lost == 0 {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-limit.C:
			return 0, 0, fmt.Errorf("PersistentVolumeClaim %s/%s did not move within a minute", source.Namespace, source.Name)
		case e := <-volume.ResultChan():
			if pv, ok := e.Object.(*corev1.PersistentVolume); ok && parked.IsZero() && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Kind == v1alpha1.RequestKind {
				parked = time.Now()
			}
		case e := <-giver.ResultChan():
			if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && lost == 0 && c.Status.Phase == corev1.ClaimLost {
				lost = max(time.Since(parked), 1)
			}
		case e := <-receiver.ResultChan():
			if c, ok := e.Object.(*corev1.PersistentVolumeClaim); ok && took == 0 && c.Status.Phase == corev1.ClaimBound {
				took = time.Since(start)
			}
		}
	}
	if parked.IsZero() {
		return 0, 0, fmt.Errorf("PersistentVolume %s was never seen parked", source.Spec.VolumeName)
	}
	_, err = b.WaitCondition(ctx, v1alpha1.SchemeGroupVersion.WithResource("namespacetransferapprovals"), source.Namespace, source.Name, v1alpha1.ConditionTransferred, metav1.ConditionTrue, "")
	return took, lost, err
}

// percentile is in milliseconds.
func percentile(d []time.Duration, p int) float64 {
	slices.Sort(d)
	i := int(math.Ceil(float64(len(d)*p)/100)) - 1
	return float64(d[i].Microseconds()) / 1000
}

// idle measures a sidecar that has nothing to do in a large cluster. The volumes
// and claims are bound to nothing, and the controller manager stands still, as
// it has no part in this and would take minutes to look at them all.
func (b *bench) idle(ctx context.Context) error {
	fmt.Printf("bench: creating %d volumes and claims\n", idle)
	if err := b.Process("kube-controller-manager").Pause(); err != nil {
		return err
	}
	if _, err := b.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "idle"}}, createOptions); err != nil {
		return err
	}
	var created atomic.Int32
	if err := each(ctx, idle, func(ctx context.Context, i int) error {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "idle-" + name(i)},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: className,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: driverName, VolumeHandle: "idle-" + name(i),
				}},
				ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "idle", Name: name(i)},
			},
		}
		if _, err := b.Client.CoreV1().PersistentVolumes().Create(ctx, pv, createOptions); err != nil {
			return err
		}
		if _, err := b.Client.CoreV1().PersistentVolumeClaims("idle").Create(ctx, claim("idle", name(i), className, nil), createOptions); err != nil {
			return err
		}
		if k := created.Add(1); k%2500 == 0 {
			fmt.Printf("bench: %d of %d\n", k, idle)
		}
		return nil
	}); err != nil {
		return err
	}
	mark, err := b.AuditMark()
	if err != nil {
		return err
	}
	p, err := b.startSidecar(ctx, "csi-transfer-idle", b.shipped)
	if err != nil {
		return err
	}
	if err := b.leads(ctx, p, mark); err != nil {
		return err
	}
	settled, err := b.AuditMark()
	if err != nil {
		return err
	}
	fmt.Printf("bench: watching the idle sidecar for %s\n", idleTime)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idleTime):
	}
	events, err := b.Audit(cluster.AuditFilter{Since: settled, User: sidecar})
	if err != nil {
		return err
	}
	b.result.IdleRPM = float64(len(events)) / idleTime.Minutes()
	b.result.IdleRSSMiB, err = memory(p.PID(), "VmRSS")
	return err
}

// leads waits until a sidecar started after the mark has its Lease: then it asks
// the API server who it is.
func (b *bench) leads(ctx context.Context, p *cluster.Process, since cluster.AuditMark) error {
	for {
		events, err := b.Audit(cluster.AuditFilter{Since: since, User: sidecar, Resource: "selfsubjectreviews"})
		if err != nil || len(events) > 0 {
			return err
		}
		select {
		case <-p.Exited():
			return errors.New("csi-transfer ended early")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// memory reads a line of /proc/PID/status, in MiB.
func memory(pid int, field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	match := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("/proc/%d/status has no %s", pid, field)
	}
	kib, err := strconv.ParseFloat(string(match[1]), 64)
	return kib / 1024, err
}
