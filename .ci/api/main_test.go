package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const source = `package x

type (
	Shape[T any] struct {
		Rows, Cols int // fields
		Inner
		hidden T
	}
	Namer interface {
		Name(short bool) (a, b string)
		Closer
	}
	Alias = Shape[int]
	inner struct{ Exported int }
)

const Most, least = 1, 2
const Kind Number = 3

var Err error

func (s *Shape[T]) Area(a, b int) (int, error) { return 0, nil }
func (s Shape[T]) Ok() bool                     { return true }
func (i inner) Public()                         {}
func Map[A, B any](xs []A, f func(A) B) []B     { return nil }
func local()                                    {}
`

func TestExported(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.go"), []byte(source), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x_test.go"), []byte("package x\n\nfunc Test() {}\n"), 0o644))
	lines, err := exported(module+"/x", dir)
	require.NoError(t, err)
	require.Equal(t, strings.Split(`x: type Shape[T any] struct
x: field Shape.Rows int
x: field Shape.Cols int
x: embedded Shape.Inner Inner
x: type Namer interface
x: method Namer.Name(bool) (string, string)
x: embedded Namer.Closer
x: type Alias = Shape[int]
x: const Most
x: const Kind Number
x: var Err error
x: method *Shape.Area(int, int) (int, error)
x: method Shape.Ok() bool
x: func Map[A any, B any]([]A, func(A) B) []B`, "\n"), lines)
}

// A change that the changelog does not name under Unreleased is an error.
func TestGone(t *testing.T) {
	old := []string{"amp: field Options.Seed int", "amp: func Cast[S any](S)", "amp: method *Scaler.Step() error"}
	text := unreleased("# Changelog\n## [Unreleased]\n- `Cast` takes two vectors.\n## [0.1.0]\n- `Step`\n")
	require.Empty(t, gone(old, old, text))
	errs := gone(old, []string{"amp: field Options.Seed uint64"}, text)
	require.Len(t, errs, 2)
	require.ErrorContains(t, errs[0], "CHANGELOG.md does not name Seed under Unreleased: amp: field Options.Seed int")
	require.ErrorContains(t, errs[1], "does not name Step")
}

func TestPublic(t *testing.T) {
	for name, want := range map[string]bool{"": true, "/amp": true, "/dist/mpi": true, "/internal/cpu": false, "/examples/gpt": false, "/cmd/snug": false, "/remat/internal/memtest": false} {
		require.Equal(t, want, public(module+name), name)
	}
}
