package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
)

// metadata are pairs to change.
type metadata []gguf.Pair

// with returns the pairs with others, whose keys stand behind "tokenizer."; nil takes one away.
func (m metadata) with(changes ...any) metadata {
	m = slices.Clone(m)
	for i := 0; i < len(changes); i += 2 {
		key := "tokenizer." + changes[i].(string)
		m = slices.DeleteFunc(m, func(p gguf.Pair) bool { return p.Key == key })
		if changes[i+1] != nil {
			m = append(m, gguf.Pair{Key: key, Value: changes[i+1]})
		}
	}
	return m
}

// file writes the pairs and returns the path.
func (m metadata) file(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.bin")
	w, err := gguf.Create(path, m, nil)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return path
}

func (m metadata) open(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Open(m.file(t))
	require.NoError(t, err)
	return tok
}

// byteMeta has tokens of bytes, one of two spaces as text, special ones, and rows without a token.
func byteMeta() metadata {
	return metadata{}.with("ggml.model", "gpt2", "ggml.pre", "gpt-2",
		"ggml.tokens", []string{"a", "b", "Ġ", "ab", "Ġab", "#version", "#", "version", "<|im_end|>", "  ", "[PAD10]"},
		"ggml.token_type", []int32{1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 5}, "ggml.merges", []string{"a b", "Ġ ab", "# version"},
		"ggml.eos_token_id", uint32(8))
}

// pieceMeta is what TestGGUFOfPieces writes.
func pieceMeta(t testing.TB) metadata {
	pairs, _, err := pieceFile().open(t, pieceConfig).GGUF(GGUFOptions{Rows: 270, BOS: -1, EOS: -1, Pad: -1})
	require.NoError(t, err)
	return pairs
}

func encode(t testing.TB, tok *Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, EncodeOptions{})
	require.NoError(t, err)
	return ids
}

func TestOpenGGUF(t *testing.T) {
	tok := byteMeta().open(t)
	require.Equal(t, 10, tok.Len())
	require.Equal(t, []int32{3, 4, 9, 0, 8}, encode(t, tok, "ab ab  a<|im_end|>"))
	require.Equal(t, "ab ab  a", tok.Decode(encode(t, tok, "ab ab  a<|im_end|>"), DecodeOptions{SkipSpecial: true}))
	require.True(t, tok.Special(8))
	require.False(t, tok.Special(9))
	require.NotContains(t, tok.model.(*bpe).vocab, "<|im_end|>", "a token behind the vocabulary is none of it")
	_, known := tok.Token(10)
	require.False(t, known)

	tok = pieceMeta(t).open(t)
	require.Equal(t, []int32{1, 260, 267, 261, 2}, encode(t, tok, "ab  a</s>"))
	require.Equal(t, []int32{1, 261, 3 + 0xc3, 3 + 0xa9}, encode(t, tok, "aé"))
	require.Equal(t, "abé", tok.Decode(encode(t, tok, "abé"), DecodeOptions{SkipSpecial: true}))
}

func TestConfigOfGGUF(t *testing.T) {
	tok := byteMeta().with("ggml.bos_token_id", uint32(8), "ggml.add_bos_token", true, "ggml.add_eos_token", false, "ggml.eot_token_id", uint32(9),
		"ggml.padding_token_id", uint32(99), "chat_template", "main", "chat_template.tool_use", "tools", "chat_templates", []string{"tool_use"}).open(t)
	c := tok.Config()
	require.Equal(t, "main", c.ChatTemplate)
	require.Equal(t, map[string]string{"tool_use": "tools"}, c.Templates)
	require.Equal(t, []SpecialToken{{"bos_token", "<|im_end|>"}, {"eos_token", "<|im_end|>"}, {"eot_token", "  "}}, c.Special)
	require.Equal(t, []string{"<|im_end|>", "<|im_end|>", "", ""}, []string{c.BOS, c.EOS, c.Pad, c.Unknown}, "an id that is no row is no token for padding")
	require.True(t, *c.AddBOS)
	require.False(t, *c.AddEOS)
	require.Equal(t, []int32{8, 0}, encode(t, tok, "a"))

	both := byteMeta().with("ggml.bos_token_id", uint32(8), "ggml.add_bos_token", true, "ggml.add_eos_token", true).open(t)
	require.Equal(t, []int32{8, 0, 8}, encode(t, both, "a"))
	started := byteMeta().with("ggml.bos_token_id", uint32(8), "ggml.pre", "llama-bpe").open(t)
	require.Equal(t, []int32{8, 0}, encode(t, started, "a"), "as llama.cpp adds it unless the file says otherwise")
	require.Equal(t, []int32{0}, encode(t, byteMeta().open(t), "a"))

	usual := pieceMeta(t).with("ggml.bos_token_id", nil, "ggml.eos_token_id", nil, "ggml.unknown_token_id", nil, "ggml.add_bos_token", nil, "ggml.add_space_prefix", nil).open(t)
	require.Equal(t, []int32{1, 260}, encode(t, usual, "ab"))
	require.Equal(t, "</s>", usual.Config().EOS)
	require.Equal(t, "<unk>", usual.Config().Unknown)
	plain := pieceMeta(t).with("ggml.add_space_prefix", false).open(t)
	require.Equal(t, []int32{1, 259}, encode(t, plain, "ab"))
}

