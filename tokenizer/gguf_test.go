package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
)

// ggufFile is a tokenizer.json to change.
type ggufFile map[string]any

func (f ggufFile) open(t testing.TB, config string) *Tokenizer {
	dir := t.TempDir()
	text, err := json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o666))
	tok, err := Open(dir)
	require.NoError(t, err)
	return tok
}

func token(id int, content string, special bool) ggufFile {
	return ggufFile{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special}
}

// pieceFile has all ways to make ▁ab and abc, and tokens of bytes.
func pieceFile() ggufFile {
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = 3 + b
	}
	for i, piece := range []string{"ab", "▁ab", "▁a", "abc", "▁", "a", "b", "c"} {
		vocab[piece] = 259 + i
	}
	return ggufFile{
		"version": "1.0", "added_tokens": []ggufFile{token(0, "<unk>", true), token(1, "<s>", true), token(2, "</s>", true), token(267, "▁▁", false)},
		"normalizer": ggufFile{"type": "Sequence", "normalizers": []ggufFile{{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": ggufFile{"String": " "}, "content": "▁"}}},
		"post_processor": ggufFile{"type": "TemplateProcessing", "single": []ggufFile{{"SpecialToken": ggufFile{"id": "<s>", "type_id": 0}}, {"Sequence": ggufFile{"id": "A", "type_id": 0}}},
			"pair":           []ggufFile{{"Sequence": ggufFile{"id": "A", "type_id": 0}}, {"Sequence": ggufFile{"id": "B", "type_id": 1}}},
			"special_tokens": ggufFile{"<s>": ggufFile{"id": "<s>", "ids": []int{1}, "tokens": []string{"<s>"}}}},
		"model": ggufFile{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
			"merges": [][2]string{{"a", "b"}, {"▁", "ab"}, {"▁a", "b"}, {"▁", "a"}, {"ab", "c"}}},
	}
}

const pieceConfig = `{"bos_token":"<s>","eos_token":"</s>","unk_token":"<unk>","chat_template":[{"name":"default","template":"x"},{"name":"tool_use","template":"y"}]}`

func byteFile(pre ...ggufFile) ggufFile {
	vocab := map[string]int{}
	for i, piece := range []string{"a", "b", "Ġ", "ab", "Ġab"} {
		vocab[piece] = i
	}
	return ggufFile{
		"version": "1.0", "added_tokens": []ggufFile{token(5, "<|end|>", false), token(6, "<tool>", false)},
		"pre_tokenizer": ggufFile{"type": "Sequence", "pretokenizers": pre},
		"model":         ggufFile{"type": "BPE", "vocab": vocab, "merges": []string{"a b", "Ġ ab"}},
	}
}

func splitAt(pattern string) ggufFile {
	return ggufFile{"type": "Split", "pattern": ggufFile{"Regex": pattern}, "behavior": "Isolated", "invert": false}
}

func byteLevelPart(pattern bool) ggufFile {
	return ggufFile{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": pattern}
}

func valuesOf(pairs []gguf.Pair) map[string]any {
	values := map[string]any{}
	for _, p := range pairs {
		values[p.Key] = p.Value
	}
	return values
}

func TestGGUFOfPieces(t *testing.T) {
	pairs, notes, err := pieceFile().open(t, pieceConfig).GGUF(GGUFOptions{Rows: 270, BOS: 7, EOS: 7, Pad: -1, Ends: []int32{2, 5}})
	require.NoError(t, err)
	require.Empty(t, notes)
	v := valuesOf(pairs)
	require.Equal(t, "llama", v["tokenizer.ggml.model"])
	require.Equal(t, "default", v["tokenizer.ggml.pre"])
	tokens, kinds, scores := v["tokenizer.ggml.tokens"].([]string), v["tokenizer.ggml.token_type"].([]int32), v["tokenizer.ggml.scores"].([]float32)
	require.Equal(t, []string{"<unk>", "<s>", "</s>", "<0x00>"}, tokens[:4])
	require.Equal(t, []string{"ab", "▁ab", "▁a", "abc", "▁", "a", "b", "c", "  ", "[PAD268]", "[PAD269]"}, tokens[259:])
	require.Equal(t, []int32{3, 3, 3, 6}, kinds[:4])
	require.Equal(t, []int32{1, 1, 1, 1, 1, 1, 1, 1, 4, 5, 5}, kinds[259:])
	require.Equal(t, []float32{-1000, -1000, -1000, 0}, scores[:4])
	require.Equal(t, []float32{0, -1, -2, -3, -4, -5, -6, -7, -1000, -10000, -10000}, scores[259:], "places among the merges, then characters")
	for key, want := range map[string]any{
		"bos_token_id": uint32(1), "eos_token_id": uint32(2), "unknown_token_id": uint32(0), "eot_token_id": uint32(5), "add_bos_token": true, "add_eos_token": false,
		"add_space_prefix": true, "padding_token_id": nil, "merges": nil,
	} {
		require.Equal(t, want, v["tokenizer.ggml."+key], key)
	}
	require.Equal(t, "x", v["tokenizer.chat_template"])
	require.Equal(t, "y", v["tokenizer.chat_template.tool_use"])
	require.Equal(t, []string{"tool_use"}, v["tokenizer.chat_templates"])
}

func TestGGUFOfBytes(t *testing.T) {
	f := byteFile(splitAt(qwen2Words), byteLevelPart(false))
	pairs, notes, err := f.open(t, `{"eos_token":"<|end|>"}`).GGUF(GGUFOptions{Rows: 6, BOS: 3, EOS: -1, Pad: 4})
	require.NoError(t, err)
	require.Equal(t, []string{"1 tokens have no row in the model, and are left out"}, notes)
	require.Equal(t, []gguf.Pair{
		{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: "qwen2"},
		{Key: "tokenizer.ggml.tokens", Value: []string{"a", "b", "Ġ", "ab", "Ġab", "<|end|>"}},
		{Key: "tokenizer.ggml.token_type", Value: []int32{1, 1, 1, 1, 1, 3}},
		{Key: "tokenizer.ggml.merges", Value: []string{"a b", "Ġ ab"}},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(3)}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(5)}, {Key: "tokenizer.ggml.padding_token_id", Value: uint32(4)},
		{Key: "tokenizer.ggml.add_bos_token", Value: false}, {Key: "tokenizer.ggml.add_eos_token", Value: false},
	}, pairs)
}

// TestGGUFFewRows: tokens without a row are in no merge.
func TestGGUFFewRows(t *testing.T) {
	pairs, _, err := byteFile(byteLevelPart(true)).open(t, `{}`).GGUF(GGUFOptions{Rows: 4, BOS: -1, EOS: -1, Pad: -1})
	require.NoError(t, err)
	require.Equal(t, []string{"a b"}, valuesOf(pairs)["tokenizer.ggml.merges"])
	require.Equal(t, []int32{3, 2, 3}, encode(t, metadata(pairs).open(t), "ab ab"))
}

// TestGGUFNotes: what llama.cpp does not do is said.
func TestGGUFNotes(t *testing.T) {
	f := byteFile(splitAt(qwen2Words), byteLevelPart(false))
	f["normalizer"] = ggufFile{"type": "NFC"}
	token := f["added_tokens"].([]ggufFile)[0]
	token["lstrip"] = true
	_, notes, err := f.open(t, `{}`).GGUF(GGUFOptions{BOS: -1, EOS: -1, Pad: -1})
	require.NoError(t, err)
	require.Len(t, notes, 2)
	require.Contains(t, notes[0], "NFC")
	require.Contains(t, notes[1], "1 added tokens take the blanks beside them")
}

// TestGGUFPreTokenizers has the sections of published tokenizers.
func TestGGUFPreTokenizers(t *testing.T) {
	digits := ggufFile{"type": "Digits", "individual_digits": true}
	for name, test := range map[string]struct {
		pre   []ggufFile
		whole bool
		note  bool
	}{
		"gpt-2":      {pre: []ggufFile{byteLevelPart(true)}},
		"llama-bpe":  {pre: []ggufFile{splitAt(llama3Words), byteLevelPart(false)}, whole: true},
		"smaug-bpe":  {pre: []ggufFile{splitAt(strings.ReplaceAll(llama3Words, contractions, spelledOut)), byteLevelPart(false)}},
		"qwen2":      {pre: []ggufFile{splitAt(qwen2Words), byteLevelPart(false)}, whole: true, note: true},
		"qwen35":     {pre: []ggufFile{splitAt(qwen35Words), byteLevelPart(false)}},
		"smollm":     {pre: []ggufFile{digits, byteLevelPart(true)}},
		"tekken":     {pre: []ggufFile{splitAt(tekkenWords), byteLevelPart(false)}, whole: true},
		"gpt-4o":     {pre: []ggufFile{splitAt(gpt4oWords), byteLevelPart(false)}},
		"seed-coder": {pre: []ggufFile{splitAt(seedWords), byteLevelPart(false)}},
	} {
		t.Run(name, func(t *testing.T) {
			f := byteFile(test.pre...)
			f["model"].(ggufFile)["ignore_merges"] = test.whole
			pairs, notes, err := f.open(t, `{}`).GGUF(GGUFOptions{})
			require.NoError(t, err)
			require.Equal(t, name, valuesOf(pairs)["tokenizer.ggml.pre"])
			require.Equal(t, test.note, len(notes) == 1, notes)
		})
	}
}

func TestGGUFRefusesTokenizersThatLlamaCppLacks(t *testing.T) {
	piece := func(change func(f, model ggufFile)) *Tokenizer {
		f := pieceFile()
		change(f, f["model"].(ggufFile))
		return f.open(t, pieceConfig)
	}
	bytes := func(change func(f, model ggufFile)) *Tokenizer {
		f := byteFile(byteLevelPart(true))
		change(f, f["model"].(ggufFile))
		return f.open(t, `{}`)
	}
	for name, test := range map[string]struct {
		tok  *Tokenizer
		text string
	}{
		"a pair without a merge": {piece(func(_, m ggufFile) { m["merges"] = m["merges"].([][2]string)[:4] }), "would join"},
		"merges apart": {piece(func(_, m ggufFile) {
			merges := slices.Clone(m["merges"].([][2]string))
			merges[2], merges[3] = merges[3], merges[2]
			m["merges"] = merges
		}), "several places"},
		"no normalizer":      {piece(func(f, _ ggufFile) { delete(f, "normalizer") }), "▁ of each space"},
		"another normalizer": {piece(func(f, _ ggufFile) { f["normalizer"] = ggufFile{"type": "NFKC"} }), "normalizer"},
		"a pre-tokenizer":    {piece(func(f, _ ggufFile) { f["pre_tokenizer"] = ggufFile{"type": "WhitespaceSplit"} }), "pre_tokenizer"},
		"no tokens of bytes": {piece(func(_, m ggufFile) { m["byte_fallback"] = false }), "byte_fallback"},
		"whole words":        {piece(func(_, m ggufFile) { m["ignore_merges"] = true }), "ignore_merges"},
		"unknown words": {bytes(func(f, _ ggufFile) {
			f["pre_tokenizer"] = ggufFile{"type": "Sequence", "pretokenizers": []ggufFile{splitAt(`\w+`), byteLevelPart(false)}}
		}), `\\w+`},
		"a space in front": {bytes(func(f, _ ggufFile) {
			f["pre_tokenizer"].(ggufFile)["pretokenizers"].([]ggufFile)[0]["add_prefix_space"] = true
		}), "add_prefix_space"},
		"lower case":        {bytes(func(f, _ ggufFile) { f["normalizer"] = ggufFile{"type": "Lowercase"} }), "normalizer"},
		"prefixes of words": {bytes(func(_, m ggufFile) { m["end_of_word_suffix"] = "a" }), "end_of_word_suffix"},
		"other tokens around": {piece(func(f, _ ggufFile) {
			f["post_processor"].(ggufFile)["special_tokens"].(ggufFile)["<s>"].(ggufFile)["ids"] = []int{2}
		}), "post_processor"},
		"none": {nil, "Open or Parse"},
	} {
		t.Run(name, func(t *testing.T) {
			pairs, _, err := test.tok.GGUF(GGUFOptions{EOS: -1, BOS: -1, Pad: -1})
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, test.text)
			require.Nil(t, pairs)
		})
	}
	_, _, err := pieceFile().open(t, `{}`).GGUF(GGUFOptions{Rows: math.MaxInt})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestGGUFMetaspace has the forms of tokenizers that put spaces into the pre-tokenizer.
func TestGGUFMetaspace(t *testing.T) {
	for name, test := range map[string]struct {
		prepend, split string
		prefix         bool
		notes          int
	}{"always": {"always", "false", true, 0}, "first": {"first", "false", true, 1}, "never": {"never", "true", false, 0}} {
		t.Run(name, func(t *testing.T) {
			f := pieceFile()
			delete(f, "normalizer")
			f["pre_tokenizer"] = ggufFile{"type": "Metaspace", "replacement": "▁", "prepend_scheme": test.prepend, "split": test.split == "true"}
			pairs, notes, err := f.open(t, pieceConfig).GGUF(GGUFOptions{})
			require.NoError(t, err)
			require.Equal(t, test.prefix, valuesOf(pairs)["tokenizer.ggml.add_space_prefix"])
			require.Len(t, notes, test.notes)
		})
	}
}
