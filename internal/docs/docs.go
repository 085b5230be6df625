// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs lets tests compare Markdown files with the code they describe.
package docs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Check fails a test unless a section of a file is what the code says. A
// section begins with the line <!-- begin NAME --> and ends with <!-- end -->.
// With UPDATE_DOCS=1 in the environment it writes the section instead.
func Check(t testing.TB, path, name, want string) {
	t.Helper()
	before, got, after, err := cut(path, name)
	if err != nil {
		t.Fatal(err)
	}
	want = padded(want)
	if got == want {
		return
	}
	if !Updating() {
		t.Fatalf("section %s of %s is not what the code says; run this test with UPDATE_DOCS=1\n\ngot:\n%s\nwant:\n%s", name, path, got, want)
	}
	if err := os.WriteFile(path, []byte(before+want+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Updating says whether sections are to be written: UPDATE_DOCS=1.
func Updating() bool { return os.Getenv("UPDATE_DOCS") == "1" }

// Write replaces a section of a file. It is for what was measured, which no test
// can compare with the code.
func Write(path, name, text string) error {
	before, _, after, err := cut(path, name)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+padded(text)+after), 0o644)
}

// cut returns a section of a file, and what is around it, the markers included.
func cut(path, name string) (before, section, after string, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", "", "", err
	}
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end -->\n"
	before, rest, begins := strings.Cut(string(content), begin)
	section, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("%s has no section %s", path, name)
	}
	return before + begin, section, end + after, nil
}

func padded(text string) string { return "\n" + strings.TrimSpace(text) + "\n\n" }

// Table renders a Markdown table.
func Table(header []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for _, cell := range cells {
			fmt.Fprintf(&b, "| %s ", strings.ReplaceAll(cell, "|", `\|`))
		}
		b.WriteString("|\n")
	}
	line(header)
	line(slices.Repeat([]string{"---"}, len(header)))
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// Block is a fenced block of code.
type Block struct {
	// Heading is the nearest one above.
	Heading  string
	Language string
	Text     string
}

// Blocks returns the fenced blocks of code of a file.
func Blocks(path string) ([]Block, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	var heading string
	var open *Block
	for line := range strings.Lines(string(content)) {
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open == nil:
			open = &Block{Heading: heading, Language: language}
		case fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.Text += line
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: a block of code under %q does not end", path, open.Heading)
	}
	return blocks, nil
}
