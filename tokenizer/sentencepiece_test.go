package tokenizer_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// The kinds of SentencePiece's pieces, and its models.
const (
	normal   = 1
	unknown  = 2
	control  = 3
	user     = 4
	unigrams = 1
	pairs    = 2
)

// testPiece is a piece of a tokenizer.model.
type testPiece struct {
	text  string
	score float32
	kind  uint64
}

// sentencePiece writes a tokenizer.model whose first pieces are <unk>, <s> and </s>. It adds no space in front where dummy is false.
func sentencePiece(model uint64, dummy bool, pieces ...testPiece) string {
	number := func(field, value uint64) []byte {
		return binary.AppendUvarint(binary.AppendUvarint(nil, field<<3), value)
	}
	bytes := func(field uint64, data []byte) []byte {
		return append(binary.AppendUvarint(binary.AppendUvarint(nil, field<<3|2), uint64(len(data))), data...)
	}
	var file []byte
	for _, p := range append([]testPiece{{"<unk>", 0, unknown}, {"<s>", 0, control}, {"</s>", 0, control}}, pieces...) {
		score := binary.LittleEndian.AppendUint32(binary.AppendUvarint(nil, 2<<3|5), math.Float32bits(p.score))
		file = append(file, bytes(1, append(append(bytes(1, []byte(p.text)), score...), number(3, p.kind)...))...)
	}
	file = append(file, bytes(2, number(3, model))...)
	prefix := uint64(0)
	if dummy {
		prefix = 1
	}
	return string(append(file, bytes(3, append(number(3, prefix), number(4, 0)...))...))
}

func encoded(t *testing.T, tok *tokenizer.Tokenizer, text string, o tokenizer.EncodeOptions) []int32 {
	ids, err := tok.Encode(text, o)
	require.NoError(t, err)
	return append([]int32{}, ids...)
}

