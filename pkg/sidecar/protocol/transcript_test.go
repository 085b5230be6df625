// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// TestTranscripts runs testdata/*.txt. Each says what happens when something
// happens in the middle of a transfer. After a change of the protocol, run with
// -rewrite and read the difference.
//
// The commands:
//
//	start [rename] [nobody-asks] [at=STEP]
//	                               a new world with request, receiving claim and approval, with
//	                               changes ("KIND NAME: patch"), where the sidecar has just done STEP
//	run [to=STEP] [as=DRIVER]      the sidecar decides and acts until it waits, or has done STEP;
//	                               or that of another driver
//	decide                         what the sidecar would do
//	why                            the same as run, and what the requests say then
//	kubernetes [resync]            binder, provisioner and protection controllers catch up
//	settle                         run and kubernetes until nothing changes
//	crash                          the sidecar forgets what is not in an object
//	lag                            the sidecar's caches stop
//	catch-up [KIND NAME]           they go on, or show that object as it is
//	tick DURATION                  time passes
//	create, edit KIND NAME         with YAML; receiving claims, requests and approvals have defaults
//	delete KIND NAME
//	pod, attach, twin, snapshot    facts: with - in front of the name they go away
//	terminate                      the giving namespace begins to terminate
//	driver                         what the driver can do and says, see setDriver
//	traffic [crowded] [finish-in=DURATION]
//	                               what the volumes of other transfers mean for this one
//	forbid                         the API server refuses writes of volumes, with this text
//	show [KIND NAME]
func TestTranscripts(t *testing.T) {
	for _, path := range transcripts(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			var w *world
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				if w == nil || d.Cmd == "start" {
					w = newWorld(t)
				}
				w.TB = t
				return strings.Join(w.command(d), "\n")
			})
		})
	}
}

func transcripts(t testing.TB) []string {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	return paths
}

