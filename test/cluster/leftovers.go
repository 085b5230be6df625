// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// What a node leaves behind when its processes are gone, and with them their
// mounts, is found by the node's directory.

// cgroupName is that of the control group of a node's pods.
func cgroupName(dir string) string { return "test-cluster-" + filepath.Base(dir) }

// createCgroups makes the control group of a node in every hierarchy.
func createCgroups(dir string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		if err := os.Mkdir(filepath.Join(hierarchy, cgroupName(dir)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func removeCgroups(dir string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, hierarchy := range hierarchies {
		var groups []string
		err := filepath.WalkDir(filepath.Join(hierarchy, cgroupName(dir)), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		// Those below others first.
		for _, group := range slices.Backward(groups) {
			errs = append(errs, unix.Rmdir(group))
		}
	}
	return errors.Join(errs...)
}

// cgroupHierarchies returns where control groups are: one directory, or one for
// each controller of version 1.
func cgroupHierarchies() ([]string, error) {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var hierarchies []string
	for _, entry := range entries {
		// Links are further names of a hierarchy of several controllers.
		if entry.IsDir() {
			hierarchies = append(hierarchies, filepath.Join(root, entry.Name()))
		}
	}
	return hierarchies, nil
}

// loop is a loop device that is in use.
type loop struct {
	path string
	// number is that of the device, as in stat(2).
	number uint64
	// behind is what it makes a device of: a file, which may be a device itself.
	behind *unix.LoopInfo64
}

// detachLoops detaches the loop devices of files in a directory.
func detachLoops(dir string) error {
	loops, err := loopsOf(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range slices.Backward(loops) {
		errs = append(errs, withDevice(l.path, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) }))
	}
	return errors.Join(errs...)
}

// loopsOf returns the loop devices of files in a directory, and after each those
// of that device: the kubelet makes one of a block volume to hold it open.
func loopsOf(dir string) ([]loop, error) {
	loops, err := listLoops()
	if err != nil || len(loops) == 0 {
		return nil, err
	}
	files, err := filesIn(dir)
	if err != nil {
		return nil, err
	}
	var own []loop
	isOwn := func(l loop) bool {
		return files[file{l.behind.Device, l.behind.Inode}] ||
			slices.ContainsFunc(own, func(o loop) bool { return o.number == l.behind.Rdevice })
	}
	for {
		i := slices.IndexFunc(loops, isOwn)
		if i < 0 {
			return own, nil
		}
		own = append(own, loops[i])
		loops = slices.Delete(loops, i, i+1)
	}
}

func listLoops() ([]loop, error) {
	entries, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	var loops []loop
	for _, entry := range entries {
		l := loop{path: filepath.Join("/dev", filepath.Base(filepath.Dir(entry)))}
		err := withDevice(l.path, func(fd int) (err error) {
			var stat unix.Stat_t
			if err := unix.Fstat(fd, &stat); err != nil {
				return err
			}
			l.number = stat.Rdev
			l.behind, err = unix.IoctlLoopGetStatus64(fd)
			return err
		})
		if errors.Is(err, unix.ENXIO) {
			continue // detached in the meantime
		}
		if err != nil {
			return nil, err
		}
		loops = append(loops, l)
	}
	return loops, nil
}

func withDevice(path string, do func(fd int) error) error {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := do(int(device.Fd())); err != nil {
		return fmt.Errorf("loop device %s: %w", path, err)
	}
	return nil
}

// file identifies a file whatever its path is, which depends on who asks.
type file struct{ device, inode uint64 }

func filesIn(dir string) (map[file]bool, error) {
	files := map[file]bool{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return err
		}
		files[file{stat.Dev, stat.Ino}] = true
		return nil
	})
	return files, err
}
