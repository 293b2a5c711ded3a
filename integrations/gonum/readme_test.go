package gonum_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadme: the program of README.md prints the table that is there, but for figures.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n```\n( +method .*?)```\n").FindSubmatch(text)
	require.NotNil(t, block)
	require.Contains(t, string(text), "\n    go run ./examples/compare\n")
	out, err := exec.Command("go", "run", "./examples/compare", "-steps", "24", "-size", "1024").Output()
	require.NoError(t, err)
	words := func(s string) []string {
		return strings.Fields(regexp.MustCompile(`\b(\d+\.)?\d+(e-\d+)?\b`).ReplaceAllString(s, ""))
	}
	require.Equal(t, words(string(block[1])), words(string(out)))
	figures := regexp.MustCompile(`(LBFGS|8 bits) .*?(\d+) +\d+\.\d +`).FindAllStringSubmatch(string(out), -1)
	require.Len(t, figures, 2)
	require.Greater(t, len(figures[0][2]), len(figures[1][2]), "bytes of LBFGS and of 8 bits: %s", out) // a digit more
}
