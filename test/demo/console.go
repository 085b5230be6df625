// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// repository is the root of the repository, seen from where the demo runs.
const repository = ".."

// person types commands.
type person struct{ name, kubeconfig string }

// console shows commands and what they print. After the first failure, err, it
// does nothing more.
type console struct {
	ctx     context.Context
	cluster *cluster.Cluster
	out     io.Writer
	err     error
}

func (c *console) do(action func() error) {
	if c.err == nil {
		c.err = action()
	}
}

func (c *console) say(format string, args ...any) {
	c.do(func() error {
		_, err := fmt.Fprintf(c.out, "\n"+format+"\n", args...)
		return err
	})
}

func (c *console) title(text string) {
	c.say("\n%s\n%s", text, strings.Repeat("─", utf8.RuneCountInString(text)))
}

// apply shows a manifest and applies it.
func (c *console) apply(p person, path string) {
	c.do(func() error {
		manifest, err := os.ReadFile(filepath.Join(repository, path))
		if err != nil {
			return fmt.Errorf("%w; run the demo in the folder test of the repository", err)
		}
		_, body, _ := strings.Cut(string(manifest), "\n\n") // after the licence
		_, err = fmt.Fprintf(c.out, "\n%s$ cat %s\n%s", p.name, path, body)
		return err
	})
	c.kubectl(p, "apply", "-f", path)
}

// kubectl runs a command and shows what it prints.
func (c *console) kubectl(p person, args ...string) {
	c.run(p, func(string) bool { return true }, args...)
}

// describe shows the named parts of what kubectl describe prints. A part is a
// line such as "Status:" with the indented lines after it.
func (c *console) describe(p person, parts []string, args ...string) {
	shown := false
	c.run(p, func(line string) bool {
		if !strings.HasPrefix(line, " ") {
			part, _, _ := strings.Cut(line, ":")
			shown = slices.Contains(parts, part)
		}
		return shown
	}, append([]string{"describe"}, args...)...)
}

func (c *console) run(p person, show func(line string) bool, args ...string) {
	c.say("%s$ kubectl %s", p.name, strings.Join(args, " "))
	c.do(func() error {
		// People type paths as seen from the root of the repository.
		args := slices.Clone(args)
		for i, arg := range args {
			if _, err := os.Stat(filepath.Join(repository, arg)); err == nil && strings.Contains(arg, "/") {
				args[i] = filepath.Join(repository, arg)
			}
		}
		output, err := c.cluster.Kubectl(c.ctx, append(args, "--kubeconfig="+p.kubeconfig)...)
		for line := range strings.Lines(output) {
			if show(line) {
				fmt.Fprint(c.out, line)
			}
		}
		return err
	})
}
