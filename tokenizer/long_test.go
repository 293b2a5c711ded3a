package tokenizer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// randomModel has merges of a few letters in random order, which overlap in every way.
func randomModel(t *rapid.T) *bpe {
	f := modelFile{Vocab: map[string]uint32{}}
	tokens := []string{}
	add := func(s string) {
		if _, ok := f.Vocab[s]; !ok {
			f.Vocab[s] = uint32(len(f.Vocab))
			tokens = append(tokens, s)
		}
	}
	for _, s := range []string{"a", "b", "c", "é"}[:rapid.IntRange(1, 4).Draw(t, "letters")] {
		add(s)
	}
	if rapid.Bool().Draw(t, "unknown") {
		f.Unknown, f.FuseUnknown = new(string), new(bool)
		*f.Unknown, *f.FuseUnknown = "?", rapid.Bool().Draw(t, "fused")
		f.Vocab["?"] = uint32(len(f.Vocab))
	}
	for range rapid.IntRange(0, 20).Draw(t, "merges") {
		a, b := rapid.SampledFrom(tokens).Draw(t, "a"), rapid.SampledFrom(tokens).Draw(t, "b")
		add(a + b)
		f.Merges = append(f.Merges, mergeFile{a: a, b: b, joined: true})
	}
	m, err := f.build(new(Tokenizer))
	require.NoError(t, err)
	return m
}

// windowed: merging in windows of any size gives what merging the whole word gives.
func windowed(t *rapid.T) {
	m := randomModel(t)
	part := rapid.StringMatching(`(a|b|c|é|x|ab|aab|bca){1,9}`)
	word := strings.Repeat(part.Draw(t, "unit"), rapid.IntRange(0, 12).Draw(t, "times")) + strings.Join(rapid.SliceOfN(part, 0, 12).Draw(t, "parts"), "")
	want := m.mergePlainly(word)
	for _, window := range []int{1, 2, 5, 8, 16, 50} {
		var got []int32
		err := m.windows(word, window, func(ids []int32) error {
			got = append(got, ids...)
			return nil
		})
		if err == errFar && window < 16 {
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, got, "%q in windows of %d", word, window)
	}
}

func TestWindows(t *testing.T) { rapid.Check(t, windowed) }

func FuzzWindows(f *testing.F) { f.Fuzz(rapid.MakeFuzz(windowed)) }

// TestWindowsError: an error ends the windows.
func TestWindowsError(t *testing.T) {
	m := mergeModel()
	times := 0
	err := m.windows(strings.Repeat("ab", 1000), 16, func([]int32) error {
		times++
		return fmt.Errorf("enough")
	})
	require.ErrorContains(t, err, "enough")
	require.Equal(t, 1, times)
}
