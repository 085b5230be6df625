// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	objectFile = "object.json"
	dataName   = "data"
	tmpName    = "tmp"
)

// state is the state directory. It is all that a driver knows: nothing is kept
// in memory, so that a restart loses nothing, and a controller and a node
// process can share it.
//
//	lock                      held while a call reads or changes anything
//	publish.log               see PublishRecord
//	volumes/<id>/object.json  what is known of a volume
//	volumes/<id>/data         its content: a directory, or a file where it is a block volume
//	snapshots/…, groups/…, nodes/…
//	tmp                       what is being made or removed; emptied when the driver starts
//
// Objects appear, change and disappear by rename. There is no fsync: a mock
// need not outlive a power cut.
type state struct {
	dir      string
	mu       sync.Mutex
	lockFile *os.File

	volumes   collection[volume]
	snapshots collection[snapshot]
	groups    collection[group]
	nodes     collection[node]
}

type volume struct {
	ID, Name   string
	Capacity   int64
	Block      bool
	Parameters map[string]string `json:",omitempty"`
	// Mutable are the parameters that ControllerModifyVolume changes.
	Mutable  map[string]string `json:",omitempty"`
	Source   source            `json:",omitzero"`
	Topology map[string]string `json:",omitempty"`
	// HydratedAt is when the content of a volume that has a source is ready.
	HydratedAt time.Time `json:",omitzero"`

	// Attached is keyed by node ID.
	Attached  map[string]access `json:",omitempty"`
	Staged    []use             `json:",omitempty"`
	Published []use             `json:",omitempty"`

	Owner Owner `json:",omitzero"`
}

// source is what a volume was made from: nothing, a snapshot or a volume.
type source struct {
	Snapshot string `json:",omitempty"`
	Volume   string `json:",omitempty"`
}

// access is how a volume is used, in CSI's terms.
type access struct {
	Mode     string
	Block    bool
	Flags    string `json:",omitempty"`
	ReadOnly bool
}

// use is a volume staged or published at a path of a node.
type use struct {
	Node, Path string
	Access     access
	Pod        Pod `json:",omitzero"`
}

type snapshot struct {
	ID, Name, Volume string
	Group            string `json:",omitempty"`
	Size             int64
	Block            bool
	Created          time.Time
}

type group struct {
	ID, Name  string
	Volumes   []string
	Snapshots []string
	Created   time.Time
}

type node struct {
	ID         string
	MaxVolumes int64             `json:",omitempty"`
	Topology   map[string]string `json:",omitempty"`
}

func openState(dir string) (*state, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// Nobody but the driver reaches the volumes' content here; pods get it
	// through mounts.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Paths of volumes are compared with it where symlinks were followed.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	lockFile, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	s := &state{dir: dir, lockFile: lockFile}
	s.volumes = newCollection[volume](s, "volumes", "vol-")
	s.snapshots = newCollection[snapshot](s, "snapshots", "snap-")
	s.groups = newCollection[group](s, "groups", "group-")
	s.nodes = newCollection[node](s, "nodes", "node-")
	if err := s.recover(); err != nil {
		return nil, errors.Join(err, lockFile.Close())
	}
	return s, nil
}

// lock waits until no other call, of this process or another, uses the state.
// One lock for everything: calls are short, and a mock that is easy to trust
// is worth more than one that copies two volumes at once.
func (s *state) lock() (unlock func(), err error) {
	s.mu.Lock()
	for {
		err := unix.Flock(int(s.lockFile.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			s.mu.Unlock()
			return nil, fmt.Errorf("locking %s: %w", s.lockFile.Name(), err)
		}
	}
	return func() {
		// Closing the file would unlock as well, so that a failure here cannot
		// outlive the process.
		_ = unix.Flock(int(s.lockFile.Fd()), unix.LOCK_UN)
		s.mu.Unlock()
	}, nil
}

// recover finishes what a crash interrupted.
func (s *state) recover() error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	tmp := filepath.Join(s.dir, tmpName)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	for _, dir := range []string{tmp, s.volumes.dir, s.snapshots.dir, s.groups.dir, s.nodes.dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// A group is written after, and removed before, its snapshots.
	snapshots, err := s.snapshots.list()
	if err != nil {
		return err
	}
	for _, snap := range snapshots {
		if snap.Group == "" {
			continue
		}
		if _, err := s.groups.get(snap.Group); errors.Is(err, fs.ErrNotExist) {
			if err := s.snapshots.remove(snap.ID); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (s *state) close() error { return s.lockFile.Close() }

// collection is all objects of one kind.
type collection[T any] struct {
	dir, tmp, prefix string
	validID          *regexp.Regexp
}

func newCollection[T any](s *state, name, prefix string) collection[T] {
	return collection[T]{
		dir:     filepath.Join(s.dir, name),
		tmp:     filepath.Join(s.dir, tmpName),
		prefix:  prefix,
		validID: regexp.MustCompile("^" + prefix + "[0-9a-f]{32}$"),
	}
}

// idFor derives the ID from the name that the CO gives, so that a repeated
// request finds the object without a search.
func (c collection[T]) idFor(name string) string {
	sum := sha256.Sum256([]byte(name))
	return c.prefix + hex.EncodeToString(sum[:16])
}

// data is where the content of an object is.
func (c collection[T]) data(id string) string { return filepath.Join(c.dir, id, dataName) }

// get fails with fs.ErrNotExist where there is no such object. id may be
// anything that a caller sent.
func (c collection[T]) get(id string) (*T, error) {
	if !c.validID.MatchString(id) {
		return nil, fs.ErrNotExist
	}
	path := filepath.Join(c.dir, id, objectFile)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	object := new(T)
	if err := json.Unmarshal(content, object); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return object, nil
}

// list returns all objects, sorted by ID.
func (c collection[T]) list() ([]*T, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	objects := make([]*T, 0, len(entries))
	for _, entry := range entries {
		if !c.validID.MatchString(entry.Name()) {
			continue // something that somebody else put there
		}
		object, err := c.get(entry.Name())
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// create makes an object together with its content, which fill puts at the
// path that it is given.
func (c collection[T]) create(id string, object *T, fill func(data string) error) error {
	tmp := filepath.Join(c.tmp, id)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	err := fill(filepath.Join(tmp, dataName))
	if err == nil {
		err = writeJSON(filepath.Join(tmp, objectFile), object)
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(c.dir, id))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return nil
}

func (c collection[T]) update(id string, object *T) error {
	tmp := filepath.Join(c.tmp, id+".json")
	if err := writeJSON(tmp, object); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(c.dir, id, objectFile))
}

func (c collection[T]) remove(id string) error {
	tmp := filepath.Join(c.tmp, id)
	if err := os.Rename(filepath.Join(c.dir, id), tmp); err != nil {
		return err
	}
	return os.RemoveAll(tmp)
}

func writeJSON(path string, object any) error {
	content, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

func noData(string) error { return nil }