// TestEveryReasonIsReached: the transcripts show each reason with its sentence.
func TestEveryReasonIsReached(t *testing.T) {
	var all strings.Builder
	for _, path := range transcripts(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, r := range protocol.Reasons {
		if !regexp.MustCompile(`Transferred: ` + string(r.Reason) + ` ".`).MatchString(all.String()) {
			t.Errorf("no transcript shows reason %s", r.Reason)
		}
	}
}

// command runs one command of a transcript.
func (w *world) command(d *datadriven.TestData) []string {
	arg := func(n int) string {
		if n >= len(d.CmdArgs) {
			d.Fatalf(w, "%s needs more", d.Cmd)
		}
		return d.CmdArgs[n].String()
	}
	switch d.Cmd {
	case "start":
		claim := receiver
		if d.HasArg("rename") {
			claim = id{"claim", "prod", "renamed"}
			request.namespace = "prod"
			defer func() { request.namespace = "dev" }()
		}
		if !d.HasArg("nobody-asks") {
			w.ask(claim)
		}
		w.edits(d.Input)
		if at, ok := d.Arg("at"); ok {
			w.takeTo(protocol.Step(at.SingleVal(w)))
		}
	case "run":
		var to protocol.Step
		if step, ok := d.Arg("to"); ok {
			to = protocol.Step(step.SingleVal(w))
		}
		if as, ok := d.Arg("as"); ok {
			defer func(mine driver.Info) { w.settings.Driver = mine }(w.settings.Driver)
			w.settings.Driver = driver.Info{Name: as.SingleVal(w), Advertised: true, Linkage: driver.LinkageNone}
		}
		told, _ := w.run(to)
		return told
	case "why":
		w.run("")
		var told []string
		for _, i := range w.all("request") {
			told = append(told, "Transferred: "+facets(w.objects[i])["Transferred:"])
		}
		for _, key := range w.requests() {
			_, a, _ := w.decide(key)
			told = append(told, a.Step()+w.why(a))
		}
		return told
	case "decide":
		var told []string
		for _, key := range w.requests() {
			_, a, reads := w.decide(key)
			told = append(append(told, reads...), w.title(key)+a.Step()+w.why(a))
		}
		return told
	case "kubernetes":
		return w.kubernetes(d.HasArg("resync"))
	case "settle":
		var told []string
		for range 20 {
			steps, _ := w.run("")
			catchUp := w.kubernetes(false)
			told = append(append(told, steps...), catchUp...)
			if len(catchUp) == 0 {
				return told
			}
		}
		w.Fatalf("does not settle: %v", told)
	case "crash":
		w.memory = memory{}
	case "lag":
		w.seen = w.copy(w.objects)
	case "catch-up":
		if len(d.CmdArgs) > 0 {
			w.saw(parseID(arg(0), arg(1)))
		} else {
			w.seen = nil
		}
	case "tick":
		passed, err := time.ParseDuration(arg(0))
		if err != nil {
			w.Fatal(err)
		}
		w.now = w.now.Add(passed)
	case "create":
		i := parseID(arg(0), arg(1))
		switch i.kind {
		case "claim":
			w.receive(i, d.Input)
		case "request":
			w.request(i, d.Input)
		case "approval":
			w.approve(i, d.Input)
		default:
			w.create(i, d.Input)
		}
	case "edit":
		w.edit(parseID(arg(0), arg(1)), d.Input)
	case "delete":
		w.delete(parseID(arg(0), arg(1)))
	case "pod":
		name, gone := strings.CutPrefix(arg(0), "-")
		delete(w.pods, name)
		if d.HasArg("by-force") {
			w.memory.forced, w.memory.forcedUntil = name, w.now.Add(time.Minute)
		}
		if !gone {
			w.pods[name] = source
			if len(d.CmdArgs) > 1 {
				w.pods[name] = parseID("claim", arg(1))
			}
		}
	case "attach":
		node, gone := strings.CutPrefix(arg(0), "-")
		w.attachments = slices.DeleteFunc(w.attachments, func(a protocol.Attachment) bool { return a.Node == node })
		if !gone {
			w.attachments = append(w.attachments, protocol.Attachment{Name: "csi-" + node, Node: node})
		}
	case "twin":
		w.twins = []string{arg(0)}
	case "snapshot":
		namespace, name, _ := strings.Cut(arg(0), "/")
		s := protocol.Snapshot{Kind: "VolumeSnapshot", Namespace: namespace, Name: name, Ready: d.HasArg("ready")}
		d.MaybeScanArgs(w, "kind", &s.Kind)
		w.snapshots = append(w.snapshots, s)
	case "terminate":
		w.terminating = true
	case "driver":
		w.setDriver(d)
	case "traffic":
		w.crowded, w.finishAfter = d.HasArg("crowded"), time.Time{}
		if in, ok := d.Arg("finish-in"); ok {
			wait, err := time.ParseDuration(in.SingleVal(w))
			if err != nil {
				w.Fatal(err)
			}
			w.finishAfter = w.now.Add(wait)
		}
	case "forbid":
		w.forbidden = d.Input
	case "show":
		if len(d.CmdArgs) > 0 {
			i := parseID(arg(0), arg(1))
			if w.objects[i] == nil {
				return []string{i.String() + " is gone"}
			}
			return []string{i.String() + ": " + changes(nil, w.objects[i])}
		}
		var told []string
		for _, kind := range []string{"volume", "claim", "request", "approval"} {
			for _, i := range w.all(kind) {
				told = append(told, kind+" "+i.String()+": "+changes(nil, w.objects[i]))
			}
		}
		return told
	default:
		d.Fatalf(w, "unknown command %s", d.Cmd)
	}
	return nil
}

// setDriver changes what the driver can do and says:
//
//	driver [silent] [linkage=none|snapshots|chain] [validate] [set-owner] [list-snapshots]
//	       [confirms] [blocks=(type,id,message)] [snapshots=(a,b)] [error=text] [owner-error=text]
//	       [owner-refused=text]
func (w *world) setDriver(d *datadriven.TestData) {
	info := driver.Info{Name: driverName, Advertised: !d.HasArg("silent"), Linkage: driver.LinkageNone, Validate: d.HasArg("validate"), SetOwner: d.HasArg("set-owner"), ListSnapshots: d.HasArg("list-snapshots")}
	w.refusesOwner = false
	w.verdict, w.driverSnapshots, w.driverError, w.ownerError = driver.Verdict{Confirmed: d.HasArg("confirms")}, nil, "", ""
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "linkage":
			info.Linkage = driver.Linkage(a.Vals[0])
		case "blocks":
			w.verdict.Blockers = []driver.Blocker{{Type: driver.BlockerType(a.Vals[0]), ID: a.Vals[1], Message: a.Vals[2]}}
		case "snapshots":
			w.driverSnapshots = a.Vals
		case "error":
			w.driverError = a.Vals[0]
		case "owner-error":
			w.ownerError = a.Vals[0]
		case "owner-refused":
			w.ownerError, w.refusesOwner = a.Vals[0], true
		}
	}
	w.settings.Driver = info
}

