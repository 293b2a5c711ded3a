package tokenizer

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
)

// published are the tokenizers of testdata, and parted those with single parts and strange settings.
var published, parted []*Tokenizer

func init() {
	unpacked := func(path string) io.Reader {
		f, err := os.Open(path)
		if err != nil {
			panic(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			panic(err)
		}
		return z
	}
	for _, name := range []string{"llama2", "llama3", "gemma", "qwen"} {
		text, err := io.ReadAll(unpacked("testdata/" + name + "/tokenizer.json.gz"))
		if err != nil {
			panic(err)
		}
		t, err := Parse(text)
		if err != nil {
			panic(err)
		}
		published = append(published, t)
	}
	lines := bufio.NewScanner(unpacked("testdata/parts.jsonl.gz"))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row [4]json.RawMessage
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			panic(err)
		}
		t, err := &Tokenizer{model: published[0].model, texts: published[0].texts, known: published[0].known}, error(nil)
		switch string(row[0]) {
		case `"pre_tokenizer"`:
			t.split, err = readPreTokenizer(row[1], 0)
		case `"normalizer"`:
			t.normalizer, err = readNormalizer(row[1], 0)
		case `"tokenizer"`:
			t, err = Parse(row[1])
		default:
			continue
		}
		if err != nil {
			panic(err)
		}
		parted = append(parted, t)
	}
}

// prose draws texts with the places that tokenizers find difficult.
var prose = rapid.Custom(func(t *rapid.T) string {
	part := rapid.OneOf(
		rapid.StringMatching(`[a-c ]{1,20}`), rapid.StringMatching(`[A-Za-z0-9]{1,9}`), rapid.StringMatching(`[ \n\t\r]{1,4}`),
		rapid.StringMatching(`(e\x{301}|각|ᄒ|ᅡ|ᆫ|Σ|σ|中|文|字|１|́|ß|İ){1,9}`), rapid.StringMatching(`[.,;:!?'"(){}<>|_/\\▁Ġ-]{1,5}`),
		rapid.SampledFrom([]string{"<s>", "</s>", "<|im_end|>", "<think>", "\xff", "\xe2\x82", "😀", "\u2028", "<0x0A>", "I'll", "'S", "  ", "\n\n", "<unk>", "[X]", "AB"}),
		rapid.SampledFrom([]string{"the", "of", "and", "in", "hello", "world"}),
	)
	return strings.Join(rapid.SliceOfN(part, rapid.SampledFrom([]int{0, 20, 40}).Draw(t, "least"), 60).Draw(t, "text"), rapid.SampledFrom([]string{"", "", " ", "\n"}).Draw(t, "between"))
})

// inParts encodes a text that comes in parts, in small windows, and says how often the text was cut.
func (t *Tokenizer) inParts(text string, o EncodeOptions, window, ahead, part int) (ids []int32, cuts int, err error) {
	e, err := t.Encoder(o, 1<<20, func(some []int32) error {
		ids = append(ids, some...)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	e.window, e.ahead = window, ahead
	for len(text) > 0 {
		n := min(part, len(text))
		before := len(e.buf)
		if _, err := e.Write([]byte(text[:n])); err != nil {
			return nil, 0, err
		}
		if len(e.buf) < before+n {
			cuts++
		}
		text = text[n:]
	}
	return ids, cuts, e.Close()
}

// encodedInParts: an Encoder returns what Encode returns, for every tokenizer, window and way to divide the text.
func encodedInParts(t *rapid.T, all []*Tokenizer) int {
	k := rapid.IntRange(0, len(all)-1).Draw(t, "tokenizer")
	text := prose.Draw(t, "text")
	o := EncodeOptions{NoSpecial: rapid.Bool().Draw(t, "no special"), PlainSpecial: rapid.Bool().Draw(t, "plain")}
	window, ahead, part := rapid.IntRange(4, 80).Draw(t, "window"), rapid.IntRange(0, 40).Draw(t, "ahead"), rapid.IntRange(1, 50).Draw(t, "part")
	want, err := all[k].Encode(text, o)
	got, cuts, errParts := all[k].inParts(text, o, window, ahead, part)
	if err != nil {
		require.Error(t, errParts)
		return 0
	}
	require.NoError(t, errParts)
	require.Equal(t, append([]int32{}, want...), append([]int32{}, got...), "tokenizer %d, %q", k, text)
	return cuts
}

func TestEncoder(t *testing.T) {
	for _, all := range [][]*Tokenizer{published, parted} {
		cuts, draws := 0, 0
		for range 10 {
			rapid.Check(t, func(t *rapid.T) { cuts, draws = cuts+encodedInParts(t, all), draws+1 })
		}
		require.Greater(t, cuts, draws/2) // the property says nothing about texts that are never cut
	}
}

func FuzzEncoder(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { encodedInParts(t, append(published, parted...)) }))
}

