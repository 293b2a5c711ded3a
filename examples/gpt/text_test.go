package main

import (
	"bytes"
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
	text, err := readText(dir, 100)
	require.NoError(t, err)
	require.Len(t, text, 4)
	require.Zero(t, bytes.Count(text, []byte("c")))
	text, err = readText(dir, 3)
	require.NoError(t, err)
	require.Len(t, text, 3)
	text, err = readText(filepath.Join(dir, "testdata", "c.txt"), 100)
	require.NoError(t, err)
	require.Equal(t, "cc", string(text))
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
