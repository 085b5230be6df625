// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// table makes worlds comparable and cheap to go on from: two objects of the
// same content are one, so that a pointer stands for content, and what was
// once decided or written is looked up. Many worlds share one.
//
// A resourceVersion is good for nothing but to be compared with that of now.
// Here it is "1" for an object of now, and "0" for a former one: how many
// writes there were before makes no difference.
type table struct {
	mu       sync.RWMutex
	contents map[string]*versions
	objects  map[object]*versions
	results  map[change]object
	choices  map[uint64]*choice
}

type versions struct {
	current, former object
	// journal is a volume's, if it has a good one.
	journal *protocol.Journal
}

// change is one that was made before: how to which object.
type change struct {
	of  object
	how any
}

func newTable() *table {
	return &table{contents: map[string]*versions{}, objects: map[object]*versions{}, results: map[change]object{}, choices: map[uint64]*choice{}}
}

// versions are the two that stand for an object.
func (t *table) versions(o object) *versions {
	t.mu.RLock()
	v := t.objects[o]
	t.mu.RUnlock()
	if v != nil {
		return v
	}
	o = o.DeepCopyObject().(object)
	o.SetResourceVersion("1")
	content, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	key := fmt.Sprintf("%T%s", o, content)
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.contents[key]; v != nil {
		return v
	}
	former := o.DeepCopyObject().(object)
	former.SetResourceVersion("0")
	v = &versions{current: o, former: former}
	if pv, ok := o.(*corev1.PersistentVolume); ok {
		v.journal, _ = protocol.ParseJournal(pv, driverName)
	}
	t.contents[key], t.objects[o], t.objects[former] = v, v, v
	return v
}

func (t *table) current(o object) object { return t.versions(o).current }

// once makes a change, or remembers it.
func (t *table) once(of object, how any, make func() object) object {
	if t == nil {
		return make()
	}
	key := change{of, how}
	t.mu.RLock()
	o := t.results[key]
	t.mu.RUnlock()
	if o == nil {
		o = t.current(make())
		t.mu.Lock()
		t.results[key] = o
		t.mu.Unlock()
	}
	return o
}

// choice is what a sidecar decided.
type choice struct {
	protocol.Action
	// text is equal for equal actions.
	text string
}

var seed = maphash.MakeSeed()

// entry is one fact of a world. Their hashes are added up, so that no order
// matters.
type entry struct {
	of    string
	key   any
	value any
}

func hashed(of string, key, value any) uint64 {
	return maphash.Comparable(seed, entry{of, key, value})
}

func hashedAll[M ~map[K]V, K comparable, V any](of string, m M) (sum uint64) {
	for k, v := range m {
		sum += hashed(of, k, v)
	}
	return sum
}

// hash is equal for worlds that have the same future.
func (w *world) hash() uint64 {
	sum := hashedAll("object", w.objects) + hashedAll("binder", w.binder) + w.surroundings()
	for n := range w.sidecars {
		s := &w.sidecars[n]
		sum += hashedAll("seen", s.seen)*uint64(2*n+3) + hashed("memory", n, s.memory)
		if s.intent != nil {
			sum += hashed("intent", n, intention{s.intent.text, s.intent.stale})
		}
	}
	return sum + hashedAll("mounted", w.mounted) + hashedAll("bound", w.bound) + hashed("life", w.marks, w.counts["claim"])
}

type intention struct {
	text  string
	stale bool
}

// surroundings is what sidecars may see beside objects.
func (w *world) surroundings() uint64 {
	return hashedAll("pod", w.pods) + hashed("facts", fmt.Sprint(w.snapshots), w.now.Unix()) + hashed("driver", w.driverError, w.terminating) + hashed("burst", w.crowded, w.finishAfter.Unix())
}

// choose is decide, remembered.
func (w *world) choose(key types.NamespacedName) *choice {
	seen := w.seen
	if seen == nil {
		seen = w.objects
	}
	inputs := hashedAll("object", w.objects) + hashedAll("seen", seen)*3 + w.surroundings() +
		hashed("sidecar", key, w.memory) + hashed("driver", w.settings.Driver, nil)
	w.table.mu.RLock()
	c := w.table.choices[inputs]
	w.table.mu.RUnlock()
	if c != nil {
		return c
	}
	c = &choice{}
	_, c.Action, _ = w.decide(key)
	switch a := c.Action; {
	case a.Patch != nil:
		c.text = fmt.Sprint(a.Step(), written(a), string(a.Patch.Data))
	case a.Status != nil:
		status, err := json.Marshal([]any{a.Status.Request, a.Status.Approval})
		if err != nil {
			panic(err)
		}
		c.text = fmt.Sprint(a.Step(), written(a), string(status))
	default:
		c.text = a.Step() + a.Why
	}
	w.table.mu.Lock()
	w.table.choices[inputs] = c
	w.table.mu.Unlock()
	return c
}

// outdate tells caches and intents that an object was written.
func (w *world) outdate(i id) {
	old := func(seen map[id]object) map[id]object {
		o := seen[i]
		if o == nil || o.GetResourceVersion() == "0" {
			return seen
		}
		return with(seen, i, w.table.versions(o).former)
	}
	w.binder = old(w.binder)
	for n := range w.sidecars {
		s := &w.sidecars[n]
		s.seen = old(s.seen)
		if s.intent != nil && !s.intent.stale && writes(s.intent.Action) && written(s.intent.Action) == i {
			s.intent = &intent{s.intent.choice, true}
		}
	}
}