// TestEncoderWords: words are cut as in the whole text also where the model would hide a difference.
func TestEncoderWords(t *testing.T) {
	blind := *published[0].model.(*bpe)
	blind.joins = nil // no cuts within words
	words := func(tok *Tokenizer, parts ...string) (list []string) {
		for i, part := range parts {
			require.NoError(t, tok.each(walk{text: part, inner: i > 0}, func(id int32, _ Span) { list = append(list, fmt.Sprint(id)) }, func(p piece) error {
				list = append(list, p.text)
				return nil
			}))
		}
		return list
	}
	cuts, draws := 0, 0
	property := func(t *rapid.T) {
		draws++
		all := append(published, parted...)
		k := rapid.IntRange(0, len(all)-1).Draw(t, "tokenizer")
		tok := *all[k]
		tok.model = &blind
		text := strings.ToValidUTF8(prose.Draw(t, "text"), "?")
		known := runeStart(text, rapid.IntRange(0, len(text)).Draw(t, "known"))
		for _, suits := range []func(before, after rune) bool{spaced, joined} {
			for at := lastPlace(text[:known], suits); at > 0; at = lastPlace(text[:at], suits) {
				if tok.cuts(text[:known], at, false, false) {
					cuts++
					require.Equal(t, words(&tok, text), words(&tok, text[:at], text[at:]), "tokenizer %d, %q at %d of %d", k, text, at, known)
				}
			}
		}
	}
	for range 10 { // also with few draws for each, some have cuts
		rapid.Check(t, property)
	}
	require.Greater(t, cuts, draws/20)
}

// TestPrefix: the ids of a prefix are the first ids of the text, and its length is about what is asked for.
func TestPrefix(t *testing.T) {
	text := strings.Repeat("the quick brown fox, 12 jumps.\n\nHe said: “no” ", 1000)
	for k, tok := range published {
		want, err := tok.Encode(text, EncodeOptions{})
		require.NoError(t, err)
		for _, n := range []int{1000, 5000, 30_000, len(text), 2 * len(text)} {
			part := tok.Prefix(text, n, EncodeOptions{})
			if n < 40_000 {
				require.Greater(t, len(part), n/3, k)
				require.LessOrEqual(t, len(part), n, k)
			} else {
				require.Equal(t, text, part)
			}
			got, err := tok.Encode(part, EncodeOptions{})
			require.NoError(t, err)
			require.Equal(t, want[:len(got)], got)
		}
	}
	word := strings.Repeat("é", 10_000)
	require.Equal(t, word, published[1].Prefix(word, 100, EncodeOptions{}))
	require.Equal(t, "\xff"+word, published[1].Prefix("\xff"+word, 100, EncodeOptions{}))
	require.Equal(t, word, (*Tokenizer)(nil).Prefix(word, 100, EncodeOptions{}))
}

// TestEncoderBounds: long texts of words are cut, and what cannot be cut is an error beyond the limit.
func TestEncoderBounds(t *testing.T) {
	for k, tok := range published {
		text := strings.Repeat("the quick brown fox, 12 jumps.\n\nHe said: “no” ", 1<<14)
		want, err := tok.Encode(text, EncodeOptions{})
		require.NoError(t, err)
		var got []int32
		most := 0
		e, err := tok.Encoder(EncodeOptions{}, 0, func(ids []int32) error {
			got = append(got, ids...)
			return nil
		})
		require.NoError(t, err)
		for part := range 64 {
			_, err = e.Write([]byte(text[part*len(text)/64 : (part+1)*len(text)/64]))
			require.NoError(t, err, k)
			most = max(most, cap(e.buf))
		}
		require.NoError(t, e.Close())
		require.Equal(t, want, got, k)
		require.LessOrEqual(t, most, 4*encoderWindow)
		_, err = e.Write([]byte("x"))
		require.ErrorIs(t, err, snug.ErrConfig)

		// A word of 300 kB: held as a whole, or refused.
		word := strings.Repeat("é", 150_000)
		want, err = tok.Encode(word, EncodeOptions{})
		require.NoError(t, err)
		got, _, err = tok.inParts(word, EncodeOptions{}, encoderWindow, encoderAhead, 1000)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	e, err := published[1].Encoder(EncodeOptions{}, 100_000, func([]int32) error { return nil })
	require.NoError(t, err)
	_, err = e.Write([]byte(strings.Repeat("é", 150_000)))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "write spaces or line breaks into long words")
	_, err = published[0].Encoder(EncodeOptions{Truncate: true}, 0, func([]int32) error { return nil })
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = new(Tokenizer).Encoder(EncodeOptions{}, 0, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	few := published[1].Limit(10)
	e, err = few.Encoder(EncodeOptions{NoSpecial: true}, 0, func([]int32) error { return nil })
	require.NoError(t, err)
	_, err = e.Write([]byte("word"))
	require.NoError(t, err)
	require.ErrorContains(t, e.Close(), "the model's embedding has 10 rows")
	e, err = published[0].Encoder(EncodeOptions{NoSpecial: true}, 0, func([]int32) error { return io.ErrShortWrite })
	require.NoError(t, err)
	_, err = e.Write([]byte("word"))
	require.NoError(t, err)
	require.ErrorIs(t, e.Close(), io.ErrShortWrite)
}
