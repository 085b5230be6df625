// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// A mode is one way for the mock driver to be, in words of skips.txt.
type mode struct {
	linkage    driver.Linkage
	service    bool
	attach     bool
	accessType string
}

func (m mode) words() []string {
	words := []string{"linkage=unset", "flag", "no-attach", m.accessType}
	if m.linkage != "" {
		words[0] = "linkage=" + string(m.linkage)
	}
	if m.service {
		words[1] = "service"
	}
	if m.attach {
		words[2] = "attach"
	}
	return words
}

func modes() []mode {
	var all []mode
	for _, linkage := range []driver.Linkage{"", driver.LinkageNone, driver.LinkageSnapshots, driver.LinkageChain} {
		for _, service := range []bool{false, true} {
			if linkage == "" && service {
				continue // the service has to name its linkage
			}
			for _, attach := range []bool{false, true} {
				for _, accessType := range []string{"mount", "block"} {
					all = append(all, mode{linkage, service, attach, accessType})
				}
			}
		}
	}
	return all
}

// TestModes runs upstream's csi-sanity and the transfer contract against the
// mock driver in each mode.
func TestModes(t *testing.T) {
	skips := readSkips(t)
	for _, m := range modes() {
		t.Run(strings.Join(m.words(), ","), func(t *testing.T) {
			t.Parallel()
			results.modes.Add(1)
			address := serve(t, tempDir(t), mock.Config{
				Linkage:         m.linkage,
				TransferService: m.service,
				TransferToken:   "s3cret",
				AttachRequired:  m.attach,
				Topology:        true,
				MaxVolumes:      3,
			})
			_, report := conform(t, address, "--csi-sanity", "--access-type="+m.accessType, "--node-attach-limit",
				"--volume-mutable-parameters=testdata/mutable-parameters.yaml", "--transfer-secrets=testdata/transfer-secrets.yaml")

			var skipped []string
			for _, spec := range report.SpecReports {
				switch {
				case spec.State.Is(types.SpecStateFailureStates):
					t.Errorf("%s: %s", name(spec), spec.Failure.Message)
				case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
					skipped = append(skipped, name(spec))
				}
			}
			for _, problem := range unexplained(skips, m, skipped) {
				t.Error(problem)
			}
			if t.Failed() {
				results.failed.Add(1)
			}
		})
	}
}

const skipsFile = "testdata/skips.txt"

// A skip is a line of skips.txt: MODE | SPEC | REASON.
type skip struct {
	mode []string
	spec string
}

func readSkips(t *testing.T) []skip {
	t.Helper()
	content, err := os.ReadFile(skipsFile)
	if err != nil {
		t.Fatal(err)
	}
	var skips []skip
	for number, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 3 || strings.TrimSpace(fields[2]) == "" {
			t.Fatalf("%s:%d: want MODE | SPEC | REASON", skipsFile, number+1)
		}
		skips = append(skips, skip{mode: strings.FieldsFunc(fields[0], func(r rune) bool { return r == ',' || r == ' ' }), spec: fields[1]})
	}
	return skips
}

// applies reports whether the mode has all words of the line.
func (s skip) applies(m mode) bool {
	words := append(m.words(), "all")
	return !slices.ContainsFunc(s.mode, func(word string) bool { return !slices.Contains(words, word) })
}

func (s skip) matches(spec string) bool {
	if prefix, all := strings.CutSuffix(s.spec, "*"); all {
		return strings.HasPrefix(spec, prefix)
	}
	return spec == s.spec
}

// unexplained are specs that were skipped although no line says so, and lines
// that say so of no spec.
func unexplained(skips []skip, m mode, skipped []string) []string {
	var problems []string
	skips = slices.DeleteFunc(slices.Clone(skips), func(s skip) bool { return !s.applies(m) })
	for _, spec := range skipped {
		if !slices.ContainsFunc(skips, func(s skip) bool { return s.matches(spec) }) {
			problems = append(problems, fmt.Sprintf("skipped, but not listed in %s: %s", skipsFile, spec))
		}
	}
	for _, s := range skips {
		if !slices.ContainsFunc(skipped, s.matches) {
			problems = append(problems, fmt.Sprintf("listed in %s, but not skipped: %s", skipsFile, s.spec))
		}
	}
	return problems
}
