// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sidecar moves volumes between namespaces: it observes a transfer, lets
// package protocol decide what is next, and does that, one action after another.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	typedgroupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumegroupsnapshot/v1"
	typedsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	typedtransferv1alpha1 "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/typed/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// Clients are those of the API groups that a Controller works with, and no
// others: a clientset of all groups would be a third of the program.
type Clients struct {
	Core           typedcorev1.CoreV1Interface
	Storage        typedstoragev1.StorageV1Interface
	Transfer       typedtransferv1alpha1.TransferV1alpha1Interface
	Snapshots      typedsnapshotv1.SnapshotV1Interface
	GroupSnapshots typedgroupsnapshotv1.GroupsnapshotV1Interface
	Metadata       metadata.Interface
}

// Config is what a Controller works with. All of it is required.
type Config struct {
	Clients
	Recorder record.EventRecorder
	Metrics  *Metrics

	Driver *driver.Driver
	// Settings.Driver is filled in from Driver.
	Settings protocol.Settings

	// Workers is how many transfers are worked on at a time.
	Workers int
	// RetryStart and RetryMax bound the growing wait after an error and after a
	// transfer was rolled back.
	RetryStart, RetryMax time.Duration
	// Resync is how often every open transfer is looked at with nothing having
	// changed. It costs no request.
	Resync time.Duration
}

// Controller moves the volumes of one driver.
type Controller struct {
	core     typedcorev1.CoreV1Interface
	storage  typedstoragev1.StorageV1Interface
	transfer typedtransferv1alpha1.TransferV1alpha1Interface
	metadata metadata.Interface
	recorder record.EventRecorder
	metrics  *Metrics
	settings protocol.Settings
	workers  int
	now      func() time.Time

	// base is Run's context: watches and questions to the driver outlive the look
	// at a transfer that began them.
	base context.Context

	queue        workqueue.TypedRateLimitingInterface[types.NamespacedName]
	surroundings *batch[extent, *surroundings]
	handles      *batch[extent, map[string][]string]
	terminating  *batch[string, bool]
	asker        *asker
	holdoff      *holdoff
	forced       forced
	turns        turns
	watches      *watches
	// extra is what a waiting transfer watches beyond its namespaces.
	extra sync.Map // types.NamespacedName: []protocol.WatchRef

	requests, approvals, volumes overlay
	classes, csiDriver           cache.SharedIndexInformer
}

// maxSteps bounds the actions in a row for one transfer, so that a mistake
// cannot spin. A whole transfer takes eight.
const maxSteps = 32

// maxReads bounds the reads for one decision likewise: two volumes, what lies
// around one of them, and that once more from the API server.
const maxReads = 4

// An API server that does not answer holds a worker up for no longer than this.
const (
	readTimeout  = time.Minute
	writeTimeout = 20 * time.Second
)

