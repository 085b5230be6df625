// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// mounter is Kubernetes' mount library, but that it mounts by system call: an
// image with nothing but this driver in it has no mount(8).
type mounter struct{ mount.Mounter }

// supportedMountFlags are those that a bind mount can have.
var supportedMountFlags = map[string]uintptr{
	"ro":       unix.MS_RDONLY,
	"nodev":    unix.MS_NODEV,
	"noexec":   unix.MS_NOEXEC,
	"nosuid":   unix.MS_NOSUID,
	"noatime":  unix.MS_NOATIME,
	"relatime": unix.MS_RELATIME,
}

func mountFlags(names []string) (flags uintptr, err error) {
	for _, name := range names {
		flag, supported := supportedMountFlags[name]
		if !supported {
			// The flag itself may be sensitive, says CSI.
			return 0, invalid("a mount flag is not supported")
		}
		flags |= flag
	}
	return flags, nil
}

func (a access) mountFlags() uintptr {
	var names []string
	if a.Flags != "" {
		names = strings.Split(a.Flags, ",")
	}
	// They were checked when the request came in.
	flags, _ := mountFlags(names)
	if a.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	return flags
}

// bind makes source appear at target, which is a file or directory as source is.
func (m *mounter) bind(source, target string, flags uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", source, target, err)
	}
	if flags == 0 {
		return nil
	}
	// Flags have no effect on a bind mount before it is mounted again.
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return errors.Join(fmt.Errorf("setting the flags of the mount at %s: %w", target, err), m.Unmount(target))
	}
	return nil
}

// Unmount never follows a symlink that somebody put in a mount's place.
func (m *mounter) Unmount(target string) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmounting %s: %w", target, err)
	}
	return nil
}

// IsMountPoint is false where there is nothing, and for a symlink, wherever it
// leads.
func (m *mounter) IsMountPoint(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || info.Mode().Type() == fs.ModeSymlink {
		return false, err
	}
	return m.Mounter.IsMountPoint(path)
}

// unmountAndRemove leaves nothing at path. It removes no more than an empty
// directory or a file.
func (m *mounter) unmountAndRemove(path string) error {
	const alsoBindMounts = true
	return mount.CleanupMountPoint(path, m, alsoBindMounts)
}

// hostError is the answer where the host fails the driver.
func hostError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return status.Errorf(codes.FailedPrecondition, "%v: the node plugin needs to be root and to have CAP_SYS_ADMIN", err)
	}
	return internal(err)
}

// systemDirs are no place to mount a volume, whoever asks.
var systemDirs = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"}

// checkPath refuses paths at which a mount could hide, or a later removal
// delete, what is not the driver's to hide or delete: those that are not what
// they seem, of the system, or in the state directory.
func (d *Driver) checkPath(path string) error {
	if !filepath.IsAbs(path) || path != filepath.Clean(path) {
		return invalid("path %q is not absolute and clean", path)
	}
	if len(path) >= unix.PathMax {
		return invalid("a path has %d bytes, more than a path can have", len(path))
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return invalid("the parent directory of path %q is not there: %v", path, err)
	}
	resolved := filepath.Join(parent, filepath.Base(path))
	if parent == "/" || slices.ContainsFunc(systemDirs, func(dir string) bool { return mount.PathWithinBase(resolved, dir) }) {
		return invalid("path %q is a system directory", path)
	}
	if mount.PathWithinBase(resolved, d.state.dir) {
		return invalid("path %q is in the driver's state directory", path)
	}
	return nil
}

// checkStagingPath wants a directory, which CSI has the CO make. What is in it
// would be hidden by the mount.
func (d *Driver) checkStagingPath(path string) error {
	if err := d.checkPath(path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return invalid("staging path %q is not there: %v", path, err)
	}
	if !info.IsDir() {
		return invalid("staging path %q is no directory", path)
	}
	return d.checkUnused(path, info)
}

// checkTargetPath wants nothing, or what a CO may have left there: something
// empty of the right kind.
func (d *Driver) checkTargetPath(path string, block bool) error {
	if err := d.checkPath(path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return internal(err)
	}
	if block && !info.Mode().IsRegular() || !block && !info.IsDir() {
		return invalid("target path %q exists and is no place for a %s volume: %s", path, accessTypeName(block), info.Mode())
	}
	return d.checkUnused(path, info)
}

func (d *Driver) checkUnused(path string, info fs.FileInfo) error {
	if mounted, err := d.mounter.IsMountPoint(path); err != nil {
		return internal(err)
	} else if mounted {
		return invalid("path %q is a mount point that this driver did not make", path)
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return internal(err)
		}
		if len(entries) > 0 {
			return invalid("path %q is not empty", path)
		}
	} else if info.Size() > 0 {
		return invalid("path %q is not empty", path)
	}
	return nil
}