// TestSpacedGGUF: merges of tokens with ▁ for spaces.
func TestSpacedGGUF(t *testing.T) {
	m := pieceMeta(t).with("ggml.model", "gemma4", "ggml.scores", nil, "ggml.add_bos_token", false, "ggml.merges", []string{"▁ a", "a b", "▁ ab"})
	require.Equal(t, []int32{1, 259, 261, 265, 13}, encode(t, m.open(t), "ab ab\n"), "BOS is always added")
	require.Equal(t, []int32{259, 261}, encode(t, m.with("ggml.model", "gpt2", "ggml.pre", "sarvam-moe").open(t), "ab a"))
}

// TestSpaceBehindSpecial: the special tokens of Phi-3 take the white space behind them.
func TestSpaceBehindSpecial(t *testing.T) {
	m := append(pieceMeta(t), gguf.Pair{Key: "general.name", Value: "Phi-3 mini"})
	require.Equal(t, []int32{1, 2, 261}, encode(t, m.open(t), "</s> \na"))
	require.Equal(t, []int32{1, 2, 263, 261}, encode(t, pieceMeta(t).open(t), "</s> a")[:4])
}

// TestGGUFDifferences has what tokenizers lose in the form of llama.cpp.
func TestGGUFDifferences(t *testing.T) {
	pattern := []ggufFile{splitAt(qwen2Words), byteLevelPart(false)}
	for why, test := range map[string]struct {
		file       ggufFile
		change     func(f ggufFile)
		text       string
		have, want []int32
	}{
		"lstrip, rstrip and single_word of added tokens have no place": {byteFile(pattern...), func(f ggufFile) { f["added_tokens"].([]ggufFile)[1]["lstrip"] = true }, "a <tool>", []int32{0, 6}, []int32{0, 2, 6}},
		"ignore_merges goes with the pre-tokenizer": {byteFile(pattern...), func(f ggufFile) {
			f["model"].(ggufFile)["ignore_merges"], f["model"].(ggufFile)["merges"] = true, []string{"Ġ ab"}
		}, "ab", []int32{3}, []int32{0, 1}},
		"NFC goes with the pre-tokenizer": {byteFile(pattern...), func(f ggufFile) {
			f["model"].(ggufFile)["vocab"], f["model"].(ggufFile)["merges"] = map[string]int{"a": 0, "b": 1, "Ã": 2, "ab": 3, "c": 4}, []string{"a b"}
		}, "e\u0301", []int32{}, []int32{2}},
		"added tokens are found before the normalizer": {pieceFile(), func(f ggufFile) { f["added_tokens"].([]ggufFile)[3]["normalized"] = true }, "▁▁b", []int32{1, 267, 265}, []int32{1, 263, 263, 263, 265}},
		"▁ of added tokens stands for a space":         {pieceFile(), func(ggufFile) {}, "▁▁", []int32{1, 267}, []int32{1, 263, 263, 263}},
		"a space comes in front of each text between special tokens": {pieceFile(), func(f ggufFile) {
			delete(f, "normalizer")
			f["pre_tokenizer"] = ggufFile{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}
		}, "a</s>a", []int32{1, 261, 2, 264}, []int32{1, 261, 2, 261}},
	} {
		t.Run(why, func(t *testing.T) {
			test.change(test.file)
			tok := test.file.open(t, pieceConfig)
			pairs, _, err := tok.GGUF(GGUFOptions{BOS: -1, EOS: -1, Pad: -1})
			require.NoError(t, err)
			require.Equal(t, test.have, encode(t, tok, test.text))
			require.Equal(t, test.want, encode(t, metadata(pairs).open(t), test.text))
		})
	}
}

