// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package board shows how several things get on: in place on a terminal, as one
// line for each change anywhere else.
package board

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// State is how a row gets on.
type State string

// The states, as people read them.
const (
	Waiting State = "Waiting"
	Moving  State = "Moving"
	Done    State = "Done"
	Failed  State = "Failed"
)

// ended reports whether nothing more happens to a row.
func (s State) ended() bool { return s == Done || s == Failed }

// colour is the parameter of the escape sequence that selects it.
func (s State) colour() string {
	switch s {
	case Done:
		return "32"
	case Failed:
		return "31"
	}
	return "33"
}

// Terminal is what a board is drawn on.
type Terminal struct {
	// Live: rows are redrawn where they stand.
	Live bool
	// Colour the states.
	Colour bool
	// Size returns columns and lines. It is asked for every time the board is
	// drawn. Only needed for a live board.
	Size func() (columns, lines int)
}

// Board is safe for concurrent use.
type Board struct {
	out      io.Writer
	terminal Terminal
	// now is the clock, for how long a row takes.
	now func() time.Time

	mu     sync.Mutex
	rows   []*Row
	drawn  int // lines on the screen that the next drawing replaces
	closed bool
	stop   chan struct{}
}

// Row is one line of a board.
type Row struct {
	board *Board
	name  string
	since time.Time
	state State
	text  string
}

// New makes an empty board. Close it.
func New(out io.Writer, t Terminal) *Board {
	b := newBoard(out, t, time.Now)
	if t.Live {
		go b.tick()
	}
	return b
}

func newBoard(out io.Writer, t Terminal, now func() time.Time) *Board {
	return &Board{out: out, terminal: t, now: now, stop: make(chan struct{})}
}

// tick redraws a live board every second, to show that time passes.
func (b *Board) tick() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			b.mu.Lock()
			b.draw()
			b.mu.Unlock()
		case <-b.stop:
			return
		}
	}
}

// Add appends a row.
func (b *Board) Add(name string) *Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &Row{board: b, name: name, since: b.now(), state: Waiting}
	b.rows = append(b.rows, r)
	return r
}

// Set says how a row gets on.
func (r *Row) Set(state State, text string) {
	b := r.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.state == state && r.text == text || b.closed {
		return
	}
	r.state, r.text = state, text
	if b.terminal.Live {
		b.draw()
		return
	}
	fmt.Fprintf(b.out, "%s: %s%s\n", r.name, b.paint(state, string(state)), spaced(": ", text))
}

// Close draws the board for the last time and leaves it on the screen.
func (b *Board) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.draw()
	b.closed = true
	close(b.stop)
}

// header is that of the first column.
const header = "CLAIM"

func (b *Board) draw() {
	if !b.terminal.Live || b.closed {
		return
	}
	columns, height := b.terminal.Size()
	lines := b.lines(max(columns, 20), max(height, 5))
	var s strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&s, "\x1b[%dA\r\x1b[J", b.drawn)
	}
	for _, l := range lines {
		s.WriteString(l + "\n")
	}
	b.drawn = len(lines)
	fmt.Fprint(b.out, s.String()) // one write, so that nothing flickers
}

// lines are what fits on the screen: of one row all that it says, of several a
// table with a line each.
func (b *Board) lines(columns, height int) []string {
	if len(b.rows) == 1 {
		r := b.rows[0]
		head := cut(r.name+"  "+string(r.state)+spaced("  ", b.age(r)), columns)
		lines := []string{strings.Replace(head, string(r.state), b.paint(r.state, string(r.state)), 1)}
		for _, l := range wrap(r.text, columns-2) {
			lines = append(lines, "  "+l)
		}
		return lines[:min(len(lines), height-1)]
	}
	shown := b.rows
	// Above is the header, below the count of what is not shown, then the cursor.
	if most := height - 3; len(shown) > most {
		shown = b.first(most)
	}
	names := len(header)
	for _, r := range shown {
		names = max(names, len([]rune(r.name)))
	}
	names = min(names, columns/2)
	lines := []string{cut(fmt.Sprintf("%-*s  %-7s  %-4s  %s", names, header, "STATE", "FOR", "MESSAGE"), columns)}
	for _, r := range shown {
		head := fmt.Sprintf("%-*s  ", names, cut(r.name, names))
		tail := cut(fmt.Sprintf("%-7s  %-4s  %s", r.state, b.age(r), r.text), columns-names-2)
		lines = append(lines, strings.TrimRight(head+strings.Replace(tail, string(r.state), b.paint(r.state, string(r.state)), 1), " "))
	}
	if hidden := len(b.rows) - len(shown); hidden > 0 {
		lines = append(lines, cut(fmt.Sprintf("and %d more", hidden), columns))
	}
	return lines
}

// first are the rows that there is room for, those that still get on first.
func (b *Board) first(most int) []*Row {
	var going, ended []*Row
	for _, r := range b.rows {
		if r.state.ended() {
			ended = append(ended, r)
		} else {
			going = append(going, r)
		}
	}
	return append(going, ended...)[:most]
}

// age is how long a row has been getting on. It is not shown before it can be
// read.
func (b *Board) age(r *Row) string {
	if d := b.now().Sub(r.since); !r.state.ended() && d >= time.Second {
		return duration.HumanDuration(d)
	}
	return ""
}

func (b *Board) paint(s State, text string) string {
	if !b.terminal.Colour {
		return text
	}
	return "\x1b[" + s.colour() + "m" + text + "\x1b[0m"
}

func spaced(space, text string) string {
	if text == "" {
		return ""
	}
	return space + text
}

// cut shortens a text to a width.
func cut(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:max(width-1, 0)]) + "…"
	}
	return text
}

// wrap breaks a text into lines of a width, between words where it can.
func wrap(text string, width int) []string {
	width = max(width, 1)
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			for len([]rune(word)) > width {
				if line != "" {
					lines = append(lines, line)
					line = ""
				}
				r := []rune(word)
				lines = append(lines, string(r[:width]))
				word = string(r[width:])
			}
			switch {
			case line == "":
				line = word
			case len([]rune(line))+1+len([]rune(word)) <= width:
				line += " " + word
			default:
				lines = append(lines, line)
				line = word
			}
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
