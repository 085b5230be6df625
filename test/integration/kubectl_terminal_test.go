// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// terminal is one that a command runs in, with the screen as its user sees it.
type terminal struct {
	p    *person
	file *os.File // what the user types goes here
	done chan error

	mu      sync.Mutex
	screen  vt10x.Terminal
	raw     strings.Builder
	changed chan struct{} // closed, and made anew, when the screen changes
}

// sits starts a command in a terminal of a size.
func (p *person) sits(columns, lines uint16, environment, line string) *terminal {
	p.s.Helper()
	t := &terminal{p: p, done: make(chan error, 1), changed: make(chan struct{}),
		screen: vt10x.New(vt10x.WithSize(int(columns), int(lines)))}
	cmd := p.command(p.s.ctx, line)
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", environment)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: columns, Rows: lines})
	p.s.must(err)
	t.file = file
	p.s.Cleanup(func() { file.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := file.Read(buffer)
			t.mu.Lock()
			_, _ = t.screen.Write(buffer[:n]) // an emulator takes everything
			t.raw.Write(buffer[:n])
			close(t.changed)
			t.changed = make(chan struct{})
			t.mu.Unlock()
			if err != nil { // the command has ended
				t.done <- cmd.Wait()
				return
			}
		}
	}()
	return t
}

// shows waits until a text is on the screen, wherever lines are broken, and
// returns the screen.
func (t *terminal) shows(text string) string {
	t.p.s.Helper()
	for {
		t.mu.Lock()
		screen, changed := t.text(), t.changed
		t.mu.Unlock()
		if t.p.flowing(screen, text) {
			return screen
		}
		select {
		case <-changed:
		case <-t.p.s.ctx.Done():
			t.p.s.Fatalf("the screen has not shown %q:\n%s", text, screen)
		}
	}
}

// text is the screen without the empty lines below.
func (t *terminal) text() string {
	var lines []string
	for line := range strings.Lines(t.screen.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// flowing reports whether a screen has a text, wherever its lines are broken.
func (p *person) flowing(screen, text string) bool {
	solid := func(s string) string { return strings.Join(strings.Fields(s), "") }
	return strings.Contains(p.back.Replace(solid(screen)), solid(text))
}

func (t *terminal) types(text string) {
	t.p.s.Helper()
	_, err := t.file.WriteString(text)
	t.p.s.must(err)
}

// ends waits for the end of the command.
func (t *terminal) ends() (screen string, err error) {
	err = <-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text(), err
}

var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestKubectl_Terminal: on a terminal a command shows where it stands in place,
// within its width, in colour unless NO_COLOR is set, and Ctrl-C ends only the
// command.
func TestKubectl_Terminal(t *testing.T) {
	for _, test := range []struct {
		columns     uint16
		environment string
		colour      bool
	}{
		{100, "NO_COLOR=", true},
		{100, "NO_COLOR=1", false},
		{38, "NO_COLOR=1", false},
	} {
		t.Run(fmt.Sprintf("%d columns, %s", test.columns, test.environment), func(t *testing.T) {
			s := newScene(t)
			bob := s.person("bob", s.receiver+"="+requesterRole)
			source := s.source()
			s.pod(s.giver, "app", "data")

			screen := bob.sits(test.columns, 24, test.environment, "kubectl transfer accept prod/pvc/data -n dev")
			screen.shows("gives it with: kubectl transfer approve prod/pvc/data --to dev")
			s.approve(source)
			if text := screen.shows("is used in namespace prod by pod app"); bob.flowing(text, "gives it with") {
				t.Errorf("what it waited for before is still on the screen:\n%s", text)
			}
			screen.types("\x03") // Ctrl-C
			text, err := screen.ends()
			if err == nil || !bob.flowing(text, "To go on: kubectl transfer accept prod/pvc/data -n dev") {
				t.Errorf("after Ctrl-C (%v):\n%s", err, text)
			}
			if has := colour.MatchString(screen.raw.String()); has != test.colour {
				t.Errorf("colour: %t, want %t", has, test.colour)
			}

			screen = bob.sits(test.columns, 24, test.environment, "kubectl transfer accept prod/pvc/data -n dev")
			screen.shows("is used in namespace prod by pod app")
			s.deletePod(s.giver, "app")
			text, err = screen.ends()
			if want := "prod/data -> dev/data Done PersistentVolumeClaim dev/data has volume"; err != nil || !bob.flowing(text, want) || bob.flowing(text, "Waiting") {
				t.Errorf("at the end (%v), want %q alone:\n%s", err, want, text)
			}
		})
	}
}

// TestKubectl_TerminalTable: several claims are a table that is changed in place,
// and what is left behind is deleted only if the user says so.
func TestKubectl_TerminalTable(t *testing.T) {
	for _, answer := range []string{"y", "n"} {
		t.Run(answer, func(t *testing.T) {
			s := newScene(t)
			carol := s.person("carol", s.giver+"=edit", s.receiver+"=edit")
			s.statefulSet(s.giver, "db", 3)
			s.pod(s.giver, "db-1", "data-db-1")

			screen := carol.sits(60, 24, "NO_COLOR=1", "kubectl transfer move prod/statefulset/db --to dev")
			screen.shows("prod/data-db-0 Done")
			screen.shows("prod/data-db-2 Done")
			text := screen.shows("prod/data-db-1 Waiting")
			if n := strings.Count(text, s.giver+"/data-db-"); n != 3 {
				t.Errorf("%d lines for 3 claims:\n%s", n, text)
			}
			s.deletePod(s.giver, "db-1")
			screen.shows("Delete them? [y/N]")
			screen.types(answer + "\n")
			text, err := screen.ends()
			if err != nil {
				t.Errorf("%v:\n%s", err, text)
			}
			for i := range 3 {
				name := fmt.Sprintf("data-db-%d", i)
				s.bound(s.receiver, name)
				c, err := s.claims(s.giver).Get(s.ctx, name, metav1.GetOptions{})
				if kept := err == nil && c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimLost; kept != (answer == "n") {
					t.Errorf("after %q: claim %s kept: %t (%v)", answer, name, kept, err)
				}
			}
		})
	}
}
