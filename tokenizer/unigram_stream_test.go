package tokenizer_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// TestUnigramStream: an Encoder with the least limit gives the ids of a long text's Unigram where words can be cut.
func TestUnigramStream(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < 300<<10 {
		for range 1 + r.IntN(9) {
			b.WriteString([]string{"a", "b", "c", "d", "é"}[r.IntN(5)])
		}
		b.WriteString([]string{" ", " ", "  ", "\n", ". ", "a</s>", "</s> "}[r.IntN(7-2*min(1, b.Len()/(100<<10)))]) // sums round in the last 200 KiB
	}
	text := b.String()
	pieces := []testPiece{{"▁", -2.1, normal}, {"▁a", -3.37, normal}, {".", -5.3, normal}}
	vocab := `["<s>",0],["</s>",0],["<unk>",0],["▁",-2.1],["▁a",-3.37],[".",-5.3]`
	for i, token := range []string{"a", "b", "c", "d", "ab", "ba", "abc", "cd", "dc", "bb", "ca", "aa", "bcd"} {
		pieces = append(pieces, testPiece{token, -2.7*float32(len(token)) + float32(i)*0.001, normal})
		vocab += `,["` + token + `",` + []string{"-2.7", "-3.9", "-4.4"}[i%3] + `]`
	}
	xlmr := `{"added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
		"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}]},
		"model": {"type": "Unigram", "unk_id": 2, "vocab": [` + vocab + `]}}`
	whitespace := strings.Replace(xlmr, "WhitespaceSplit", "Whitespace", 1)
	for _, c := range []struct {
		name  string
		files map[string]any
		err   string
	}{
		{"tokenizer.model", map[string]any{"tokenizer.model": sentencePiece(unigrams, true, pieces...)}, ""},
		{"tokenizer.model with pieces of two words", map[string]any{"tokenizer.model": sentencePiece(unigrams, true, append(pieces, testPiece{"a▁b", -4, normal})...)}, "no place at which this tokenizer cuts them"},
		{"WhitespaceSplit and Metaspace", map[string]any{"tokenizer.json": xlmr}, ""},
		{"Whitespace and Metaspace", map[string]any{"tokenizer.json": whitespace}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := tokenizer.Open(folder(t, c.files))
			require.NoError(t, err)
			var ids []int32
			e, err := tok.Encoder(tokenizer.EncodeOptions{}, 0, func(some []int32) error {
				ids = append(ids, some...)
				return nil
			})
			require.NoError(t, err)
			given := text
			if c.err != "" {
				given = strings.ReplaceAll(text, "</s>", "")
			}
			_, err = e.Write([]byte(given))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.ErrorIs(t, err, snug.ErrConfig)
				return
			}
			require.NoError(t, err)
			require.NoError(t, e.Close())
			require.Equal(t, encoded(t, tok, given, tokenizer.EncodeOptions{}), ids)
			given = strings.ReplaceAll(text, "</s>", "")
			part := tok.Prefix(given, 1000, tokenizer.EncodeOptions{})
			require.Less(t, len(part), 8000)
			begin := encoded(t, tok, part, tokenizer.EncodeOptions{})
			require.Equal(t, encoded(t, tok, given, tokenizer.EncodeOptions{})[:len(begin)], begin)
		})
	}
}
