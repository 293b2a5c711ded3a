package snug_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeLoop: the loop that the README shows is the one of examples/first, which learns.
//
//check:not arm64 race
func TestReadmeLoop(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n```go\n")
	require.True(t, found)
	loop, _, found := strings.Cut(after, "}\n```\n")
	require.True(t, found)
	program, err := os.ReadFile("examples/first/main.go")
	require.NoError(t, err)
	require.Contains(t, strings.ReplaceAll(string(program), "\n\t", "\n"), "\n"+loop)

	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("compiled tests run where Go is not installed: ", err)
	}
	out, err := exec.Command("go", "run", "./examples/first").CombinedOutput()
	require.NoError(t, err, "%s", out)
	var first, last float64
	for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		var step int
		_, err := fmt.Sscanf(line, "step %d: loss %f", &step, &last)
		require.NoError(t, err, line)
		if i == 0 {
			first = last
		}
	}
	require.Less(t, last, first/1000)
}

// TestReadmeIsShort: the README is read in one sitting; what is longer goes to docs.
func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, len(strings.Fields(string(text))), 1500)
}
