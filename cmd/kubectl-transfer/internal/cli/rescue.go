// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func newRescue(f *factory) *cobra.Command {
	var yes, force bool
	var wait waitFlags
	cmd := &cobra.Command{
		Use:     "rescue [VOLUME]",
		GroupID: groupEnd,
		Short:   "End a transfer whose sidecar is gone, for administrators",
		Long: `End a transfer whose volume is in flight, where no sidecar of its driver runs any
more. For administrators. Where a sidecar can run, start it: it does the same.

The journal on the volume says how it ends. A volume that was bound to the
receiving claim stays there, since that may have been written to. Any other goes
back to the claim it came from, or on to the receiving one if that is gone.
Nobody tells the driver: one that keeps owners on record has to be told by hand.

Without a volume it lists those in flight.`,
		Example: `  # Which volumes are in flight?
  kubectl transfer rescue

  # End the transfer of one of them.
  kubectl transfer rescue pvc-1f0b --yes`,
		Args: cobra.MaximumNArgs(1),
	}
	o := newOutput(cmd)
	wait.add(cmd, "the volume is in flight no more")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	cmd.Flags().BoolVar(&force, "force", false, "Even if a sidecar of the driver seems to run.")
	cmd.ValidArgsFunction = f.complete(1, volumes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(o)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return s.inFlight(cmd.Context())
		}
		r := &rescue{session: s, volume: args[0], now: time.Now}
		ctx, cancel := wait.limit(cmd.Context())
		defer cancel()
		return r.run(ctx, yes, force, wait.wait)
	}
	o.withDryRun(cmd)
	return cmd
}

// volumeResource is what only administrators may change.
var volumeResource = schema.GroupResource{Resource: "persistentvolumes"}

// inFlight lists the volumes in flight.
func (s *session) inFlight(ctx context.Context) error {
	if err := s.require(ctx, rights{neither, "", volumeResource, []string{"list"}}); err != nil {
		return err
	}
	list, err := s.core.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelInFlight})
	if err != nil {
		return fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(s.ErrOut, "No volume is in flight.")
		return nil
	}
	w := printers.GetNewTabWriter(s.Out)
	fmt.Fprintln(w, "VOLUME\tDRIVER\tFROM\tTO\tSINCE")
	for i := range list.Items {
		pv := &list.Items[i]
		driver := pv.Labels[v1alpha1.LabelInFlight]
		j, err := protocol.ParseJournal(pv, driver)
		if err != nil || j == nil {
			fmt.Fprintf(w, "%s\t%s\t<unknown>\t<unknown>\t<unknown>\n", pv.Name, driver)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", pv.Name, driver, j.Source, j.Claim, age(metav1.NewTime(j.Parked.Time)))
	}
	return w.Flush()
}

// rescue ends one transfer by the sidecar's own protocol.
type rescue struct {
	*session
	volume string
	now    func() time.Time
	// writers write volumes: as the sidecar, whose writes the admission policies
	// let pass, and as the user, should the sidecar's account be gone.
	writers []kubernetes.Interface
}

func (r *rescue) run(ctx context.Context, yes, force, wait bool) error {
	if err := r.require(ctx,
		rights{neither, "", volumeResource, []string{"get", "list", "watch", "patch"}},
		rights{neither, "", claimResource, []string{"get", "list", "watch", "patch"}},
		rights{neither, "", schema.GroupResource{Resource: "pods"}, []string{"list"}},
		rights{neither, "", schema.GroupResource{Resource: "namespaces"}, []string{"get"}},
		rights{neither, "", schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattachments"}, []string{"list"}},
		rights{neither, "", schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}, []string{"list"}},
	); err != nil {
		return err
	}
	pv, err := r.read(ctx)
	if err != nil {
		return err
	}
	j, err := journal(pv)
	if err != nil {
		return err
	}
	if !force {
		if err := r.alone(ctx, pv.Spec.CSI.Driver); err != nil {
			return err
		}
	}
	r.say("PersistentVolume %s has been in flight from %s to %s for %s.", pv.Name, j.Source, j.Claim, age(metav1.NewTime(j.Parked.Time)))
	if !yes && !r.output.dry() {
		if yes, asked := r.ask(ctx, "Is it certain that no sidecar of driver "+pv.Spec.CSI.Driver+" runs, and is the transfer to end?"); !yes {
			if !asked {
				return errors.New("make sure that no sidecar of driver " + pv.Spec.CSI.Driver + " runs, and say so with --yes")
			}
			return errors.New("nothing was changed")
		}
	}
	if err := r.writeAs(pv.Annotations[v1alpha1.AnnotationSidecarUser]); err != nil {
		return err
	}
	return r.steps(ctx, j, wait)
}

func (r *rescue) read(ctx context.Context) (*corev1.PersistentVolume, error) {
	pv, err := r.core.CoreV1().PersistentVolumes().Get(ctx, r.volume, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no PersistentVolume %s", r.volume)
	}
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolume %s: %w", r.volume, err)
	}
	return pv, nil
}

