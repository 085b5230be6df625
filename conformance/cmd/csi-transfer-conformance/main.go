// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command csi-transfer-conformance tests whether a CSI driver keeps the
// transfer contract, and prints a report. It exits with 1 where it does not.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/formatter"
	"github.com/onsi/gomega"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/csi-transfer/csi-transfer/conformance"
)

func main() {
	passed, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-transfer-conformance:", err)
		os.Exit(2)
	}
	if !passed {
		os.Exit(1)
	}
}

func run() (passed bool, err error) {
	config := sanity.NewTestConfig()
	csiSanity := flag.Bool("csi-sanity", false, "Also run all of upstream's csi-sanity.")
	flag.DurationVar(&conformance.Timeout, "timeout", conformance.Timeout, "How long one call to the driver may take.")
	flag.StringVar(&config.Address, "csi-address", "/run/csi/socket", "Address of the CSI driver's socket.")
	flag.StringVar(&config.ControllerAddress, "controller-address", "", "Address of the Controller and Transfer services, where it is not --csi-address.")
	flag.Int64Var(&config.TestVolumeSize, "volume-size", config.TestVolumeSize, "Size in bytes of the volumes that are made.")
	flag.StringVar(&config.TestVolumeAccessType, "access-type", config.TestVolumeAccessType, "Make mount or block volumes.")
	flag.StringVar(&config.TestVolumeParametersFile, "volume-parameters", "", "YAML file of parameters for CreateVolume.")
	flag.StringVar(&config.TestVolumeMutableParametersFile, "volume-mutable-parameters", "", "YAML file of mutable parameters for ControllerModifyVolume.")
	flag.StringVar(&config.TestSnapshotParametersFile, "snapshot-parameters", "", "YAML file of parameters for CreateSnapshot.")
	flag.StringVar(&config.SecretsFile, "secrets", "", "YAML file of secrets, in csi-sanity's format.")
	transferSecrets := flag.String("transfer-secrets", "", "YAML file of a map with the secrets for the transfer service.")
	flag.BoolVar(&config.TestNodeVolumeAttachLimit, "node-attach-limit", false, "With --csi-sanity: test the node's limit of attached volumes.")
	dir := flag.String("mount-dir", "", "Directory, which the driver sees under the same path, to mount volumes below. Empty: a temporary one.")
	flag.Parse()
	if flag.NArg() > 0 {
		return false, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if config.TestVolumeAccessType != "mount" && config.TestVolumeAccessType != "block" {
		return false, fmt.Errorf("--access-type is %q, neither mount nor block", config.TestVolumeAccessType)
	}
	if *transferSecrets != "" {
		content, err := os.ReadFile(*transferSecrets)
		if err != nil {
			return false, err
		}
		if err := yaml.UnmarshalStrict(content, &conformance.Secrets); err != nil {
			return false, fmt.Errorf("reading --transfer-secrets %s: %w", *transferSecrets, err)
		}
	}
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "csi-transfer-conformance"); err != nil {
			return false, err
		}
		// Not RemoveAll: what is still mounted below is the driver's data.
		defer func() { err = errors.Join(err, os.Remove(*dir)) }()
	}
	config.TargetPath = filepath.Join(*dir, "target")
	config.StagingPath = filepath.Join(*dir, "staging")

	suiteConfig, reporterConfig := ginkgo.GinkgoConfiguration()
	if !*csiSanity {
		suiteConfig.LabelFilter = conformance.SpecLabel
	}
	// Ginkgo's own report and what clients log are for those who write specs:
	// --ginkgo.v brings them back.
	klog.LogToStderr(false)
	klog.SetOutput(ginkgo.GinkgoWriter)
	if !reporterConfig.Verbose {
		formatter.ColorableStdOut = io.Discard
		klog.SetOutput(io.Discard)
	}
	introduction, err := introduce(config)
	if err != nil {
		return false, err
	}
	fmt.Println(introduction)
	ginkgo.ReportAfterSuite("report", func(r ginkgo.Report) { fmt.Print(summarize(r, *csiSanity)) })
	gomega.RegisterFailHandler(ginkgo.Fail)
	context := sanity.GinkgoTest(&config)
	defer context.Finalize()
	return ginkgo.RunSpecs(failure{}, "csi-transfer conformance", suiteConfig, reporterConfig), nil
}

// failure does nothing: RunSpecs returns whether it has passed as well.
type failure struct{}

func (failure) Fail() {}
