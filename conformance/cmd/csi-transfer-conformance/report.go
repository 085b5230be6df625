// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/kubernetes-csi/csi-test/v5/utils"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/csi-transfer/csi-transfer/conformance"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// introduce says what the driver says of itself. It fails where none listens.
func introduce(config sanity.TestConfig) (string, error) {
	address, options := config.Address, config.DialOptions
	if config.ControllerAddress != "" {
		address, options = config.ControllerAddress, config.ControllerDialOptions
	}
	conn, err := utils.Connect(address, options...)
	if err != nil {
		return "", fmt.Errorf("connecting to the driver at %s: %w", address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), conformance.Timeout)
	defer cancel()
	d, err := driver.New(ctx, conn, conformance.Timeout)
	if err != nil {
		return fmt.Sprintf("The driver at %s does not say what it can do: %v", address, err), nil
	}
	info := d.Info()
	if !info.Advertised {
		return fmt.Sprintf("%s advertises nothing about transfers: its volumes are refused unless an administrator vouches for their StorageClass.", info.Name), nil
	}
	by := "its manifest"
	if info.Service {
		by = "its transfer service"
	}
	offers := "neither ValidateVolume nor SetOwner"
	switch {
	case info.Validate && info.SetOwner:
		offers = "ValidateVolume and SetOwner"
	case info.Validate:
		offers = "ValidateVolume"
	case info.SetOwner:
		offers = "SetOwner"
	}
	return fmt.Sprintf("%s has the snapshot linkage %s, by %s, and offers %s.", info.Name, info.Linkage, by, offers), nil
}

// summarize has a line for each spec of the contract, and the numbers at the
// end. Of upstream's specs, where they have run, it tells what has failed.
func summarize(r ginkgo.Report, csiSanity bool) string {
	var headings []string
	lines := map[string][]string{}
	count := map[string]int{}
	for _, spec := range r.SpecReports {
		ours, _ := spec.MatchesLabelFilter(conformance.SpecLabel)
		if spec.LeafNodeType != types.NodeTypeIt || !ours && !csiSanity {
			continue
		}
		result := resultOf(spec)
		count[result]++
		if !ours && result != failed {
			continue
		}
		containers := spec.ContainerHierarchyTexts
		if ours {
			containers = containers[2:] // the name of the suite and of what is labelled
		}
		heading := strings.Join(containers, ": ")
		if lines[heading] == nil {
			headings = append(headings, heading)
		}
		lines[heading] = append(lines[heading], fmt.Sprintf("  %-4s  %s", result, spec.LeafNodeText))
		if why := strings.TrimSpace(spec.Failure.Message + " " + spec.Failure.ForwardedPanic); why != "" {
			lines[heading] = append(lines[heading], "        "+strings.ReplaceAll(why, "\n", "\n        "))
		}
	}
	var out strings.Builder
	for _, heading := range headings {
		fmt.Fprintf(&out, "\n%s\n%s\n", heading, strings.Join(lines[heading], "\n"))
	}
	for _, reason := range r.SpecialSuiteFailureReasons {
		fmt.Fprintf(&out, "\n%s\n", reason)
	}
	fmt.Fprintf(&out, "\npassed=%d failed=%d skipped=%d\n", count[passed], count[failed], count[skipped])
	return out.String()
}

const (
	passed  = "ok"
	failed  = "FAIL"
	skipped = "skip"
)

func resultOf(spec types.SpecReport) string {
	switch {
	case spec.State == types.SpecStatePassed:
		return passed
	case spec.State.Is(types.SpecStateFailureStates):
		return failed
	default:
		return skipped
	}
}
