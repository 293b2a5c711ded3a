//go:build clang

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFaults wants every planted fault found on its line, and nothing else.
func TestFaults(t *testing.T) {
	const file = "testdata/faults.metal"
	c := checker{clang: "clang-19", shim: "shim", include: "../../include"}
	problems, err := c.check(file)
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)

	wanted := map[int]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		_, want, ok := strings.Cut(line, "// want: ")
		if !ok {
			continue
		}
		wanted[i+1] = true
		var found []string
		for _, p := range problems {
			if strings.HasPrefix(p, fmt.Sprintf("%s:%d:", file, i+1)) {
				found = append(found, p)
			}
		}
		require.Contains(t, strings.Join(found, "\n"), want, "line %d: %s", i+1, line)
	}
	at := regexp.MustCompile(`^` + regexp.QuoteMeta(file) + `:(\d+):`)
	for _, p := range problems {
		match := at.FindStringSubmatch(p)
		require.NotNil(t, match, p)
		var line int
		_, err := fmt.Sscan(match[1], &line)
		require.NoError(t, err)
		require.True(t, wanted[line], "no fault is planted there: %s", p)
	}
}
