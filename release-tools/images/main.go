// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command images builds container images of Go programs without a container
// runtime: one OCI archive for each, with an image for every platform that holds
// the static program and nothing else. The same sources, version and Go release
// give the same digests.
//
//	images [flags] IMAGE...
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// program is what an image holds.
type program struct {
	// module is the folder of its Go module, relative to the repository's root.
	module string
	// pkg is the package of its main function.
	pkg string
}

// programs are the images that can be built: those of this repository, and the
// sidecars that tests run beside them, which have versions of their own.
var programs = map[string]program{
	"csi-transfer":        {".", "./cmd/csi-transfer"},
	"mock-csi-driver":     {".", "./cmd/mock-csi-driver"},
	"csi-attacher":        {"test/cluster", "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"},
	"csi-provisioner":     {"test/cluster", "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
	"csi-resizer":         {"test/cluster", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
	"csi-snapshotter":     {"test/cluster", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"},
	"test-pod":            {"test", "./node/pod"},
	"snapshot-controller": {"test/cluster", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"},
}

func main() {
	root := flag.String("root", ".", "the repository")
	out := flag.String("out", "dist", "where to put IMAGE.tar")
	version := flag.String("version", "latest", "the tag of this repository's images, and what the programs say with --version")
	repository := flag.String("repository", "docker.io/library", "prefix of the images' names")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "what to build for")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, name := range flag.Args() {
		reference, err := image(ctx, *root, *out, *repository, name, *version, strings.Split(*platforms, ","))
		if err != nil {
			fmt.Fprintf(os.Stderr, "images: %s: %v\n", name, err)
			stop()
			os.Exit(1)
		}
		fmt.Println(reference)
	}
}

// image builds one program for all platforms, archives the images in the folder
// out, and returns their name with the digest.
func image(ctx context.Context, root, out, repository, name, version string, platforms []string) (string, error) {
	p, ok := programs[name]
	if !ok {
		return "", fmt.Errorf("unknown image; known are %s", strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
	}
	if !strings.HasPrefix(p.pkg, ".") {
		var err error
		if version, err = p.goCommand(ctx, root, nil, "list", "-f", "{{.Module.Version}}", p.pkg); err != nil {
			return "", err
		}
	}
	var built []binary
	for _, s := range platforms {
		platform, err := v1.ParsePlatform(s)
		if err != nil {
			return "", fmt.Errorf("platform %q: %w", s, err)
		}
		text, err := p.build(ctx, root, version, platform)
		if err != nil {
			return "", fmt.Errorf("for %s: %w", platform, err)
		}
		built = append(built, binary{platform, text})
	}
	index, err := indexOf(name, version, built)
	if err != nil {
		return "", err
	}
	reference := repository + "/" + name + ":" + version
	if err := archive(index, reference, filepath.Join(out, name+".tar")); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	return reference + "@" + digest.String(), err
}

// build compiles the program, with nothing in it of the machine it is built on.
func (p program) build(ctx context.Context, root, version string, platform *v1.Platform) ([]byte, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "program")
	if _, err := p.goCommand(ctx, root, []string{"CGO_ENABLED=0", "GOOS=" + platform.OS, "GOARCH=" + platform.Architecture},
		"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid= -X main.version="+version, "-o", file, p.pkg); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// goCommand runs the go command in the program's module and returns what it
// prints.
func (p program) goCommand(ctx context.Context, root string, environment []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(root, p.module)
	cmd.Env = append(os.Environ(), environment...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(output)), nil
}
