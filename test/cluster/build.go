// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// module is the path of the module that this package is in.
const module = "github.com/csi-transfer/csi-transfer/test/cluster"

// progressInterval is how often a build or a wait for one says that it goes on.
const progressInterval = 15 * time.Second

// A source says how a program is built.
type source struct {
	pkg string
	// product: the package is in the product's module and changes all the time,
	// so whether the program is fresh is left to the go command.
	product bool
	// dir is that of the package's module, from the root of the repository, where
	// that is another one of the product's.
	dir string
	// links are further names of the program, which it tells apart by the name it
	// was started under.
	links []string
}

var sources = map[string]source{
	"kube":                {pkg: "./kube", links: []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"}},
	"etcd":                {pkg: "go.etcd.io/etcd/server/v3"},
	"csi-provisioner":     {pkg: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
	"csi-snapshotter":     {pkg: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"},
	"snapshot-controller": {pkg: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"},
	"csi-resizer":         {pkg: "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
	"csi-attacher":        {pkg: "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"},
	"csi-transfer":        {pkg: "./cmd/csi-transfer", product: true},
	"kubectl-transfer":    {pkg: ".", product: true, dir: "cmd/kubectl-transfer"},
	"mock-csi-driver":     {pkg: "./cmd/mock-csi-driver", product: true},
	"images":              {pkg: ".", product: true, dir: "release-tools/images"},
}

// kubernetesFlags stamp the version that the linked-in Kubernetes reports;
// clients refuse a server whose version they cannot parse.
var kubernetesFlags = []string{"-ldflags", strings.Join([]string{
	"-s -w",
	"-X k8s.io/component-base/version.gitVersion=v1.37.2",
	"-X k8s.io/component-base/version.gitMajor=1",
	"-X k8s.io/component-base/version.gitMinor=37",
}, " ")}

// Build makes sure that every program that a cluster can run is built, and
// tells on progress what it is doing. A first build of Kubernetes takes many
// minutes. Builds in several processes at once wait for each other.
//
// Like everything here that needs a program, it finds this module through the
// go command and so must run in a directory of a module that requires it.
func Build(ctx context.Context, progress io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if _, err := Program(ctx, name, progress); err != nil {
			return err
		}
	}
	return nil
}

// Program returns the path of a program that Build builds, which it builds if
// need be, or else of one on the machine.
func Program(ctx context.Context, name string, progress io.Writer) (string, error) {
	target := name
	for t, s := range sources {
		if slices.Contains(s.links, name) {
			target = t
		}
	}
	if _, ours := sources[target]; !ours {
		return exec.LookPath(name)
	}
	b, err := findBuilder()
	if err != nil {
		return "", err
	}
	if err := b.ensure(ctx, target, progress); err != nil {
		return "", fmt.Errorf("building %s: %w", target, err)
	}
	return b.bin(name), nil
}

// builder builds into a folder that all processes share.
type builder struct {
	// module is the directory of this module's source.
	module string
	// artifacts is the folder: programs in bin, and in key what the programs of
	// this module were made from.
	artifacts string
	// key changes with everything that goes into a program of this module.
	key []byte

	mu sync.Mutex
	// fresh are the programs that this process need not look at again.
	fresh map[string]bool
}

// findBuilder returns the builder of this process.
var findBuilder = sync.OnceValues(func() (*builder, error) {
	dir, err := goCommand("", "list", "-f", "{{.Dir}}", module)
	if err != nil {
		return nil, err
	}
	environment, err := goCommand(dir, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s%q", environment, kubernetesFlags)
	for _, file := range []string{"go.mod", "go.sum", "kube/main.go"} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		hash.Write(content)
	}
	return &builder{
		module:    dir,
		artifacts: filepath.Join(dir, ".artifacts"),
		key:       fmt.Appendf(nil, "%x\n", hash.Sum(nil)),
		fresh:     map[string]bool{},
	}, nil
})

func (b *builder) bin(name string) string { return filepath.Join(b.artifacts, "bin", name) }

// ensure builds a program unless it is fresh.
func (b *builder) ensure(ctx context.Context, name string, progress io.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fresh[name] {
		return nil
	}
	unlock, err := b.lock(ctx, progress)
	if err != nil {
		return err
	}
	defer unlock()
	src := sources[name]
	if src.product {
		err = b.compile(ctx, filepath.Join(b.module, "..", "..", src.dir), name, src.pkg, nil, progress)
	} else {
		err = b.ensureKubernetes(ctx, name, src, progress)
	}
	b.fresh[name] = err == nil
	return err
}

// ensureKubernetes builds a program of this module unless it is kept.
func (b *builder) ensureKubernetes(ctx context.Context, name string, src source, progress io.Writer) error {
	return b.unlessKept(name, b.bin(name), func() error {
		if err := b.compile(ctx, b.module, name, src.pkg, kubernetesFlags, progress); err != nil {
			return err
		}
		for _, link := range src.links {
			if err := os.Symlink(name, b.bin(link)); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		return nil
	})
}

// unlessKept calls build unless the file is there and its key says that nothing
// has changed, which is faster than to ask the go command.
func (b *builder) unlessKept(name, file string, build func() error) error {
	keyFile := filepath.Join(b.artifacts, "key", name)
	last, keyErr := os.ReadFile(keyFile)
	if _, err := os.Stat(file); err == nil && keyErr == nil && bytes.Equal(last, b.key) {
		return nil
	}
	if err := build(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(keyFile), 0o755); err != nil {
		return err
	}
	return os.WriteFile(keyFile, b.key, 0o644)
}

// compile runs go build, which replaces the program in one step, so that one
// that is running does not notice.
func (b *builder) compile(ctx context.Context, dir, name, pkg string, flags []string, progress io.Writer) error {
	args := append([]string{"build", "-v", "-trimpath", "-buildvcs=false", "-o", b.bin(name)}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	// With -v the go command names each package that it compiles.
	var packages atomic.Int64
	var output bytes.Buffer
	cmd.Stderr = writerFunc(func(p []byte) (int, error) {
		packages.Add(int64(bytes.Count(p, []byte("\n"))))
		return output.Write(p)
	})

	began := time.Now()
	stop := report(progress, func() string {
		return fmt.Sprintf("building %s: %s, %d packages compiled", name, time.Since(began).Round(time.Second), packages.Load())
	})
	err := cmd.Run()
	stop()
	if err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, tail(output.Bytes(), 40))
	}
	if took := time.Since(began); took > time.Second {
		fmt.Fprintf(progress, "cluster: built %s in %s\n", name, took.Round(time.Second))
	}
	return nil
}

// lock waits until no other process builds. The lock ends with its process.
func (b *builder) lock(ctx context.Context, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(b.artifacts, 0o755); err != nil {
		return nil, err
	}
	stop := report(progress, func() string { return "waiting for another build in " + b.artifacts })
	defer stop()
	type result struct {
		unlock func()
		err    error
	}
	locked := make(chan result, 1)
	go func() {
		unlock, err := lockDir(b.artifacts, unix.LOCK_EX)
		locked <- result{unlock, err}
	}()
	select {
	case r := <-locked:
		return r.unlock, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// report writes a line of progress at each interval until stop is called.
func report(progress io.Writer, line func() string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintln(progress, "cluster:", line())
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// goCommand runs the go command in a directory and returns what it prints.
func goCommand(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