// takeTo takes the transfer to a step, silently.
func (w *world) takeTo(step protocol.Step) {
	for range 10 {
		if _, done := w.run(step); done {
			return
		}
		w.kubernetes(false)
	}
	w.Fatalf("no %s", step)
}

// run takes every transfer as far as it goes, or until a step is done.
func (w *world) run(to protocol.Step) (told []string, done bool) {
	for _, key := range w.requests() {
		for steps := 0; ; steps++ {
			if steps > 20 {
				w.Fatalf("%s never waits: %v", key, told)
			}
			o, a, reads := w.decide(key)
			told = append(told, reads...)
			if a.Wait != nil {
				told = append(told, w.title(key)+"Wait"+w.why(a))
				break
			}
			on, change, err := w.act(a)
			line := effect(w.title(key)+a.Step()+" "+on+w.why(a), change)
			if a.Patch != nil && a.Patch.Refusal != nil {
				line += fmt.Sprintf("\n    because: %q", a.Patch.Refusal.Message)
			}
			told = append(told, line)
			switch {
			case err == errConflict:
				told = append(told, "    "+err.Error())
				w.saw(written(a))
				continue
			case err != nil:
				told = append(told, "    "+err.Error())
				if s := o.WriteRefused(err); s != nil {
					on, change, _ := w.act(protocol.Action{Status: s})
					told = append(told, effect(w.title(key)+"RequestStatus "+on, change))
				}
			}
			if err != nil {
				break
			}
			if a.Patch != nil && a.Patch.Step == to {
				return told, true
			}
		}
	}
	return told, false
}

// effect is what was written, and what that changed.
func effect(what, change string) string {
	return strings.TrimSuffix(strings.Replace(what+": "+change, ": \n", "\n", 1), ": ")
}

// written is the object that an action writes.
func written(a protocol.Action) id {
	switch {
	case a.Patch != nil && a.Patch.Volume != nil:
		return id{"volume", "", a.Patch.Volume.Name}
	case a.Patch != nil:
		return id{"claim", a.Patch.Claim.Namespace, a.Patch.Claim.Name}
	case a.Status.Request != nil:
		return id{"request", a.Status.Request.Namespace, a.Status.Request.Name}
	}
	return id{"approval", a.Status.Approval.Namespace, a.Status.Approval.Name}
}

// title names the transfer where there are several.
func (w *world) title(key types.NamespacedName) string {
	if len(w.requests()) > 1 {
		return key.String() + ": "
	}
	return ""
}

func (w *world) why(a protocol.Action) string {
	why := " (" + a.Why
	if a.Wait != nil {
		if !a.Wait.At.IsZero() {
			why += fmt.Sprintf("; at most %s", a.Wait.At.Sub(w.now))
		}
		for _, ref := range a.Wait.Watch {
			why += "; watches " + ref.Resource.Resource
			if ref.Name != "" {
				why += " " + id{"", ref.Namespace, ref.Name}.String()
			}
		}
	}
	return why + ")"
}

// edits changes objects, all in one YAML map; null deletes.
func (w *world) edits(input string) {
	var changes map[string]json.RawMessage
	if err := json.Unmarshal(yamlToJSON(w, input), &changes); err != nil {
		w.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		kind, of, _ := strings.Cut(name, " ")
		if string(changes[name]) == "null" {
			w.delete(parseID(kind, of))
		} else {
			w.edit(parseID(kind, of), string(changes[name]))
		}
	}
	w.protect(func(string, ...any) {})
}