// New makes a Controller. Run runs it.
func New(c Config) *Controller {
	settings := c.Settings
	settings.Driver = c.Driver.Info()
	k := &Controller{}
	*k = Controller{
		core: c.Core, storage: c.Storage, transfer: c.Transfer, metadata: c.Metadata, recorder: c.Recorder, metrics: c.Metrics,
		settings: settings, workers: c.Workers, now: time.Now,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](c.RetryStart, c.RetryMax),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "transfers"}),
		holdoff: newHoldoff(c.RetryStart, c.RetryMax),
		forced:  forced{until: map[types.NamespacedName]map[string]time.Time{}},
		turns:   turns{waiting: map[types.NamespacedName]struct{}{}},
	}
	r := &reader{Clients: c.Clients, driver: settings.Driver.Name, attaches: k.attaches}
	k.surroundings, k.handles, k.terminating = newBatch(r.read), newBatch(r.handles), newBatch(r.terminating)
	k.asker = newAsker(c.Driver, k.secretsOf, settings.PollInterval, k.queue.Add)
	k.watches = newWatches(k.open, k.queue.Add)
	k.requests.informer = informer(c.Transfer.RESTClient(), "namespacetransferrequests", "", &v1alpha1.NamespaceTransferRequest{}, c.Resync, cache.Indexers{indexBySource: indexer(sourceOf)}, nil)
	k.approvals.informer = informer(c.Transfer.RESTClient(), "namespacetransferapprovals", "", &v1alpha1.NamespaceTransferApproval{}, 0, cache.Indexers{indexBySource: indexer(givenBy)}, nil)
	k.volumes.informer = informer(c.Core.RESTClient(), "persistentvolumes", "", &corev1.PersistentVolume{}, 0, cache.Indexers{indexByRequest: indexer(k.requestOf), indexByMember: indexer(k.membersOf), indexByPlace: indexer(placeOf)}, func(o *metav1.ListOptions) {
		o.LabelSelector = labels.Set{v1alpha1.LabelInFlight: settings.Driver.Name}.String()
	})
	k.classes = informer(c.Storage.RESTClient(), "storageclasses", "", &storagev1.StorageClass{}, 0, nil, nil)
	k.csiDriver = informer(c.Storage.RESTClient(), "csidrivers", "", &storagev1.CSIDriver{}, c.Resync, nil, named(settings.Driver.Name))
	return k
}

// Run moves volumes until ctx is done. It finishes the action it is at and no
// more: what is left is taken up by whoever runs next.
func (c *Controller) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	logger.Info("Starting", "driver", c.settings.Driver.Name, "linkage", c.settings.Driver.Linkage, "capable", c.settings.Driver.Advertised)
	defer logger.Info("Stopped")

	c.base = ctx
	for _, o := range []*overlay{&c.requests, &c.approvals, &c.volumes} {
		o.recent = recentWrites(ctx, o.informer)
	}
	informers := []cache.SharedIndexInformer{c.requests.informer, c.approvals.informer, c.volumes.informer, c.classes, c.csiDriver}
	if err := c.handle(); err != nil {
		return err
	}
	var synced []cache.DoneChecker
	for _, i := range informers {
		go i.RunWithContext(ctx)
		synced = append(synced, i.HasSyncedChecker())
	}
	if !cache.WaitFor(ctx, "transfers", synced...) {
		return nil // stopped
	}

	var workers sync.WaitGroup
	for range c.workers {
		workers.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	workers.Wait()
	return nil
}

func (c *Controller) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if ctx.Err() != nil {
		return true
	}
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "transfer", key)
	switch err := c.transferOne(klog.NewContext(ctx, logger), key); {
	case err == nil:
		c.queue.Forget(key)
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		logger.V(2).Info("Conflict, trying again", "err", err)
		c.queue.AddRateLimited(key)
	default:
		logger.Error(err, "Trying again later")
		c.queue.AddRateLimited(key)
	}
	return true
}

// transferOne takes one transfer as far as it goes for now.
func (c *Controller) transferOne(ctx context.Context, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	conflicts := 0
	var kept *protocol.Observation
	for range maxSteps {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		o, ready := c.observe(key)
		if !ready {
			return nil // until the watches are synced
		}
		if kept != nil && o.Volume == nil {
			o.Volume, o.Facts = kept.Volume, kept.Facts
		}
		c.heedTraffic(o)
		a := protocol.Decide(*o)
		for reads := 0; a.Read != nil; reads++ {
			if reads == maxReads {
				return fmt.Errorf("more than %d reads for one decision; the last was to know %s", maxReads, a.Why)
			}
			if ready, err := c.readMore(ctx, o, a.Read); err != nil || !ready {
				return err
			}
			a = protocol.Decide(*o)
		}
		if a.Wait != nil {
			logger.V(4).Info("Waiting", "why", a.Why, "until", a.Wait.At)
			c.settle(o, a)
			return nil
		}
		logger.V(3).Info("Acting", "step", a.Step(), "why", a.Why)
		var err error
		if kept, err = c.actUntorn(ctx, o, a); err != nil {
			kept = nil
			if apierrors.IsConflict(err) && conflicts < 3 {
				conflicts++
				continue
			}
			return errors.Join(err, c.refused(ctx, o, a, err))
		}
		if a.SetOwner != nil {
			return nil // until the driver has answered
		}
	}
	return fmt.Errorf("more than %d actions in a row", maxSteps)
}