// notText is written as bytes that are no UTF-8.
const notText = "not text"

// TestDamagedGGUF has metadata that is refused, with what the error names.
func TestDamagedGGUF(t *testing.T) {
	pieces := pieceMeta(t)
	tokens := func(m metadata) []string { return slices.Clone(valuesOf(m)["tokenizer.ggml.tokens"].([]string)) }
	kinds := func(m metadata) []int32 { return slices.Clone(valuesOf(m)["tokenizer.ggml.token_type"].([]int32)) }
	changed := func(list []string, at int, token string) []string { list[at] = token; return list }
	many := make([]string, maxRead+1)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	ways := slices.Clone(many[:0])
	for i := range 200 { // all ways to make each of 200 repetitions of 52 letters
		for letter := range 52 {
			ways = append(ways, strings.Repeat(string(rune('A'+letter)), i+1))
		}
	}
	for name, test := range map[string]struct {
		meta metadata
		kind error
		text string
	}{
		"no kind":               {byteMeta().with("ggml.model", nil), snug.ErrCorrupt, "no tokenizer.ggml.model"},
		"type of the kind":      {byteMeta().with("ggml.model", uint32(1)), snug.ErrCorrupt, "tokenizer.ggml.model is of type uint32, want string"},
		"bert":                  {byteMeta().with("ggml.model", "bert"), snug.ErrConfig, `"bert", want "gpt2", "llama" or "gemma4"`},
		"pre-tokenizer":         {byteMeta().with("ggml.pre", "klingon"), snug.ErrConfig, `tokenizer.ggml.pre is "klingon"`},
		"no tokens":             {byteMeta().with("ggml.tokens", nil), snug.ErrCorrupt, "no tokenizer.ggml.tokens"},
		"empty tokens":          {byteMeta().with("ggml.tokens", []string{}), snug.ErrConfig, "0 tokens"},
		"type of tokens":        {byteMeta().with("ggml.tokens", []int32{1}), snug.ErrCorrupt, "type []int32, want []string"},
		"many tokens":           {byteMeta().with("ggml.tokens", many), snug.ErrConfig, "2097153 tokens, want 1 to 2097152"},
		"a token twice":         {byteMeta().with("ggml.tokens", changed(tokens(byteMeta()), 1, "a")), snug.ErrCorrupt, `"a" twice, at 0 and 1`},
		"bytes":                 {byteMeta().with("ggml.tokens", changed(tokens(byteMeta()), 1, notText)), snug.ErrCorrupt, "want UTF-8"},
		"short kinds":           {byteMeta().with("ggml.token_type", []int32{1}), snug.ErrCorrupt, "1 values for 11 tokens"},
		"a kind":                {byteMeta().with("ggml.token_type", append(kinds(byteMeta())[:10], 7)), snug.ErrCorrupt, "token_type[10] is 7"},
		"no merges":             {byteMeta().with("ggml.merges", nil), snug.ErrCorrupt, "no tokenizer.ggml.merges"},
		"merge of one":          {byteMeta().with("ggml.merges", []string{"a b", "ab"}), snug.ErrCorrupt, `merges[1] is "ab", want two tokens`},
		"merge of nothing":      {byteMeta().with("ggml.merges", []string{""}), snug.ErrCorrupt, `merges[0] is ""`},
		"merge of no token":     {byteMeta().with("ggml.merges", []string{"a c"}), snug.ErrCorrupt, `joins "a" and "c"`},
		"merge to no token":     {byteMeta().with("ggml.merges", []string{"b a"}), snug.ErrCorrupt, `joins "b" and "a"`},
		"bos":                   {byteMeta().with("ggml.bos_token_id", uint32(11)), snug.ErrCorrupt, "bos_token_id is 11, which is none of 11 tokens"},
		"eos of no token":       {byteMeta().with("ggml.eos_token_id", uint32(10)), snug.ErrCorrupt, "eos_token_id is 10"},
		"type of eos":           {byteMeta().with("ggml.eos_token_id", "8"), snug.ErrCorrupt, "type string, want uint32"},
		"no bos":                {byteMeta().with("ggml.add_bos_token", true), snug.ErrCorrupt, "adds BOS to texts and has no tokenizer.ggml.bos_token_id"},
		"type of add":           {byteMeta().with("ggml.add_bos_token", uint32(1)), snug.ErrCorrupt, "type uint32, want bool"},
		"template":              {byteMeta().with("chat_template", uint32(1)), snug.ErrCorrupt, "tokenizer.chat_template is of type uint32"},
		"name of a template":    {byteMeta().with("chat_template.../up", "x"), snug.ErrCorrupt, `"../up"`},
		"long template":         {byteMeta().with("chat_template", strings.Repeat("x", maxTemplate+1)), snug.ErrCorrupt, "1048577 bytes"},
		"long special token":    {byteMeta().with("ggml.tokens", changed(tokens(byteMeta()), 8, strings.Repeat("x", 5000))), snug.ErrConfig, "5000 bytes"},
		"no scores":             {pieces.with("ggml.scores", nil), snug.ErrCorrupt, "no tokenizer.ggml.scores"},
		"short scores":          {pieces.with("ggml.scores", []float32{1}), snug.ErrCorrupt, "1 values for 270 tokens"},
		"a score":               {pieces.with("ggml.scores", slices.Repeat([]float32{float32(math.NaN())}, 270)), snug.ErrCorrupt, "scores[0] is not a number"},
		"type of scores":        {pieces.with("ggml.scores", slices.Repeat([]int32{1}, 270)), snug.ErrCorrupt, "type []int32, want []float32"},
		"type of prefix":        {pieces.with("ggml.add_space_prefix", "yes"), snug.ErrCorrupt, "type string, want bool"},
		"long piece":            {pieces.with("ggml.tokens", changed(tokens(pieces), 260, strings.Repeat("x", 600))), snug.ErrConfig, "600 bytes, want at most 512"},
		"many ways":             {metadata{}.with("ggml.model", "llama", "ggml.tokens", ways, "ggml.scores", make([]float32, len(ways)), "ggml.add_bos_token", false), snug.ErrConfig, "ways to make a token"},
		"default without a row": {pieces.with("ggml.bos_token_id", nil, "ggml.token_type", slices.Repeat([]int32{1}, 270)), snug.ErrCorrupt, "adds BOS"},
	} {
		t.Run(name, func(t *testing.T) {
			path := test.meta.file(t)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(notText), []byte("not\xfftext")), 0o600))
			tok, err := Open(path)
			require.ErrorIs(t, err, test.kind)
			require.ErrorContains(t, err, test.text)
			require.NotContains(t, err.Error(), "\n")
			require.True(t, strings.HasPrefix(err.Error(), "tokenizer: "+path+": "), err)
			require.Nil(t, tok)
			f, err := gguf.Open(path)
			require.NoError(t, err)
			defer f.Close()
			named, err := FilesOfGGUF(f)
			require.ErrorIs(t, err, test.kind)
			require.Nil(t, named)
		})
	}
	path := filepath.Join(t.TempDir(), "cut.gguf")
	require.NoError(t, os.WriteFile(path, []byte("GGUF\x03\x00\x00\x00"), 0o600))
	_, err := Open(path)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "ends within its header")
}

