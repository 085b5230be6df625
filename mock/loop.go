// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A block volume is a file behind a loop device for as long as it is staged.

// attachLoop returns the file's loop device, and makes one if it has none.
func attachLoop(path string) (device string, err error) {
	if device, err := findLoop(path); device != "" || err != nil {
		return device, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()

	config := unix.LoopConfig{Fd: uint32(file.Fd())}
	// The kernel cuts a longer name; it is for people only.
	copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
	// Another process may take the free device first, but not for ever.
	for range 10 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("finding a free loop device: %w", err)
		}
		device = fmt.Sprintf("/dev/loop%d", number)
		err = withDevice(device, func(fd int) error { return unix.IoctlLoopConfigure(fd, &config) })
		if !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
	return "", fmt.Errorf("setting up %s: %w", device, unix.EBUSY)
}

// detachLoop detaches the file's loop device, if it has one.
func detachLoop(path string) error {
	device, err := findLoop(path)
	if device == "" || err != nil {
		return err
	}
	return withDevice(device, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) })
}

// growLoop lets the file's loop device see the file's new size.
func growLoop(path string) error {
	device, err := findLoop(path)
	if device == "" || err != nil {
		return err
	}
	return withDevice(device, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) })
}

// findLoop returns the loop device of the file, "" if it has none. It goes by
// the file itself: its path in the kernel is that of whoever attached it, and
// another in each container.
func findLoop(path string) (device string, err error) {
	var file unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return "", fmt.Errorf("looking for the loop device of %s: %w", path, err)
	}
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return "", err
	}
	for _, dir := range attached {
		device := "/dev/" + filepath.Base(filepath.Dir(dir))
		var info *unix.LoopInfo64
		err := withDevice(device, func(fd int) (err error) {
			info, err = unix.IoctlLoopGetStatus64(fd)
			return err
		})
		switch {
		case errors.Is(err, unix.ENXIO), errors.Is(err, fs.ErrNotExist):
			// It was detached in the meantime, or is of another mount namespace.
		case err != nil:
			return "", err
		case info.Device == file.Dev && info.Inode == file.Ino:
			return device, nil
		}
	}
	return "", nil
}

func withDevice(device string, do func(fd int) error) error {
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := do(int(file.Fd())); err != nil {
		return fmt.Errorf("loop device %s: %w", device, err)
	}
	return nil
}