// journal is that of a volume in flight.
func journal(pv *corev1.PersistentVolume) (*protocol.Journal, error) {
	if pv.Spec.CSI == nil {
		return nil, fmt.Errorf("PersistentVolume %s is not a CSI volume and was never transferred", pv.Name)
	}
	j, err := protocol.ParseJournal(pv, pv.Spec.CSI.Driver)
	if err != nil {
		return nil, fmt.Errorf("%w; docs/operations.md says what to do by hand", err)
	}
	if j == nil {
		return nil, fmt.Errorf("PersistentVolume %s is not in flight", pv.Name)
	}
	return j, nil
}

// alone returns an error where a sidecar of the driver holds its Lease.
func (r *rescue) alone(ctx context.Context, driver string) error {
	list, err := r.core.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Leases: %w", err)
	}
	for _, l := range list.Items {
		if l.Name != leaseName(driver) || ptr.Deref(l.Spec.HolderIdentity, "") == "" || l.Spec.RenewTime == nil {
			continue
		}
		if good := l.Spec.RenewTime.Add(time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 15)) * time.Second); r.now().Before(good) {
			return fmt.Errorf("a sidecar of driver %s runs: %s holds Lease %s/%s; it ends the transfer itself, and docs/operations.md says what it may wait for. To go on all the same: --force",
				driver, *l.Spec.HolderIdentity, l.Namespace, l.Name)
		}
	}
	return nil
}

// leaseName is that of the Lease that sidecars of a driver elect their leader by.
func leaseName(driver string) string { return "csi-transfer-" + strings.ReplaceAll(driver, ".", "-") }

// writeAs prepares to write as the sidecar. Who impersonates somebody already
// does so for all writes.
func (r *rescue) writeAs(sidecar string) error {
	if sidecar != "" && r.config.Impersonate.UserName == "" {
		config := rest.CopyConfig(r.config)
		config.Impersonate.UserName = sidecar
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		r.writers = append(r.writers, client)
	}
	r.writers = append(r.writers, r.core)
	return nil
}

// steps does what the sidecar would, step by step, until the volume is in flight
// no more.
func (r *rescue) steps(ctx context.Context, j *protocol.Journal, wait bool) error {
	waitedFor := ""
	for {
		o, err := r.observe(ctx, j)
		if err != nil {
			return err
		}
		a := protocol.Decide(*o)
		landed := o.Volume.PV.Annotations[v1alpha1.AnnotationJournal] == ""
		switch {
		case landed && (a.Status == nil || !a.Status.Completed):
			return r.tell(o)
		case a.Patch != nil, a.Status != nil:
			if err := r.act(ctx, a); err != nil || r.output.dry() {
				return err
			}
		case a.Wait != nil && !wait:
			r.say("Now it waits: %s. Run this again then.", a.Why)
			return nil
		case a.Wait != nil:
			if a.Why != waitedFor {
				r.say("Waiting: %s", a.Why)
				waitedFor = a.Why
			}
			if err := r.changed(ctx, o); err != nil {
				return fmt.Errorf("%w: %s; to go on: kubectl transfer rescue %s", err, a.Why, r.volume)
			}
		default:
			return fmt.Errorf("PersistentVolume %s cannot be rescued: %s", r.volume, a.Why)
		}
	}
}

// observe reads everything anew from the API server.
func (r *rescue) observe(ctx context.Context, j *protocol.Journal) (*protocol.Observation, error) {
	pv, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	source, err := r.claim(ctx, j.Source)
	if err != nil {
		return nil, err
	}
	gone := source
	if gone == nil {
		gone = &corev1.PersistentVolumeClaim{}
		gone.Namespace, gone.Name, gone.UID = j.Source.Namespace, j.Source.Name, j.Source.UID
	}
	l, err := r.newLook(ctx, gone, j.Request.Namespace)
	if err != nil {
		return nil, err
	}
	l.o.Volume = &protocol.Volume{Name: pv.Name, PV: pv}
	l.surroundings()
	if l.err != nil {
		return nil, l.err
	}
	o := &l.o
	o.Name, o.Now, o.Source, o.Facts.Live = j.Request.NamespacedName(), r.now(), source, true
	// The sidecar looked at the volume, and asked the driver, before it parked the
	// volume. What could have changed since is looked at again.
	o.Driver = driver.Info{Name: pv.Spec.CSI.Driver, Advertised: true}
	o.Facts.Verdict = driver.Verdict{Confirmed: true}
	// However long it has been in flight was long enough.
	o.VerifyTimeout = o.Now.Sub(j.Parked.Time).Truncate(time.Second)
	return o, errors.Join(r.parties(ctx, o, j), r.namespaceGone(ctx, o, j))
}