// actUntorn performs one action, which a stop does not tear apart.
func (c *Controller) actUntorn(ctx context.Context, o *protocol.Observation, a protocol.Action) (*protocol.Observation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return c.act(ctx, o, a)
}

// refused says on the request that the API server will not have a write.
func (c *Controller) refused(ctx context.Context, o *protocol.Observation, a protocol.Action, err error) error {
	if a.Patch == nil || !(apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
		return nil
	}
	if s := o.WriteRefused(err); s != nil {
		return c.writeStatus(ctx, o, s)
	}
	return nil
}

// settle arranges what ends a wait.
func (c *Controller) settle(o *protocol.Observation, a protocol.Action) {
	if o.Volume == nil && (o.Request == nil || match.Completed(o.Request)) {
		c.extra.Delete(o.Name)
		c.watches.want(c.base, o.Name)
		c.asker.forget(o.Name)
		c.holdoff.forget(o.Name)
		c.metrics.waits(o.Name, "")
		return
	}
	if waiting := o.WaitingFor(); o.OfOtherDriver() && waiting != string(protocol.ReasonAwaitingDriverSidecar) {
		c.metrics.waits(o.Name, "") // its own sidecar counts it
	} else {
		c.metrics.waits(o.Name, waiting)
	}
	if a.Wait.Turn {
		c.turns.wait(o.Name)
	}
	if !a.Wait.At.IsZero() {
		c.queue.AddAfter(o.Name, max(a.Wait.At.Sub(c.now()), 0))
	}
	if len(a.Wait.Watch) == 0 {
		c.extra.Delete(o.Name)
		return
	}
	c.extra.Store(o.Name, a.Wait.Watch)
	c.watches.add(c.base, o.Name, a.Wait.Watch...)
}

func (c *Controller) extraOf(key types.NamespacedName) []protocol.WatchRef {
	refs, _ := c.extra.Load(key)
	extra, _ := refs.([]protocol.WatchRef)
	return extra
}

// open makes the informer of a scope: of the objects where they are read, of
// their metadata where only their change matters.
func (c *Controller) open(ref protocol.WatchRef) cache.SharedIndexInformer {
	switch ref.Resource {
	case claimResource:
		i := informer(c.core.RESTClient(), ref.Resource.Resource, ref.Namespace, &corev1.PersistentVolumeClaim{}, 0, cache.Indexers{indexByDataSource: indexer(dataSource)}, nil)
		c.handleClaims(i)
		return i
	case podResource:
		i := informer(c.core.RESTClient(), ref.Resource.Resource, ref.Namespace, &corev1.Pod{}, 0, cache.Indexers{indexByClaim: indexer(protocol.ClaimsOf)}, nil)
		_ = i.SetTransform(trimPod) // fails only once started
		c.handlePods(i)
		return i
	}
	resource := c.metadata.Resource(ref.Resource).Namespace(ref.Namespace)
	change := named(ref.Name)
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			change(&o)
			return resource.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			change(&o)
			return resource.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, 0, nil)
}

// handlers calls changed with every version of an object: what an object was
// before may matter to another transfer than what it is now.
func handlers[T any](changed func(T)) cache.ResourceEventHandler {
	call := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if object, ok := o.(T); ok {
			changed(object)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    call,
		UpdateFunc: func(before, after any) { call(before); call(after) },
		DeleteFunc: call,
	}
}