// TestRandomGGUF changes metadata at random: there is a tokenizer or an error, and no panic.
func TestRandomGGUF(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := []any{uint32(0), uint32(9), uint32(1 << 31), int32(-1), true, false, "", "llama", "gpt2", "gemma4", "▁", []string{}, []string{"a"}, []int32{}, []float32{1}, nil}
	good := 0
	kinds := []metadata{byteMeta(), pieceMeta(t)}
	for range 400 {
		m := kinds[r.IntN(2)]
		for range 1 + r.IntN(3) {
			i := r.IntN(len(m))
			key := strings.TrimPrefix(m[i].Key, "tokenizer.")
			value := values[r.IntN(len(values))]
			switch list := m[i].Value.(type) {
			case []string:
				if len(list) == 0 {
					break
				}
				list = slices.Clone(list)
				list[r.IntN(len(list))] = []string{"", "a", " ", "a b", "▁", "ab", "<s>"}[r.IntN(7)]
				value = list[:len(list)-r.IntN(2)]
			case []int32:
				if len(list) == 0 {
					break
				}
				list = slices.Clone(list)
				list[r.IntN(len(list))] = int32(r.IntN(9) - 1)
				value = list
			}
			if m = m.with(key, value); len(m) == 0 {
				break
			}
		}
		tok, err := Open(m.file(t))
		if err == nil {
			_, err = tok.Encode("ab a\n</s> é", EncodeOptions{})
			good++
		}
		require.True(t, err == nil || errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrConfig), err)
	}
	require.Greater(t, good, 40)
}

