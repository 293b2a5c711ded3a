//go:build cuda && linux && amd64

package main

import (
	"regexp"
	"slices"
	"strings"
)

var (
	entryLine = regexp.MustCompile(`^\.visible \.entry (\w+)\(`)
	// partOf is what the names of kernels have in common that a program uses together: attention
	// on matrix units for rows of so many columns, and its features.
	partOf = regexp.MustCompile(`_unit\d+|_features`)
)

// splitPTX returns the PTX of a module in parts with some of its kernels each, so that a driver
// compiles the ones that a program launches. Every part has what stands outside of kernels.
func splitPTX(text string) []string {
	parts := map[string]*strings.Builder{}
	var names []string // in the order of their first kernels
	var common strings.Builder
	var entry *strings.Builder // that the line belongs to
	for line := range strings.Lines(text) {
		if match := entryLine.FindStringSubmatch(line); match != nil {
			name := partOf.FindString(match[1])
			if parts[name] == nil {
				parts[name] = &strings.Builder{}
				names = append(names, name)
			}
			entry = parts[name]
		}
		switch {
		case entry != nil:
			entry.WriteString(line)
		case !strings.HasPrefix(line, "//") && !strings.HasPrefix(line, "\t// .globl"):
			common.WriteString(line)
		}
		if strings.HasPrefix(line, "}") {
			entry = nil
		}
	}
	if len(names) < 2 {
		return []string{text}
	}
	var all []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		all = append(all, common.String()+parts[name].String())
	}
	return all
}
