// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command test-pod is what pods of the tests run. Each argument is a step:
//
//	write:FILE:BYTES  fill the beginning of a file or device with random bytes
//	sum:FILE[:BYTES]  read its beginning, or all of it
//	size:FILE         tell how large it is
//	hold              wait for SIGTERM, which ends the program with success
//
// Each step but hold prints a line, to the termination log too, so that it is in
// the status of the pod: the step, the file, how many bytes, and their SHA-256,
// which size has not. A step that fails ends the program.
//
// Without arguments it holds, so that it can also be the image of sandboxes.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// terminationLog is the kubelet's default terminationMessagePath.
const terminationLog = "/dev/termination-log"

func main() {
	// As PID 1 a process is not ended by a signal that it does not handle.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() {
		<-ctx.Done()
		os.Exit(0)
	}()
	steps := os.Args[1:]
	if len(steps) == 0 {
		steps = []string{"hold"}
	}
	for _, step := range steps {
		if step == "hold" {
			<-ctx.Done()
			select {} // The process is ending.
		}
		line, err := run(step)
		if err != nil {
			line = fmt.Sprintf("test-pod: %s: %v", step, err)
		}
		if err := errors.Join(err, report(line)); err != nil {
			fmt.Fprintln(os.Stderr, "test-pod:", err)
			os.Exit(1)
		}
	}
}

// report prints a line. A sandbox has no termination log.
func report(line string) error {
	fmt.Println(line)
	log, err := os.OpenFile(terminationLog, os.O_APPEND|os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(log, line)
	return errors.Join(err, log.Close())
}

// run does a step and returns what is to be said of it.
func run(step string) (string, error) {
	what, rest, _ := strings.Cut(step, ":")
	path, count, counted := strings.Cut(rest, ":")
	limit := int64(math.MaxInt64)
	if counted {
		var err error
		if limit, err = strconv.ParseInt(count, 10, 64); err != nil {
			return "", err
		}
	}
	switch {
	case what == "write" && counted:
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return "", err
		}
		hash := sha256.New()
		n, err := io.CopyN(io.MultiWriter(file, hash), rand.Reader, limit)
		return fmt.Sprintf("write %s %d %x", path, n, hash.Sum(nil)), errors.Join(err, file.Sync(), file.Close())
	case what == "sum":
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		hash := sha256.New()
		n, err := io.Copy(hash, io.LimitReader(file, limit))
		return fmt.Sprintf("sum %s %d %x", path, n, hash.Sum(nil)), errors.Join(err, file.Close())
	case what == "size":
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		// The size that a device says in its status is 0.
		size, err := file.Seek(0, io.SeekEnd)
		return fmt.Sprintf("size %s %d", path, size), errors.Join(err, file.Close())
	}
	return "", errors.New("unknown step")
}