// TestLargeGGUF: a vocabulary at the limit takes a few times the memory of its file.
func TestLargeGGUF(t *testing.T) {
	tokens := make([]string, 1<<19)
	for i := range tokens {
		tokens[i] = fmt.Sprintf("token%d", i)
	}
	path := byteMeta().with("ggml.tokens", tokens, "ggml.token_type", nil, "ggml.merges", []string{}).file(t)
	info, err := os.Stat(path)
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tok, err := Open(path)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Equal(t, len(tokens), tok.Len())
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(20*info.Size()))
}

// TestPreTokenizersOfGGUF has the words that a text has by the pre-tokenizers of llama.cpp.
func TestPreTokenizersOfGGUF(t *testing.T) {
	const text = "It'S 1234567 漢字かなHelloWORLD's\r\n\n  x/a+b=c_e!"
	words := map[string]string{
		"gpt-2":          "It|'|S| 1234567| 漢字かなHelloWORLD|'s|\r\n\n | x|/|a|+|b|=|c|_|e|!",
		"llama-bpe":      "It|'S| |123|456|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"smaug-bpe":      "It|'S| |123|456|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"qwen2":          "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"qwen35":         "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"smollm":         "It|'|S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n | x|/|a|+|b|=|c|_|e|!",
		"tekken":         "It|'S| |1|2|3|4|5|6|7| 漢字かなHello|WORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"gpt-4o":         "It'S| |123|456|7| 漢字かなHello|WORLD's|\r\n\n| | x|/a|+b|=c|_e|!",
		"seed-coder":     "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"deepseek-llm":   "It|'|S| |1234567| |漢字かな|HelloWORLD|'|s|\r|\n|\n| | x|/|a|+|b|=|c|_|e|!",
		"deepseek-coder": "It|'|S| |1|2|3|4|5|6|7| |漢字かな|HelloWORLD|'|s|\r|\n|\n| | x|/|a|+|b|=|c|_|e|!",
		"deepseek-v3":    "It|'S| |123|456|7| |漢字かな|HelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"falcon":         "It|'|S| |123|456|7| 漢字かなHelloWORLD|'|s|\r\n\n | x|/|a|+|b|=|c|_|e|!",
		"default":        "It|'|S| |123|456|7| 漢字かなHelloWORLD|'|s|\r\n\n | x|/|a|+|b|=|c|_|e|!",
		"poro-chat":      "It'S| 1234567| 漢字かなHelloWORLD's|\r\n\n | x/a+b=c_e|!",
		"viking":         "It'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD's|\r\n\n | x/a+b=c_e|!",
		"jais-2":         "It|'S| |123|456|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"kimi-k2":        "It'S| |123|456|7| |漢字|かなHello|WORLD's|\r\n\n| | x|/a|+b|=c|_e|!",
		"superbpe":       "It'S |1|234|567| 漢字かなHelloWORLD's\r\n\n  x/a+b=c_e!",
		"bailingmoe":     "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"exaone-moe":     "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"laguna":         "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r|\n\n| | x|/a|+b|=c|_e|!",
		"minicpm5":       "It|'S| |123|456|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
		"tiny_aya":       "It'S| |1|234|567| 漢字かなHello|WORLD's|\r\n\n| | x|/a|+b|=c|_e|!",
		"ufakzeka":       "It|'S| |1|2|3|4|5|6|7| 漢字かなHelloWORLD|'s|\r\n\n| | x|/a|+b|=c|_e|!",
	}
	for _, k := range preKinds {
		for _, name := range strings.Fields(k.names) {
			found, err := preKindNamed(name)
			require.NoError(t, err)
			require.Equal(t, k.names, found.names, "a name twice")
		}
		section, err := k.section()
		require.NoError(t, err)
		parts, err := readPreTokenizer(section, 0)
		require.NoError(t, err, k.names)
		var have []string
		require.NoError(t, chain(parts, func(p piece) error {
			have = append(have, string(unspell(nil, p.text)))
			return nil
		})(piece{text: text}))
		first, _, _ := strings.Cut(k.names, " ")
		require.Equal(t, words[first], strings.Join(have, "|"), first)
	}
	require.Len(t, preKinds, len(words))
}
