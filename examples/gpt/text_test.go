package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func pieces(text string) (list []string) {
	for w := range words([]byte(text)) {
		list = append(list, string(w))
	}
	return list
}

func TestWords(t *testing.T) {
	require.Equal(t, []string{"func", " main", "()", " {\n\t", "return", " x", " +", " y9", "\n}"}, pieces("func main() {\n\treturn x + y9\n}"))
	require.Equal(t, []string{" ", " ", " a", " "}, pieces("   a "))
	require.Empty(t, pieces(""))
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte("a b\x00\xff  b"), []byte("b b b a"))
	f.Fuzz(func(t *testing.T, text, source []byte) {
		v := newVocabulary(source, 256+4)
		require.Equal(t, string(text), strings.Join(pieces(string(text)), ""))
		tokens := v.encode(text)
		ids := make([]int32, len(tokens))
		for i, k := range tokens {
			require.Less(t, int(k), 256+len(v.words))
			ids[i] = int32(k)
		}
		require.Equal(t, string(text), v.decode(ids))
	})
}

func TestVocabularyHoldsTheMostFrequentWords(t *testing.T) {
	v := newVocabulary([]byte("xx yy yy zz zz zz"), 256+2)
	require.Equal(t, []string{" zz", " yy"}, v.words)
	require.Equal(t, []uint16{'x', 'x', 256}, v.encode([]byte("xx zz")))
}

func TestReadTextOfFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "testdata"), 0o700))
	for name, text := range map[string]string{"a.txt": "aa", "b.txt": "bb", "testdata/c.txt": "cc"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	text, err := readText(t.Context(), dir, 100)
	require.NoError(t, err)
	require.Len(t, text, 4)
	require.Zero(t, bytes.Count(text, []byte("c")))
	text, err = readText(t.Context(), dir, 3)
	require.NoError(t, err)
	require.Len(t, text, 3)
	text, err = readText(t.Context(), filepath.Join(dir, "testdata", "c.txt"), 100)
	require.NoError(t, err)
	require.Equal(t, "cc", string(text))

	all := func(string) bool { return true }
	_, err = filesBelow(t.Context(), dir, all, 1)
	require.ErrorContains(t, err, dir+" holds more than 1 files")
	names, err := filesBelow(t.Context(), dir, all, 2)
	require.NoError(t, err)
	require.Len(t, names, 2)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, path := range []string{"", dir, filepath.Join(dir, "a.txt")} {
		_, err = readText(ended, path, 100)
		require.ErrorIs(t, err, context.Canceled)
	}
}

// TestReadTextReadsNoMoreThanItReturns: the rest of a file, here 1 TiB, does not matter.
func TestReadTextReadsNoMoreThanItReturns(t *testing.T) {
	name := filepath.Join(t.TempDir(), "long")
	require.NoError(t, os.WriteFile(name, []byte("text"), 0o600))
	if os.Truncate(name, 1<<40) != nil {
		require.NoError(t, os.Truncate(name, 1<<30)) // as much as many file systems take
	}
	text, err := readText(t.Context(), name, 100)
	require.NoError(t, err)
	require.Equal(t, "text", string(text[:4]))
	require.Len(t, text, 100)
}

func TestSequencesStayInside(t *testing.T) {
	from := make([]uint16, 12)
	for i := range from {
		from[i] = uint16(i)
	}
	in, out := make([]int32, 11), make([]int32, 11)
	for key := range uint64(50) {
		sequence(in, out, from, key)
		require.Equal(t, int32(0), in[0])
		require.Equal(t, int32(11), out[10])
	}
}
