// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package csitransfer checks what the documentation says about files. What it
// says about code is checked beside that code, and its commands are run by
// test/integration.
package csitransfer

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csi-transfer/csi-transfer/internal/docs"
)

// TestReadmeHasTheExamples: the manifests in README are those of examples, which
// the demo applies.
func TestReadmeHasTheExamples(t *testing.T) {
	for _, path := range []string{"examples/request.yaml", "examples/claim.yaml", "examples/approval.yaml"} {
		manifest, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := bytes.Cut(manifest, []byte("\n\n")) // after the licence
		docs.Check(t, "README.md", path, "```yaml\n"+string(body)+"```")
	}
}

// documents are all Markdown files.
func documents(t *testing.T) map[string]string {
	paths, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, path := range append(paths, "README.md", "CONTRIBUTING.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	return texts
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestLinks: every relative link leads to a file, and to a heading in it.
func TestLinks(t *testing.T) {
	texts := documents(t)
	for path, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join(filepath.Dir(path), m[1])
			if m[1] == "" {
				target = path
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s: %v", path, m[1], err)
			}
			if m[2] != "" && !hasAnchor(texts[target], m[2]) {
				t.Errorf("%s: %s has no heading #%s", path, target, m[2])
			}
		}
	}
}

// hasAnchor follows GitHub's rule for the anchors of headings.
func hasAnchor(text, anchor string) bool {
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		if strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// TestNamedTestsExist: every test that a document names exists. A name may end
// in … for all that begin so.
func TestNamedTestsExist(t *testing.T) {
	var code strings.Builder
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		code.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)(…?)`")
	for path, text := range documents(t) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			function := "func " + m[1]
			if m[2] == "" {
				function += "("
			}
			if !strings.Contains(code.String(), function) {
				t.Errorf("%s names %s, which does not exist", path, m[1])
			}
		}
	}
}

// TestMakeTargetsExist: every target that a document tells to make exists.
func TestMakeTargetsExist(t *testing.T) {
	var rules []byte
	for _, path := range []string{"Makefile", "release-tools/build.make"} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, content...)
	}
	command := regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z ]*)")
	for path, text := range documents(t) {
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			for target := range strings.FieldsSeq(m[1]) {
				if !regexp.MustCompile(`(?m)^` + target + `:`).Match(rules) {
					t.Errorf("%s: there is no target %q", path, target)
				}
			}
		}
	}
}
