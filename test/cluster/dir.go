// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// claimDir returns the directory for a cluster's state and a function to call
// when the cluster is gone.
//
// An empty dir stands for a temporary one, which that function removes with all
// that a node kept there has left. A process that is killed cannot remove its
// own: whoever comes next does.
func claimDir(dir string) (_ string, release func(), err error) {
	if dir != "" {
		dir, err = emptyDir(dir)
		return dir, func() {}, err
	}

	parent := filepath.Join(os.TempDir(), fmt.Sprintf("test-cluster-%d", os.Getuid()))
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", nil, err
	}
	// Keeps others from taking a directory for abandoned that is not locked yet.
	unlockParent, err := lockDir(parent, unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer unlockParent()

	others, err := os.ReadDir(parent)
	if err != nil {
		return "", nil, err
	}
	for _, other := range others {
		path := filepath.Join(parent, other.Name())
		if unlock, err := lockDir(path, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			removeDir(path) // what cannot be removed is in nobody's way
			unlock()
		}
	}

	dir, err = os.MkdirTemp(parent, "")
	if err != nil {
		return "", nil, err
	}
	unlock, err := lockDir(dir, unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	return dir, func() { removeDir(dir); unlock() }, nil
}

// removeDir removes a directory after what can only be found as long as the
// directory is there.
func removeDir(dir string) error {
	if err := errors.Join(removeCgroups(dir), detachLoops(dir)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func emptyDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("directory %s is not empty", dir)
	}
	return dir, err
}

// lockDir takes an advisory lock, which ends with the process at the latest.
func lockDir(dir string, how int) (unlock func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(file, how); err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("locking %s: %w", file.Name(), err)
		}
	}
}
