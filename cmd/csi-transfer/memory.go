// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// releaseProgramPages drops the program's own pages from this process's
// resident memory. Most of them hold what runs once when a program starts, such
// as the registration of every Kubernetes API, and would stay resident for as
// long as the sidecar idles. Those that are needed again come back from the page
// cache when they are touched (madvise(2), MADV_DONTNEED on a file mapping).
func releaseProgramPages() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var start, end uintptr
		var access string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &end, &access); err != nil {
			return fmt.Errorf("reading /proc/self/maps: %w", err)
		}
		// Never a writable mapping: what was written there would be lost.
		if strings.Contains(access, "w") || !strings.HasSuffix(lines.Text(), " "+program) {
			continue
		}
		// The address is of the running program, which the collector does not move.
		pages := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), start)), end-start)
		if err := unix.Madvise(pages, unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("releasing pages: %w", err)
		}
	}
	return lines.Err()
}
