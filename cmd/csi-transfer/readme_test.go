// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"strings"
	"testing"

	"github.com/csi-transfer/csi-transfer/internal/docs"
)

// TestReadmeHasTheFlags: the tables of README are made from the flags.
func TestReadmeHasTheFlags(t *testing.T) {
	own := flag.NewFlagSet("", flag.PanicOnError)
	(&options{}).register(own)
	standard := flag.NewFlagSet("", flag.PanicOnError)
	registerFlags()
	flag.VisitAll(func(f *flag.Flag) {
		if own.Lookup(f.Name) == nil && !strings.HasPrefix(f.Name, "test.") {
			standard.Var(f.Value, f.Name, f.Usage)
		}
	})
	docs.Check(t, "../../README.md", "flags", table(own))
	docs.Check(t, "../../README.md", "standard flags", table(standard))
}

func table(flags *flag.FlagSet) string {
	var rows [][]string
	flags.VisitAll(func(f *flag.Flag) {
		value := f.DefValue
		if value != "" {
			value = "`" + value + "`"
		}
		rows = append(rows, []string{"`--" + f.Name + "`", value, f.Usage})
	})
	return docs.Table([]string{"flag", "default", "meaning"}, rows)
}
