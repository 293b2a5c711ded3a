package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/safetensors"
)

// tricky are characters that a terminal obeys or that forge a line.
var tricky = []string{"\x1b[2J", "\n", "\r", "\t", "\x00", "\x7f", "\u0085", "\u009b31m", "\x9b31m", "\u202e", "\u2028", "\ufeff", "\xff"}

// TestNamesThatATerminalWouldObey: neither the keys of metadata, nor the names of tensors
// and paths, reach the output as they are.
func TestNamesThatATerminalWouldObey(t *testing.T) {
	for _, s := range tricky {
		safe := func(out string) {
			t.Helper()
			require.NotContains(t, out, s+"mark", "%q", s)
			require.Contains(t, out, "mark", "%q", s)
		}
		if utf8.ValidString(s) { // other strings are in no JSON
			h := safetensors.Header{Tensors: []safetensors.Tensor{{Name: "w", DType: "U8", Shape: []int{0}}}, Metadata: map[string]string{s + "mark": "x"}}
			b, err := h.Bytes()
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "m.safetensors")
			require.NoError(t, os.WriteFile(path, b, 0o600))
			status, out, errs := snugged("inspect", path)
			require.Zero(t, status, errs)
			safe(out)
			require.Equal(t, 3, strings.Count(out, "\n"), out)
		}
		dir := filepath.Join(t.TempDir(), s+"mark")
		if os.MkdirAll(dir, 0o700) != nil {
			continue // no name of a file here
		}
		runIn(t, dir, 1, 2)
		status, out, errs := snugged("verify", dir)
		require.Zero(t, status, errs)
		safe(out)
		require.Equal(t, 2, strings.Count(out, "\n"), out)
		require.NoError(t, os.Remove(filepath.Join(dir, "step-00000002", "scaler")))
		status, out, errs = snugged("verify", "-q", dir)
		require.Equal(t, 1, status)
		safe(out)
		require.Equal(t, 1, strings.Count(out, "\n"), out)
		if s != "\n" { // which is a semicolon between errors
			safe(errs)
		}
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	}
}

// TestPrintable: what is printed has no character that is not seen, and is the name where
// that is so.
func TestPrintable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "name")
		for _, shown := range []string{printable(s), escaped(s)} {
			require.Equal(t, shown, printable(shown))
			if s == printable(s) {
				require.Equal(t, s, shown)
			}
		}
	})
	require.Equal(t, "größe 2", printable("größe 2"))
	require.Equal(t, `"a\u202eb"`, printable("a\u202eb"))
	require.Equal(t, `a\u202eb\xff\x1b`, escaped("a\u202eb\xff\x1b"))
}

// TestVerifyGGUF: a damaged scale and a missing end are found, and the parts of a model are checked once.
func TestVerifyGGUF(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, scale byte, metadata ...gguf.Pair) string {
		path := filepath.Join(dir, name)
		w, err := gguf.Create(path, metadata, []gguf.Tensor{{Name: name, Type: gguf.Q8_0, Shape: []int{1, 64}}})
		require.NoError(t, err)
		b := make([]byte, 68)
		b[35] = scale
		require.NoError(t, w.Write(name, b))
		require.NoError(t, w.Close())
		return path
	}
	part := func(no int) []gguf.Pair {
		return []gguf.Pair{{Key: "split.no", Value: uint16(no)}, {Key: "split.count", Value: uint16(2)}}
	}
	write("m-00001-of-00002.gguf", 0x3c, part(0)...)
	second := write("m-00002-of-00002.gguf", 0x3c, part(1)...)
	status, out, errs := snugged("verify", dir)
	require.Zero(t, status, errs)
	require.Equal(t, "ok\t"+filepath.Join(dir, "m-00001-of-00002.gguf")+"\tGGUF, 136 B\n", out)
	status, _, _ = snugged("verify", second)
	require.Equal(t, 1, status, "a part alone")

	write("x.gguf", 0x7c)
	status, out, _ = snugged("verify", "-q", dir)
	require.Equal(t, 1, status)
	require.Contains(t, out, "x.gguf: element 32 of q8_0 is")
	require.NoError(t, os.Truncate(second, 90))
	status, out, _ = snugged("verify", "-q", dir)
	require.Equal(t, 1, status)
	require.Equal(t, 2, strings.Count(out, "damaged\t"), out)
}
