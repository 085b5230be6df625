// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTextBytes bounds every text taken from a driver. CSI's general limit for
// strings is 128 bytes, but IDs that are paths of a cloud's resources are longer.
const maxTextBytes = 1024

// checkText refuses what could flood a condition, or change how the text around
// it looks to a person: control characters, line breaks, bidirectional
// overrides.
func checkText(field, value string) error {
	if len(value) > maxTextBytes {
		return fmt.Errorf("%w: %s has %d bytes, more than %d", ErrMalformed, field, len(value), maxTextBytes)
	}
	if !utf8.ValidString(value) || strings.IndexFunc(value, isNotGraphic) >= 0 {
		return fmt.Errorf("%w: %s %q has characters that are not graphic", ErrMalformed, field, value)
	}
	return nil
}

// printable makes any text pass checkText.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if isNotGraphic(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxTextBytes {
		return s
	}
	const ellipsis = "…"
	cut := maxTextBytes - len(ellipsis)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}

func isNotGraphic(r rune) bool { return !unicode.IsGraphic(r) }
