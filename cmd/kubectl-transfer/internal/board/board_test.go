// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package board

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestBoard: what people see, as files in testdata tell it. Every command prints
// what it has written, with escape sequences as Go writes them.
func TestBoard(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var out bytes.Buffer
		var b *Board
		rows := map[string]*Row{}
		clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out.Reset()
			switch d.Cmd {
			case "board":
				columns, lines := 80, 24
				d.MaybeScanArgs(t, "columns", &columns)
				d.MaybeScanArgs(t, "lines", &lines)
				if b != nil {
					b.Close()
				}
				b = newBoard(&out, Terminal{Live: d.HasArg("live"), Colour: d.HasArg("colour"), Size: func() (int, int) { return columns, lines }},
					func() time.Time { return clock })
			case "add":
				for name := range strings.Lines(d.Input) {
					name = strings.TrimSpace(name)
					rows[name] = b.Add(name)
				}
			case "set":
				name, text, _ := strings.Cut(d.Input, ": ")
				var state string
				d.ScanArgs(t, "state", &state)
				rows[name].Set(State(state), text)
			case "later":
				var seconds int
				d.ScanArgs(t, "seconds", &seconds)
				clock = clock.Add(time.Duration(seconds) * time.Second)
				b.mu.Lock()
				b.draw()
				b.mu.Unlock()
			case "close":
				b.Close()
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			text := strings.Trim(strconv.Quote(out.String()), `"`)
			return strings.ReplaceAll(strings.ReplaceAll(text, `\n`, "\n"), `\r`, "<cr>")
		})
	})
}