// parties reads the objects of the transfer.
func (r *rescue) parties(ctx context.Context, o *protocol.Observation, j *protocol.Journal) (err error) {
	if o.Claim, err = r.claim(ctx, j.Claim); err != nil {
		return err
	}
	list, err := r.core.CoreV1().PersistentVolumeClaims(j.Request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the claims of namespace %s: %w", j.Request.Namespace, err)
	}
	for i := range list.Items {
		if c := &list.Items[i]; receives(c) == j.Request.Name {
			o.Receivers = append(o.Receivers, c)
		}
	}
	// Our kinds may have been removed with the sidecar.
	o.Request, err = r.api.NamespaceTransferRequests(j.Request.Namespace).Get(ctx, j.Request.Name, metav1.GetOptions{})
	if err != nil {
		o.Request = nil
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading request %s: %w", j.Request, err)
		}
	}
	approval, err := r.api.NamespaceTransferApprovals(j.Approval.Namespace).Get(ctx, j.Approval.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		o.Approvals = append(o.Approvals, approval)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading approval %s: %w", j.Approval, err)
	}
	o.Exists = func(ref v1alpha1.RequestReference) bool { return o.Request != nil && o.Request.UID == ref.UID }
	return nil
}

func (r *rescue) namespaceGone(ctx context.Context, o *protocol.Observation, j *protocol.Journal) error {
	ns, err := r.core.CoreV1().Namespaces().Get(ctx, j.Source.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		o.Facts.SourceNamespaceGone = true
	case err != nil:
		return fmt.Errorf("reading Namespace %s: %w", j.Source.Namespace, err)
	default:
		o.Facts.SourceNamespaceGone = ns.DeletionTimestamp != nil
	}
	return nil
}

func (r *rescue) claim(ctx context.Context, ref protocol.Ref) (*corev1.PersistentVolumeClaim, error) {
	c, err := r.core.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s: %w", ref, err)
	}
	return c, nil
}

// act does one step. A conflict is no error: the next step is decided anew.
func (r *rescue) act(ctx context.Context, a protocol.Action) error {
	r.say("%s", r.output.did(fmt.Sprintf("%s: %s.", a.Step(), a.Why)))
	if a.Status != nil && a.Status.Refusal != nil {
		r.say("%s", a.Status.Refusal.Message)
	}
	if r.output.dryRun == dryRunClient {
		return nil
	}
	err := r.write(ctx, a)
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (r *rescue) write(ctx context.Context, a protocol.Action) error {
	update := metav1.UpdateOptions{FieldManager: fieldManager, DryRun: r.output.all()}
	patch := metav1.PatchOptions{FieldManager: fieldManager, DryRun: r.output.all()}
	switch {
	case a.Status != nil && a.Status.Request != nil:
		_, err := r.api.NamespaceTransferRequests(a.Status.Request.Namespace).UpdateStatus(ctx, a.Status.Request, update)
		return wrap(err, "status of request %s/%s", a.Status.Request.Namespace, a.Status.Request.Name)
	case a.Status != nil:
		_, err := r.api.NamespaceTransferApprovals(a.Status.Approval.Namespace).UpdateStatus(ctx, a.Status.Approval, update)
		return wrap(err, "status of approval %s/%s", a.Status.Approval.Namespace, a.Status.Approval.Name)
	case a.Patch.Claim != nil:
		c := a.Patch.Claim
		_, err := r.core.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, types.MergePatchType, a.Patch.Data, patch)
		return wrap(err, "%s of PersistentVolumeClaim %s/%s", a.Step(), c.Namespace, c.Name)
	}
	var refused []error
	for _, client := range r.writers {
		_, err := client.CoreV1().PersistentVolumes().Patch(ctx, a.Patch.Volume.Name, types.MergePatchType, a.Patch.Data, patch)
		if !apierrors.IsForbidden(err) {
			return wrap(err, "%s of PersistentVolume %s", a.Step(), a.Patch.Volume.Name)
		}
		refused = append(refused, err)
	}
	return wrap(errors.Join(refused...), "%s of PersistentVolume %s; if the admission policies of csi-transfer refuse it, remove them with kubectl delete -k deploy/kubernetes/fences", a.Step(), a.Patch.Volume.Name)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// changed waits until the volume or one of the claims is other than observed.
func (r *rescue) changed(ctx context.Context, o *protocol.Observation) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	first := make(chan error, 3)
	go func() {
		first <- follow(watching, r.core.CoreV1().PersistentVolumes(), r.volume, func(pv *corev1.PersistentVolume) (bool, error) {
			return pv == nil || pv.ResourceVersion != o.Volume.PV.ResourceVersion, nil
		})
	}()
	for _, c := range []*corev1.PersistentVolumeClaim{o.Source, o.Claim} {
		if c == nil {
			continue
		}
		go func() {
			first <- r.followClaim(watching, types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, func(now *corev1.PersistentVolumeClaim) (bool, error) {
				return now == nil || now.ResourceVersion != c.ResourceVersion, nil
			})
		}()
	}
	return <-first
}

// tell says whose the volume is.
func (r *rescue) tell(o *protocol.Observation) error {
	pv := o.Volume.PV
	owner := "nobody"
	if ref := pv.Spec.ClaimRef; ref != nil {
		owner = ref.Namespace + "/" + ref.Name
	}
	r.say("PersistentVolume %s is in flight no more. It is %s and belongs to %s, with reclaim policy %s.", pv.Name, pv.Status.Phase, owner, pv.Spec.PersistentVolumeReclaimPolicy)
	return nil
}
