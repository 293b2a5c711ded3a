package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReading: what is read fast is not shown, and a line says how much of how much.
func TestReading(t *testing.T) {
	var b strings.Builder
	shown, done := showReading(&b)
	shown("a.jsonl", 1, 2)
	done()
	require.Empty(t, b.String())
	require.Equal(t, "reading a.jsonl: 1.00 MiB of 4.00 MiB, 25 %", readingLine("folder/a.jsonl", 1<<20, 4<<20))
	require.Equal(t, "reading stdin: 1.00 MiB", readingLine("/dev/stdin", 1<<20, -1))
}
