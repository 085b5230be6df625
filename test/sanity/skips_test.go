// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sanity

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

const skipsFile = "skips.txt"

// A skip is a line of skips.txt: MODE | SPEC | REASON.
type skip struct {
	mode, spec string
}

func readSkips() ([]skip, error) {
	content, err := os.ReadFile(skipsFile)
	if err != nil {
		return nil, err
	}
	var skips []skip
	for number, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 3 || strings.TrimSpace(fields[2]) == "" {
			return nil, fmt.Errorf("%s:%d: want MODE | SPEC | REASON", skipsFile, number+1)
		}
		skips = append(skips, skip{mode: strings.TrimSpace(fields[0]), spec: fields[1]})
	}
	return skips, nil
}

// checkSkips fails unless each run has skipped what is listed for its mode, and
// nothing else.
func checkSkips(report Report, runs []run) error {
	listed, err := readSkips()
	if err != nil {
		return err
	}
	skipped := map[string][]string{}
	for _, spec := range report.SpecReports {
		if spec.State.Is(types.SpecStateSkipped | types.SpecStatePending) {
			run, containers := spec.ContainerHierarchyTexts[0], spec.ContainerHierarchyTexts[1:]
			name := strings.Join(append(slices.Clone(containers), spec.LeafNodeText), " / ")
			skipped[run] = append(skipped[run], name)
		}
	}
	var problems []error
	for _, r := range runs {
		var expected []string
		for _, s := range listed {
			if s.mode == "all" || s.mode == attachMode(r.attach) {
				expected = append(expected, s.spec)
			}
		}
		for _, spec := range skipped[r.String()] {
			if !slices.Contains(expected, spec) {
				problems = append(problems, fmt.Errorf("%s: skipped, but not listed in %s: %s", r, skipsFile, spec))
			}
		}
		for _, spec := range expected {
			if !slices.Contains(skipped[r.String()], spec) {
				problems = append(problems, fmt.Errorf("%s: listed in %s, but not skipped: %s", r, skipsFile, spec))
			}
		}
	}
	return errors.Join(problems...)
}
