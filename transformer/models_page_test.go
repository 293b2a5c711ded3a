package transformer

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelsPage keeps the tables of docs/models.md, which list the families and the models for images and text. What a row is an
// example of is written by hand, the other cells follow from the families. UPDATE=1 writes them.
func TestModelsPage(t *testing.T) {
	const path = "../docs/models.md"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	page := string(text)
	mark := func(is bool) string {
		if is {
			return "yes"
		}
		return "–"
	}
	texts := func(row func(name, examples string) string, examples map[string]string) (rows []string) {
		for _, name := range familyNames() {
			rows = append(rows, row(name, examples[name]))
		}
		return rows
	}
	images := func(row func(name, examples string) string, examples map[string]string) (rows []string) {
		for _, name := range slices.Sorted(maps.Keys(wholes)) {
			rows = append(rows, row(name, examples[name]))
		}
		return rows
	}
	for _, table := range []struct {
		head string
		rows func(row func(name, examples string) string, examples map[string]string) []string
		row  func(name, examples string) string
	}{
		{"| model_type | for example | GGUF file | adapter as GGUF | mlx-lm |\n|---|---|---|---|---|\n", texts, func(name, examples string) string {
			f := families[name]
			return fmt.Sprintf("| `%s` | %s | %s | %s | %s |", name, examples, mark(f.gguf.arch != ""), mark(f.gguf.arch != "" && f.gguf.noAdapters == ""), mark(f.mlx != ""))
		}},
		{"| model_type | for example | text model | mlx-lm |\n|---|---|---|---|\n", images, func(name, examples string) string {
			w := wholes[name]
			return fmt.Sprintf("| `%s` | %s | `%s` | %s |", name, examples, strings.Join(w.texts, "`, `"), mark(w.mlx != ""))
		}},
	} {
		before, rest, found := strings.Cut(page, table.head)
		require.True(t, found, table.head)
		have, after, found := strings.Cut(rest, "\n\n")
		require.True(t, found)
		examples := map[string]string{}
		for _, line := range strings.Split(have, "\n") {
			cells := strings.Split(line, " | ")
			require.Greater(t, len(cells), 2, line)
			examples[strings.Trim(cells[0], "| `")] = cells[1]
		}
		want := table.rows(table.row, examples)
		if os.Getenv("UPDATE") == "" {
			require.Equal(t, want, strings.Split(have, "\n"))
			for name, e := range examples {
				require.NotEmpty(t, e, "%s wants an example in %s", name, path)
			}
		}
		page = before + table.head + strings.Join(want, "\n") + "\n\n" + after
	}
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
}