// handle maps what changes to the transfers it concerns.
func (c *Controller) handle() error {
	_, err1 := c.requests.informer.AddEventHandler(handlers(func(r *v1alpha1.NamespaceTransferRequest) {
		c.queue.Add(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
	}))
	// An approval may be free again when the request it was reserved for is gone.
	_, err2 := c.requests.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: handlers(func(r *v1alpha1.NamespaceTransferRequest) {
		c.enqueueSource(types.NamespacedName{Namespace: r.Spec.Source.Namespace, Name: r.Spec.Source.Name})
	}).OnDelete})
	_, err3 := c.approvals.informer.AddEventHandler(handlers(func(a *v1alpha1.NamespaceTransferApproval) {
		c.enqueueSource(types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.Source.Name})
	}))
	_, err4 := c.volumes.informer.AddEventHandler(handlers(func(pv *corev1.PersistentVolume) {
		j, err := protocol.ParseJournal(pv, c.settings.Driver.Name)
		switch {
		case err != nil:
			klog.Background().Error(err, "Leaving a volume alone that is labelled as in flight", "volume", pv.Name)
		case j != nil:
			c.queue.Add(j.Request.NamespacedName())
			c.enqueueSource(j.Source.NamespacedName())
		}
	}))
	_, err5 := c.volumes.informer.AddEventHandler(handlers(c.followTraffic()))
	_, err6 := c.classes.AddEventHandler(handlers(func(*storagev1.StorageClass) {
		for _, key := range c.requests.informer.GetStore().ListKeys() {
			c.queue.Add(splitName(key))
		}
	}))
	_, err7 := c.csiDriver.AddEventHandler(c.publishing())
	return errors.Join(err1, err2, err3, err4, err5, err6, err7)
}

// enqueueSource looks again at all transfers from a claim.
func (c *Controller) enqueueSource(claim types.NamespacedName) {
	for _, r := range byIndex[v1alpha1.NamespaceTransferRequest](overlay{informer: c.requests.informer}, indexBySource, claim.String()) {
		c.queue.Add(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
	}
}

func (c *Controller) handleClaims(informer cache.SharedIndexInformer) {
	_, _ = informer.AddEventHandler(handlers(func(claim *corev1.PersistentVolumeClaim) {
		c.enqueueSource(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
		if ref := claim.Spec.DataSourceRef; len(dataSource(claim)) > 0 {
			if ref.Kind == v1alpha1.RequestKind {
				c.queue.Add(types.NamespacedName{Namespace: claim.Namespace, Name: ref.Name})
			} else {
				c.enqueueSource(types.NamespacedName{Namespace: claim.Namespace, Name: ref.Name})
			}
		}
		c.enqueueInFlight(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	}))
}

func (c *Controller) handlePods(informer cache.SharedIndexInformer) {
	uses := handlers(func(pod *corev1.Pod) {
		for _, claim := range protocol.ClaimsOf(pod) {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: claim}
			c.enqueueSource(key)
			c.enqueueInFlight(key)
		}
	})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { uses.OnAdd(o, false) },
		UpdateFunc: func(before, after any) {
			// Most changes of a pod are changes of its status.
			if !slices.Equal(protocol.ClaimsOf(before.(*corev1.Pod)), protocol.ClaimsOf(after.(*corev1.Pod))) {
				uses.OnUpdate(before, after)
			}
		},
		DeleteFunc: func(o any) {
			handlers(func(pod *corev1.Pod) {
				if deletedByForce(pod) {
					c.forced.deleted(pod, c.now())
				}
			}).OnDelete(o)
			uses.OnDelete(o)
		},
	})
}

// enqueueInFlight looks again at the transfer that has a claim's volume in
// flight. Its request may be gone.
func (c *Controller) enqueueInFlight(claim types.NamespacedName) {
	for _, pv := range byIndex[corev1.PersistentVolume](overlay{informer: c.volumes.informer}, indexByMember, claim.String()) {
		for _, request := range c.requestOf(pv) {
			c.queue.Add(splitName(request))
		}
	}
}
