package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	tests := byPackage("TestGolden\nFuzzRead\nBenchmarkTorch\nok  \tm/a\t0.1s\nTestSum\nExampleNew\nok  \tm/b\t(cached)\n?   \tm/c\t[no test files]\n")
	require.Equal(t, map[string][]string{"m/a": {"TestGolden", "FuzzRead"}, "m/b": {"TestSum", "ExampleNew"}, "m/c": nil}, tests)
	delete(tests, "m/c")
	for _, c := range []struct{ flag, pattern, fails string }{
		{"-run", "Golden|Sum", ""},
		{"-run", "^Test(Golden|Sum)$", ""},
		{"-run", "^(Fuzz|Example)", ""},
		{"-run", "Golden|Torch|Sum", "-run: Torch matches no test"},
		{"-run", "^Test(Golden|Gold|Sum)$", "-run: ^TestGold$ matches no test"},
		{"-run", "Golden", "-run selects no test of m/b"},
		{"-skip", "Golden", ""},
		{"-skip", "Golden|Read|Write", "-skip: Write matches no test"},
		{"-run", "Gol[den", "error parsing regexp"},
	} {
		err := selection{}.check(c.flag, c.pattern, tests)
		if c.fails == "" {
			require.NoError(t, err, c.pattern)
		} else {
			require.ErrorContains(t, err, c.fails)
		}
	}
}

func TestParse(t *testing.T) {
	t.Setenv("GOARCH", "")
	s, err := parse([]string{"-tags", "emu", "-short", "-count", "1", "-exec", "tiers", "-race", "-run", "A|B", "./a", "./b"})
	require.NoError(t, err)
	require.Equal(t, selection{run: "A|B", build: []string{"-tags", "emu", "-race"}, packages: []string{"./a", "./b"}}, s)
	t.Setenv("GOARCH", "mips")
	s, err = parse([]string{"-exec", "qemu", "-skip", "A", "."})
	require.NoError(t, err)
	require.Equal(t, selection{skip: "A", build: []string{"-exec", "qemu"}, packages: []string{"."}}, s)
	for _, bad := range [][]string{{}, {"./a"}, {"-run", "A"}, {"-run"}, {"-v", "-run", "A", "./a"}} {
		_, err := parse(bad)
		require.Error(t, err, bad)
	}
}
