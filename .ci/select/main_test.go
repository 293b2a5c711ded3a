package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "a_test.go")
	require.NoError(t, os.WriteFile(path, []byte("package a\n"+text), 0o600))
	return path
}

func TestChosen(t *testing.T) {
	path := write(t, `
// TestSum adds.
//
//check:in tiers arm64
//check:not race
func TestSum(t *testing.T) {}

func TestOther(t *testing.T) {}

//check:in tiers
func ExampleSum() {}

func BenchmarkSum(b *testing.B) {}

func FuzzSum(f *testing.F) {}

func Testing() {}

func TestMain(m *testing.M) {}
`)
	for _, c := range []struct {
		run    string
		chosen []string
	}{
		{"tiers", []string{"TestSum", "ExampleSum"}},
		{"arm64", []string{"TestSum"}},
		{"race", []string{"TestOther", "ExampleSum", "FuzzSum"}},
		{"bits32", []string{"TestSum", "TestOther", "ExampleSum", "FuzzSum"}},
	} {
		t.Run(c.run, func(t *testing.T) {
			p := &tested{}
			require.NoError(t, p.read(path, c.run))
			require.Equal(t, c.chosen, p.chosen())
		})
	}
}

func TestBadMarks(t *testing.T) {
	for _, c := range []struct{ name, text, fails string }{
		{"unknown run", "//check:in tears\nfunc TestA(t *testing.T) {}", "no run is called tears"},
		{"unknown mark", "//check:out tiers\nfunc TestA(t *testing.T) {}", "want //check:in or //check:not"},
		{"without runs", "//check:in\nfunc TestA(t *testing.T) {}", "and runs"},
		{"above a helper", "//check:in tiers\nfunc help(t *testing.T) {}", "above a test"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := marks(write(t, c.text))
			require.ErrorContains(t, err, c.fails)
		})
	}
}

func TestParse(t *testing.T) {
	flags, packages := parse([]string{"-tags", "emu", "-exec", "/x/tiers", ".", "./a", "github.com/snug-ml/snug/b"})
	require.Equal(t, []string{"-tags", "emu", "-exec", "/x/tiers"}, flags)
	require.Equal(t, []string{".", "./a", "github.com/snug-ml/snug/b"}, packages)
	require.ErrorContains(t, run([]string{"tears", "."}, nil), "no run is called tears")
	require.ErrorContains(t, run([]string{"tiers", "-race"}, nil), "want packages")
	require.ErrorContains(t, run([]string{"tiers", "."}, nil), "has a mark of the run tiers")
}

// Every mark of the repository is one that select reads, and every run has some.
func TestMarks(t *testing.T) {
	marked := map[string]int{}
	lines, read := 0, 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || path == "../../.ci/select/main_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		here := strings.Count(string(text), "\n//check:")
		if here == 0 {
			return nil
		}
		lines += here
		tests, err := marks(path)
		if err != nil {
			return err
		}
		for _, m := range tests {
			for _, run := range append(m.in, m.not...) {
				marked[run]++
			}
			if len(m.in) > 0 {
				read++
			}
			if len(m.not) > 0 {
				read++
			}
		}
		return nil
	}))
	require.Equal(t, lines, read, "a mark that stands above no test")
	for run := range runs {
		require.NotZero(t, marked[run], run)
	}
}
