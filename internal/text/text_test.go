package text

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
		v := NewVocabulary(source, 256+4)
		require.Equal(t, string(text), strings.Join(pieces(string(text)), ""))
		tokens := v.Encode(text)
		ids := make([]int32, len(tokens))
		for i, k := range tokens {
			require.Less(t, int(k), v.Len())
			ids[i] = int32(k)
		}
		require.Equal(t, string(text), v.Decode(ids))
	})
}

func TestVocabularyHoldsTheMostFrequentWords(t *testing.T) {
	v := NewVocabulary([]byte("xx yy yy zz zz zz"), 256+2)
	require.Equal(t, []string{" zz", " yy"}, v.words)
	require.Equal(t, []uint16{'x', 'x', 256}, v.Encode([]byte("xx zz")))
}

func TestReadTextOfFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "testdata"), 0o700))
	for name, text := range map[string]string{"a.txt": "aa", "b.txt": "bb", "testdata/c.txt": "cc"} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		})
	}
	text, err := Read(t.Context(), dir, 100)
	require.NoError(t, err)
	require.Len(t, text, 4)
	require.Zero(t, bytes.Count(text, []byte("c")))
	text, err = Read(t.Context(), dir, 3)
	require.NoError(t, err)
	require.Len(t, text, 3)
	text, err = Read(t.Context(), filepath.Join(dir, "testdata", "c.txt"), 100)
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
		_, err = Read(ended, path, 100)
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
	text, err := Read(t.Context(), name, 100)
	require.NoError(t, err)
	require.Equal(t, "text", string(text[:4]))
	require.Len(t, text, 100)
}

func TestSequencesStayInside(t *testing.T) {
	from := make([]uint16, 12)
	for i := range from {
		from[i] = uint16(i)
	}
	for key := range uint64(50) {
		in, out := AppendSequence(nil, nil, from, 11, key)
		require.Equal(t, int32(0), in[0])
		require.Equal(t, int32(11), out[10])
	}
	in, out := AppendSequence(nil, nil, from, 3, 1)
	in, out = AppendSequence(in, out, from, 3, 2)
	require.Len(t, in, 6)
	require.Equal(t, in[1:3], out[:2])
	require.Equal(t, in[4:], out[3:5])
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(name, []byte(strings.Repeat("a cat ", 100)), 0o600))
	c, err := Load(t.Context(), name, 1000, 300, 20)
	require.NoError(t, err)
	require.Len(t, c.Held, (len(c.Train)+len(c.Held))/10)
	require.Len(t, c.Sum(), 64)
	less, err := Load(t.Context(), name, 598, 300, 1)
	require.NoError(t, err)
	require.NotEqual(t, c.Sum(), less.Sum())
	_, err = Load(t.Context(), name, 1000, 300, 21)
	require.ErrorContains(t, err, "too short: 201 tokens, want at least 210")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	_, err = Load(t.Context(), name, 1000, 300, 20)
	require.ErrorContains(t, err, "no text")
	require.Equal(t, "a\uFFFD\uFFFD", c.Vocabulary.Decode([]int32{'a', 299, -1}))
}
