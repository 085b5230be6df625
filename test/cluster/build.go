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
	// links are further names of the program, which it tells apart by the name it
	// was started under.
	links []string
}

var sources = map[string]source{
	"kube":                {pkg: "./kube", links: []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}},
	"etcd":                {pkg: "go.etcd.io/etcd/server/v3"},
	"csi-provisioner":     {pkg: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
	"csi-snapshotter":     {pkg: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"},
	"snapshot-controller": {pkg: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"},
	"csi-resizer":         {pkg: "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
	"csi-attacher":        {pkg: "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"},
	"csi-transfer":        {pkg: "./cmd/csi-transfer", product: true},
	"mock-csi-driver":     {pkg: "./cmd/mock-csi-driver", product: true},
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

// built remembers the programs that this process has found or made fresh.
var built struct {
	sync.Mutex
	paths map[string]string
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
	src, ours := sources[target]
	if !ours {
		return exec.LookPath(name)
	}

	built.Lock()
	defer built.Unlock()
	if path, ok := built.paths[name]; ok {
		return path, nil
	}
	dir, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	b := builder{module: dir, artifacts: filepath.Join(dir, ".artifacts"), progress: progress}
	if err := b.build(ctx, target, src); err != nil {
		return "", fmt.Errorf("building %s: %w", target, err)
	}
	if built.paths == nil {
		built.paths = map[string]string{}
	}
	for _, n := range append(src.links, target) {
		built.paths[n] = b.bin(n)
	}
	return built.paths[name], nil
}

type builder struct {
	module    string
	artifacts string
	progress  io.Writer
}

func (b *builder) bin(name string) string { return filepath.Join(b.artifacts, "bin", name) }

func (b *builder) build(ctx context.Context, name string, src source) error {
	for _, dir := range []string{"bin", "key"} {
		if err := os.MkdirAll(filepath.Join(b.artifacts, dir), 0o755); err != nil {
			return err
		}
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	if src.product {
		return b.compile(ctx, filepath.Dir(filepath.Dir(b.module)), name, src.pkg)
	}
	key, err := b.key(ctx)
	if err != nil {
		return err
	}
	keyFile := filepath.Join(b.artifacts, "key", name)
	if last, err := os.ReadFile(keyFile); err == nil && bytes.Equal(last, key) {
		return nil
	}
	if err := b.compile(ctx, b.module, name, src.pkg, kubernetesFlags...); err != nil {
		return err
	}
	for _, link := range src.links {
		if err := os.Symlink(name, b.bin(link)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return os.WriteFile(keyFile, key, 0o644)
}

// key changes with everything that goes into a program of this module.
func (b *builder) key(ctx context.Context) ([]byte, error) {
	hash := sha256.New()
	goEnv, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	fmt.Fprintf(hash, "%s%q", goEnv, kubernetesFlags)
	for _, file := range []string{"go.mod", "go.sum", "kube/main.go"} {
		content, err := os.ReadFile(filepath.Join(b.module, file))
		if err != nil {
			return nil, err
		}
		hash.Write(content)
	}
	return fmt.Appendf(nil, "%x\n", hash.Sum(nil)), nil
}

// compile runs go build, which replaces the program in one step, so that one
// that is running does not notice.
func (b *builder) compile(ctx context.Context, dir, name, pkg string, flags ...string) error {
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
	stop := b.report(func() string {
		return fmt.Sprintf("building %s: %s, %d packages compiled", name, time.Since(began).Round(time.Second), packages.Load())
	})
	err := cmd.Run()
	stop()
	if err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, tail(output.Bytes(), 40))
	}
	if took := time.Since(began); took > time.Second {
		fmt.Fprintf(b.progress, "cluster: built %s in %s\n", name, took.Round(time.Second))
	}
	return nil
}

// lock waits until no other process builds. The lock ends with its process.
func (b *builder) lock(ctx context.Context) (unlock func(), err error) {
	stop := b.report(func() string { return "waiting for another build in " + b.artifacts })
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
func (b *builder) report(line func() string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintln(b.progress, "cluster:", line())
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// moduleDir is the directory of this module's source.
func moduleDir(ctx context.Context) (string, error) {
	return goList(ctx, "", "-f", "{{.Dir}}", module)
}

func goList(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