func yamlToJSON(t testing.TB, s string) []byte {
	t.Helper()
	if strings.TrimSpace(s) == "" {
		return []byte("{}")
	}
	b, err := yaml.ToJSON([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func refName(r protocol.Ref) string {
	if r == (protocol.Ref{}) {
		return "nobody"
	}
	return fmt.Sprintf("%s(%s)", r, r.UID)
}

// changes tells in short what a write did to an object; all of it, if there
// was none before.
func changes(before, after object) string {
	was, is := map[string]string{}, facets(after)
	if before != nil {
		was = facets(before)
	}
	var told, messages []string
	for _, key := range slices.Sorted(maps.Keys(is)) {
		value, had := was[key]
		switch {
		case had && value == is[key]:
		case strings.HasSuffix(key, ":"): // a message has a line of its own
			messages = append(messages, "\n    "+key+" "+is[key])
		default:
			told = append(told, strings.TrimSpace(key+" "+is[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, ok := is[key]; !ok {
			told = append(told, "no "+key)
		}
	}
	return strings.Join(told, ", ") + strings.Join(messages, "")
}

// facets are what of an object matters for a transfer.
func facets(o object) map[string]string {
	f := map[string]string{}
	for _, name := range o.GetFinalizers() {
		f["finalizer "+short(name)] = ""
	}
	for key := range o.GetLabels() {
		f["label "+short(key)] = ""
	}
	for key := range o.GetAnnotations() {
		f["annotation "+short(key)] = ""
	}
	for _, key := range []string{"annotation bind-completed", "annotation provisioned-by", "finalizer " + protectionFinalizer, "finalizer " + claimProtection} {
		delete(f, key)
	}
	if o.GetDeletionTimestamp() != nil {
		f["deleting"] = ""
	}
	conditions := func(phase v1alpha1.Phase, all []metav1.Condition) {
		f["phase"] = string(phase)
		for _, c := range all {
			f[c.Type+":"] = fmt.Sprintf("%s %q", c.Reason, c.Message)
		}
	}
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		f["policy"] = string(o.Spec.PersistentVolumeReclaimPolicy)
		f["phase"] = string(o.Status.Phase)
		if ref := o.Spec.ClaimRef; ref != nil {
			f["claimRef"] = refName(protocol.Ref{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID})
		}
		if j, _ := protocol.ParseJournal(o, driverName); j != nil {
			delete(f, "annotation "+short(v1alpha1.AnnotationJournal))
			f["journal"] = "for " + refName(j.Claim)
			if j.Bound {
				f["journal"] += " bound"
			}
			if j.Reason != "" {
				f["journal"] += " back for " + string(j.Reason)
			}
		}
	case *corev1.PersistentVolumeClaim:
		f["phase"] = string(o.Status.Phase)
		if o.Spec.VolumeName != "" {
			f["volumeName"] = o.Spec.VolumeName
		}
		if to := o.Annotations[v1alpha1.AnnotationTransferredTo]; to != "" {
			f["annotation "+short(v1alpha1.AnnotationTransferredTo)] = to
		}
	case *v1alpha1.NamespaceTransferRequest:
		conditions(o.Status.Phase, o.Status.Conditions)
		if o.Status.VolumeName != "" {
			f["volumeName"] = o.Status.VolumeName
		}
		if o.Status.StartTime != nil {
			f["started"] = o.Status.StartTime.UTC().Format(time.TimeOnly)
		}
		if o.Status.CompletionTime != nil {
			f["completed"] = o.Status.CompletionTime.UTC().Format(time.TimeOnly)
		}
		if r := o.Status.Required; r != nil {
			f["required"] = fmt.Sprint(r.Capacity.String(), " ", r.StorageClassName, " ", r.VolumeMode, " ", r.AccessModes)
		}
	case *v1alpha1.NamespaceTransferApproval:
		conditions(o.Status.Phase, o.Status.Conditions)
		if r := o.Status.Request; r != nil {
			f["reserved"] = fmt.Sprintf("for %s of %s", refName(protocol.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}), o.Status.ClaimUID)
		}
	}
	return f
}

// short leaves the domain of a key away where everybody knows it.
func short(key string) string {
	key = strings.TrimPrefix(key, v1alpha1.GroupName+"/")
	return strings.TrimPrefix(key, "pv.kubernetes.io/")
}