// TestSpecialPieces: a piece that its author has defined is special where tokenizer_config.json says so, and then no text of a user's.
func TestSpecialPieces(t *testing.T) {
	model := sentencePiece(pairs, false, testPiece{"<end>", 0, user}, testPiece{"\n", 0, user}, testPiece{"a", -1, normal})
	for _, c := range []struct {
		name, config string
		special      bool
	}{
		{"no configuration", `{}`, false},
		{"a token that is not special", `{"added_tokens_decoder": {"3": {"content": "<end>", "special": false}}}`, false},
		{"a special token", `{"added_tokens_decoder": {"3": {"content": "<end>", "special": true}}}`, true},
		{"a token in the list of more", `{"additional_special_tokens": ["<end>"]}`, true},
		{"a token with a name", `{"eos_token": "<end>"}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := tokenizer.Open(folder(t, map[string]any{"tokenizer.model": model, "tokenizer_config.json": c.config}))
			require.NoError(t, err)
			ids := encoded(t, tok, "a<end>\na", tokenizer.EncodeOptions{})
			require.Equal(t, []int32{5, 3, 4, 5}, ids)
			require.Equal(t, c.special, tok.Special(3))
			require.False(t, tok.Special(4))
			skipped, plain := "a<end>\na", []int32{5, 3, 4, 5}
			if c.special {
				skipped, plain = "a\na", []int32{5, 0, 4, 5}
			}
			require.Equal(t, skipped, tok.Decode(ids, tokenizer.DecodeOptions{SkipSpecial: true}))
			require.Equal(t, plain, encoded(t, tok, "a<end>\na", tokenizer.EncodeOptions{PlainSpecial: true}))
		})
	}
}

// TestSentencePieceDefaults: BOS, EOS and the space behind a special token are those of transformers 5.24 for the class.
func TestSentencePieceDefaults(t *testing.T) {
	model := sentencePiece(pairs, true, testPiece{"\u2581", -1, normal}, testPiece{"a", -2, normal}, testPiece{"\u2581a", -3, normal})
	for _, c := range []struct {
		name, config string
		want         []int32
	}{
		{"no configuration", ``, []int32{5, 2, 5}},
		{"no class", `{}`, []int32{5, 2, 5}},
		{"LlamaTokenizer", `{"tokenizer_class": "LlamaTokenizer"}`, []int32{5, 2, 4}},
		{"LlamaTokenizer without EOS", `{"tokenizer_class": "LlamaTokenizer", "add_eos_token": false}`, []int32{5, 2, 4}},
		{"LlamaTokenizer with BOS", `{"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true, "legacy": true}`, []int32{1, 5, 2, 5}},
		{"CodeLlamaTokenizer", `{"tokenizer_class": "CodeLlamaTokenizer", "add_eos_token": false}`, []int32{1, 5, 2, 4}},
		{"CodeLlamaTokenizer without BOS", `{"tokenizer_class": "CodeLlamaTokenizer", "add_bos_token": false, "add_eos_token": true}`, []int32{5, 2, 4, 2}},
		{"not legacy", `{"legacy": false}`, []int32{5, 2, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]any{"tokenizer.model": model}
			if c.config != "" {
				files["tokenizer_config.json"] = c.config
			}
			tok, err := tokenizer.Open(folder(t, files))
			require.NoError(t, err)
			require.Equal(t, c.want, encoded(t, tok, "a</s>a", tokenizer.EncodeOptions{}))
		})
	}
}

// TestUserPieceScore: a piece of n bytes that its author has defined has 0.1n - 0.1 whatever the others have, as measured with
// sentencepiece 0.2.3: "1" and "ab" have 0.1 + top, and "1a" and "b" have score + top.
func TestUserPieceScore(t *testing.T) {
	for _, c := range []struct {
		name       string
		top, score float32
		want       []int32
	}{
		{"above", 0.05, 0.11, []int32{6, 4}}, {"below", 0.05, 0.09, []int32{5, 7}},
		{"another piece with more", -1, 0.11, []int32{6, 4}}, {"another piece with more, below", -1, 0.09, []int32{5, 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := tokenizer.Open(folder(t, map[string]any{"tokenizer.model": sentencePiece(unigrams, false, testPiece{"a", c.top, normal}, testPiece{"b", c.top, normal},
				testPiece{"1", c.top, normal}, testPiece{"1a", c.score, normal}, testPiece{"ab", 0, user}, testPiece{"q", 3, normal})}))
			require.NoError(t, err)
			require.Equal(t, c.want, encoded(t, tok, "1ab", tokenizer.EncodeOptions{}))
		})
	}
}

// TestRenamedPieces: names of pieces change all at once.
func TestRenamedPieces(t *testing.T) {
	model := sentencePiece(pairs, false, testPiece{"a", -1, normal}, testPiece{"X", -1, normal}, testPiece{"Y", -1, normal})
	for range 20 { // the order of maps
		tok, err := tokenizer.Open(folder(t, map[string]any{"tokenizer.model": model,
			"tokenizer_config.json": `{"added_tokens_decoder": {"4": {"content": "Y", "special": true}, "5": {"content": "Z", "special": true}}}`}))
		require.NoError(t, err)
		require.Equal(t, []int32{4, 5}, encoded(t, tok, "YZ", tokenizer.EncodeOptions{}))
	}
	_, err := tokenizer.Open(folder(t, map[string]any{"tokenizer.model": model, "tokenizer_config.json": `{"added_tokens_decoder": {"3abc": {"content": "Y"}}}`}))
	require.ErrorContains(t, err, `added_tokens_decoder has the id "3abc"`)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.Equal(t, 1, strings.Count(err.Error(), "tokenizer: "))
}

// TestManyLongPieces: the pieces of a file have a limit in all.
func TestManyLongPieces(t *testing.T) {
	var pieces []testPiece
	for i := range 16<<20/500 + 1 {
		pieces = append(pieces, testPiece{fmt.Sprintf("%0500d", i), -1, normal})
	}
	_, err := tokenizer.Open(folder(t, map[string]any{"tokenizer.model": sentencePiece(pairs, true, pieces...)}))
	require.ErrorContains(t, err, "pieces of more than 16777216 bytes in all")
	require.ErrorIs(t, err, snug.ErrConfig)
}
