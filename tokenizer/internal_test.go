package tokenizer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestRepair has the examples of The Unicode Standard, section 3.9, and others.
func TestRepair(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"aé€😀":                                 "aé€😀",
		"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41": "????????A",
		"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41": "????????A",
		"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42": "?????A??B",
		"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41": "????A",
		"\uFFFD\xE2\x82":                       "??",
	} {
		require.Equal(t, strings.ReplaceAll(want, "?", "\uFFFD"), repair(in), "%q", in)
	}
	for in, want := range map[string]int{"": 0, "a": 0, "é": 0, "\xC3": 1, "a\xE2\x82": 2, "\xF0\x9F\x98": 3, "\xE0\x80": 0, "\x80": 0, "\xF5": 0, "\xED\xA0": 0} {
		require.Equal(t, want, unfinished([]byte(in)), "%q", in)
	}
}

func TestByteLevelSpelling(t *testing.T) {
	all := make([]byte, 256)
	for b := range all {
		all[b] = byte(b)
	}
	spelled := spell(string(all))
	require.Equal(t, all, unspell(nil, spelled))
	require.Equal(t, "ĠĊ", spell(" \n"))
	require.Equal(t, "x a中", string(unspell([]byte("x "), "a中"))) // a token with a character that is no byte's
}

// mergePlainly is the definition of byte pair encoding, in quadratic time.
func (m *bpe) mergePlainly(word string) []int32 {
	var s scratch
	if (&characters{bpe: m, word: word}).add(&s, math.MaxInt) != nil {
		return nil
	}
	var ids []int32
	for _, x := range s.symbols {
		ids = append(ids, x.id)
	}
	for {
		best, at := merged{rank: 1 << 31}, -1
		for i := range len(ids) - 1 {
			if to, ok := m.merges[pairKey(ids[i], ids[i+1])]; ok && to.rank < best.rank {
				best, at = to, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = best.id
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// merges: the queue, the parts of long words and the cache give what the definition gives.
func merges(t *rapid.T) {
	m := mergeModel()
	unit := rapid.SampledFrom([]string{"a", "b", "c", "ab", "abc", "aab", "▁", "▁▁", "▁a", "é", "x"})
	word := strings.Join(rapid.SliceOfN(unit, 1, 80).Draw(t, "word"), "")
	want := m.mergePlainly(word)
	for range 2 { // the second time from the cache
		got, err := m.encode(nil, piece{text: word})
		require.NoError(t, err)
		require.Equal(t, want, got, word)
	}
}

// mergeModel has merges of letters that overlap, with and without unknown characters.
func mergeModel() *bpe {
	f := modelFile{Vocab: map[string]uint32{}, Unknown: new(string)}
	*f.Unknown = "?"
	for i, token := range strings.Fields("? a b c ▁ ab bc abc aa aab ▁a ▁ab ▁▁ ca cab") {
		f.Vocab[token] = uint32(i)
	}
	for _, pair := range []string{"b c", "a b", "ab c", "a bc", "a a", "aa b", "▁ a", "▁ ab", "▁ ▁", "c a", "ca b"} {
		a, b, _ := strings.Cut(pair, " ")
		f.Merges = append(f.Merges, mergeFile{a: a, b: b, joined: true})
	}
	m, err := f.build(new(Tokenizer))
	if err != nil {
		panic(err)
	}
	return m
}

//check:in race
func TestMerges(t *testing.T) { rapid.Check(t, merges) }

//check:in race
func FuzzMerges(f *testing.F) { f.Fuzz(rapid.MakeFuzz(merges)) }

// TestLongWords: a word of a million characters that no border cuts takes no quadratic time.
func TestLongWords(t *testing.T) {
	m := mergeModel()
	for _, unit := range []string{"a", "ab", "abc", "▁", "é"} {
		ids, err := m.encode(nil, piece{text: strings.Repeat(unit, 300_000)})
		require.NoError(t, err)
		require.NotEmpty(t, ids)
	}
}

// TestCachedAllocations: a text of words that the cache has allocates no memory by words.
//
//check:in race
func TestCachedAllocations(t *testing.T) {
	m := mergeModel()
	dst := make([]int32, 0, 64)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		var err error
		if dst, err = m.encode(dst[:0], piece{text: "▁abcaab"}); err != nil {
			panic(err)
		}
	}))
}
