package gomlx_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocuments runs the commands of docs/gomlx.md, which are there in a clone.
func TestDocuments(t *testing.T) {
	text, err := os.ReadFile("../../docs/gomlx.md")
	if os.IsNotExist(err) {
		t.Skip("the module is not in a clone")
	}
	require.NoError(t, err)
	says := map[string]string{
		"table":        `(?s)GoMLX's AdamW +[\d.]+ +215168 .*snug, 8 bits in pages +[\d.]+ +68480 `,
		"mnist":        `100 steps: held-out loss 0\.\d+, accuracy (9\d|100)\.\d %; \d+ bytes of state for 23530 parameters`,
		"flowmatching": `steps 1 to 10: loss 1\.\d+\n\d+ bytes of state for \d+ parameters`,
	}
	for _, m := range regexp.MustCompile(`(?m)^    go -C integrations/gomlx (run \./examples/(\w+).*)$`).FindAllStringSubmatch(string(text), -1) {
		out, err := exec.Command("go", strings.Fields(m[1])...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, says[m[2]], string(out))
		delete(says, m[2])
	}
	require.Empty(t, says, "docs/gomlx.md lacks commands")
}

// TestFewLines: at most ten lines of a program with a model of GoMLX are for snug.
func TestFewLines(t *testing.T) {
	for _, name := range []string{"mnist", "flowmatching"} {
		text, err := os.ReadFile(filepath.Join("examples", name, "main.go"))
		require.NoError(t, err)
		marked := 0
		for line := range strings.Lines(string(text)) {
			is := strings.HasSuffix(line, "// snug\n")
			if is {
				marked++
			}
			if strings.Contains(line, "gomlx.") && !strings.Contains(line, "github.com/gomlx") {
				require.True(t, is, "%s: a line for snug is not marked: %s", name, line)
			}
		}
		require.True(t, marked > 0 && marked <= 10, strconv.Itoa(marked))
	}
}
