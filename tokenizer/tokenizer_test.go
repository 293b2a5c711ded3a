package tokenizer_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/tokenizer"
)

//check:in race
func Example() {
	folder, err := os.MkdirTemp("", "tokenizer")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	file := `{
		"version": "1.0",
		"added_tokens": [{"id": 6, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": {"type": "BPE", "vocab": {"h": 0, "i": 1, "Ġ": 2, "hi": 3, "Ġhi": 4, "!": 5}, "merges": ["h i", "Ġ hi"]}
	}`
	if err := os.WriteFile(filepath.Join(folder, "tokenizer.json"), []byte(file), 0o644); err != nil {
		panic(err)
	}

	tok, err := tokenizer.Open(folder)
	if err != nil {
		panic(err)
	}
	ids, err := tok.Encode("hi hi!</s>", tokenizer.EncodeOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Println(ids)
	fmt.Println(tok.Decode(ids, tokenizer.DecodeOptions{SkipSpecial: true}))
	end, _ := tok.ID("</s>")
	fmt.Println(end, tok.Len())
	// Output:
	// [3 4 5 6]
	// hi hi!
	// 6 7
}

func TestZero(t *testing.T) {
	kerneltest.Zero(t,
		(*tokenizer.Tokenizer)(nil), new(tokenizer.Tokenizer), (*tokenizer.Stream)(nil), new(tokenizer.Stream),
		new(tokenizer.Tokenizer).Stream(tokenizer.DecodeOptions{}), tokenizer.Open, tokenizer.Parse, tokenizer.FilesOfGGUF,
	)
}

// base is a tokenizer.json that tests change.
func base() map[string]any {
	return map[string]any{
		"version": "1.0",
		"added_tokens": []any{
			map[string]any{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
		},
		"model": map[string]any{"type": "BPE", "vocab": map[string]any{"a": 0, "b": 1, "ab": 2}, "merges": []any{"a b"}},
	}
}

func parse(t *testing.T, spec map[string]any) (*tokenizer.Tokenizer, error) {
	t.Helper()
	data, err := json.Marshal(spec)
	require.NoError(t, err)
	return tokenizer.Parse(data)
}

// TestRefused has files that Parse refuses, with the sentinel and what the error names.
func TestRefused(t *testing.T) {
	model := func(key string, value any) func(map[string]any) {
		return func(m map[string]any) { m["model"].(map[string]any)[key] = value }
	}
	part := func(key string, value ...any) func(map[string]any) {
		object := map[string]any{}
		for i := 0; i < len(value); i += 2 {
			object[value[i].(string)] = value[i+1]
		}
		return func(m map[string]any) { m[key] = object }
	}
	added := func(key string, value any) func(map[string]any) {
		return func(m map[string]any) { m["added_tokens"].([]any)[0].(map[string]any)[key] = value }
	}
	regex := func(pattern string) func(map[string]any) {
		return part("pre_tokenizer", "type", "Split", "pattern", map[string]any{"Regex": pattern}, "behavior", "Isolated", "invert", false)
	}
	for name, test := range map[string]struct {
		change func(map[string]any)
		err    error
		says   string
	}{
		"version":           {func(m map[string]any) { m["version"] = "2.0" }, snug.ErrConfig, `version "2.0"`},
		"key":               {func(m map[string]any) { m["speed"] = 1 }, snug.ErrCorrupt, "speed"},
		"keys of BPE":       {model("type", "WordPiece"), snug.ErrCorrupt, "model.merges: unknown key"},
		"another model":     {model("type", "Morfessor"), snug.ErrConfig, `"Morfessor", want BPE, Unigram, WordLevel or WordPiece`},
		"type of type":      {model("type", 1), snug.ErrConfig, `"1", want BPE`},
		"model key":         {model("max_input_chars_per_word", 1), snug.ErrCorrupt, "max_input_chars_per_word"},
		"dropout":           {model("dropout", 0.1), snug.ErrConfig, "dropout 0.1"},
		"merge of nothing":  {model("merges", []any{"a c"}), snug.ErrCorrupt, `"a" and "c"`},
		"merge of three":    {model("merges", []any{"a b c"}), snug.ErrCorrupt, "a b c"},
		"merges of a kind":  {model("merges", []any{"a b", []any{"a", "b"}}), snug.ErrCorrupt, "[1] has another form"},
		"merge of one":      {model("merges", []any{[]any{"a"}}), snug.ErrCorrupt, "pair"},
		"ids":               {model("vocab", map[string]any{"a": 0, "b": 1, "ab": 1 << 30}), snug.ErrCorrupt, "1073741824"},
		"one id twice":      {model("vocab", map[string]any{"a": 0, "b": 1, "ab": 1}), snug.ErrCorrupt, `"ab" and "b" both have id 1`},
		"negative id":       {model("vocab", map[string]any{"a": -1}), snug.ErrCorrupt, "model.vocab.a"},
		"added id":          {added("id", 9), snug.ErrCorrupt, `"<s>" with id 9, want id 3`},
		"added nothing":     {added("content", ""), snug.ErrCorrupt, "some text"},
		"added long":        {added("content", strings.Repeat("x", 2000)), snug.ErrConfig, "2000 bytes"},
		"normalizer":        {part("normalizer", "type", "Nmt"), snug.ErrConfig, `normalizer: type "Nmt"`},
		"normalizer key":    {part("normalizer", "type", "NFC", "fast", true), snug.ErrCorrupt, "fast"},
		"no type":           {part("normalizer", "kind", "NFC"), snug.ErrCorrupt, "type"},
		"sequence":          {part("normalizer", "type", "Sequence", "normalizers", []any{map[string]any{"type": "Bert"}}), snug.ErrConfig, `normalizers[0]: type "Bert"`},
		"sequence of none":  {part("normalizer", "type", "Sequence"), snug.ErrCorrupt, "normalizers"},
		"pre-tokenizer":     {part("pre_tokenizer", "type", "UnicodeScripts"), snug.ErrConfig, `pre_tokenizer: type "UnicodeScripts"`},
		"behavior":          {part("pre_tokenizer", "type", "Punctuation", "behavior", "Eaten"), snug.ErrConfig, "Eaten"},
		"pattern":           {part("pre_tokenizer", "type", "Split", "pattern", map[string]any{}, "behavior", "Isolated", "invert", false), snug.ErrCorrupt, "pattern"},
		"empty pattern":     {part("pre_tokenizer", "type", "Split", "pattern", map[string]any{"String": ""}, "behavior", "Isolated", "invert", false), snug.ErrCorrupt, "pattern"},
		"back reference":    {regex(`(a)\1`), snug.ErrConfig, `\1`},
		"named group":       {regex(`(?<x>a)`), snug.ErrConfig, "(?<x>"},
		"intersection":      {regex(`[a&&b]`), snug.ErrConfig, "&&"},
		"property":          {regex(`\p{Klingon}`), snug.ErrConfig, "Klingon"},
		"repeated nothing":  {regex(`(?:a*)*`), snug.ErrConfig, "may be empty"},
		"replacement":       {part("pre_tokenizer", "type", "Metaspace", "replacement", "ab"), snug.ErrCorrupt, `"ab"`},
		"prepend scheme":    {part("pre_tokenizer", "type", "Metaspace", "replacement", "a", "prepend_scheme", "last"), snug.ErrConfig, `"last"`},
		"prefix and scheme": {part("pre_tokenizer", "type", "Metaspace", "replacement", "a", "add_prefix_space", false), snug.ErrCorrupt, "add_prefix_space"},
		"post-processor":    {part("post_processor", "type", "Chat"), snug.ErrConfig, "Chat"},
		"template":          {part("post_processor", "type", "TemplateProcessing", "single", []any{map[string]any{"SpecialToken": map[string]any{"id": "<x>", "type_id": 0}}}, "pair", []any{}, "special_tokens", map[string]any{}), snug.ErrCorrupt, `"<x>"`},
		"decoder":           {part("decoder", "type", "CTC"), snug.ErrConfig, "CTC"},
		"template of none":  {part("post_processor", "type", "TemplateProcessing", "single", []any{}, "pair", []any{}, "special_tokens", map[string]any{}), snug.ErrConfig, "0 places"},
		"long prepend":      {part("normalizer", "type", "Prepend", "prepend", strings.Repeat("x", 2000)), snug.ErrConfig, "2000 bytes"},
		"growing text":      {part("normalizer", "type", "Sequence", "normalizers", slices.Repeat([]any{map[string]any{"type": "Replace", "pattern": map[string]any{"String": "a"}, "content": "aa"}}, 20)), snug.ErrConfig, "times as long"},
		"growing bytes":     {part("pre_tokenizer", "type", "Sequence", "pretokenizers", slices.Repeat([]any{map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}}, 20)), snug.ErrConfig, "times as long"},
		"many parts":        {part("decoder", "type", "Sequence", "decoders", slices.Repeat([]any{map[string]any{"type": "Fuse"}}, 100)), snug.ErrConfig, "more than 64 parts"},
		"strip":             {part("decoder", "type", "Strip", "content", "", "start", 0, "stop", 0), snug.ErrCorrupt, "content"},
		"truncation":        {part("truncation", "max_length", 5, "strategy", "OnlySecond", "stride", 0), snug.ErrConfig, "OnlySecond"},
		"padding":           {part("padding", "strategy", "Long", "direction", "Right", "pad_id", 0, "pad_type_id", 0, "pad_token", ""), snug.ErrConfig, "Long"},
		"much padding":      {part("padding", "strategy", map[string]any{"Fixed": uint32(1 << 31)}, "direction", "Right", "pad_id", 0, "pad_type_id", 0, "pad_token", ""), snug.ErrConfig, "2147483647"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := base()
			_, err := parse(t, spec)
			require.NoError(t, err)
			test.change(spec)
			_, err = parse(t, spec)
			require.ErrorIs(t, err, test.err)
			require.ErrorContains(t, err, test.says)
			require.True(t, strings.HasPrefix(err.Error(), "tokenizer: "), err)
		})
	}
	_, err := tokenizer.Parse([]byte(`{"model":{"vocab":{"\ud800":0},"merges":[]}}`))
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "surrogate")
}

// TestEncodeErrors has tokenizers that open and texts that they cannot encode.
func TestEncodeErrors(t *testing.T) {
	spec := base()
	spec["model"].(map[string]any)["unk_token"] = "<unk>"
	tok, err := parse(t, spec)
	require.NoError(t, err)
	_, err = tok.Encode("abc", tokenizer.EncodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `"c"`)
	for _, o := range []tokenizer.EncodeOptions{{Truncate: true}, {Pad: true}} {
		_, err = tok.Encode("ab", o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}

	spec = base() // without an unknown token other characters vanish, as for the peer
	spec["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `(?:a|a)+(?:a|a)+b`}, "behavior": "Isolated", "invert": false}
	tok, err = parse(t, spec)
	require.NoError(t, err)
	ids, err := tok.Encode("xabx", tokenizer.EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, []int32{2}, ids)
	_, err = tok.Encode(strings.Repeat("a", 60), tokenizer.EncodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "steps")
}

func TestTokens(t *testing.T) {
	tok := open(t, "llama3")
	require.Equal(t, 8005, tok.Len())
	for id := range int32(tok.Len()) {
		token, ok := tok.Token(id)
		require.True(t, ok, id)
		back, ok := tok.ID(token)
		require.True(t, ok, token)
		require.Equal(t, id, back)
	}
	for _, id := range []int32{-1, 8005, 1 << 30} {
		_, ok := tok.Token(id)
		require.False(t, ok)
		require.False(t, tok.Special(id))
	}
	_, ok := tok.ID("no such token")
	require.False(t, ok)
	require.True(t, tok.Special(8000))
	require.False(t, tok.Special(0))
	require.Equal(t, "<|begin_of_text|>", tok.Decode([]int32{-5, 8000, 1 << 30}, tokenizer.DecodeOptions{}))
}

func TestPlainSpecial(t *testing.T) {
	tok := open(t, "llama3")
	text := "a<|eot_id|>b"
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{PlainSpecial: true, NoSpecial: true})
	require.NoError(t, err)
	for _, id := range ids {
		require.False(t, tok.Special(id))
	}
	require.Equal(t, text, tok.Decode(ids, tokenizer.DecodeOptions{SkipSpecial: true}))
}

// TestSpacesOfAddedTokens: an added token of spaces may match what another has taken. The ids are those of the library
// tokenizers.
func TestSpacesOfAddedTokens(t *testing.T) {
	const a, b, space, other = 0, 1, 2, 3
	for _, test := range []struct {
		lstrip, rstrip bool
		text           string
		want           []int32
	}{
		{false, false, "a       b", []int32{a, other, other, other, space, b}},
		{false, true, "a       b", []int32{a, other, other, other, b}},
		{true, false, "a       b", []int32{a, other, other, other, space, b}},
		{true, true, "a       b", []int32{a, other, b}},
		{true, true, "     ", []int32{other}},
		{true, true, "b     a", []int32{b, other, a}},
	} {
		file := fmt.Sprintf(`{"version":"1.0","added_tokens":[{"id":3,"content":"  ","single_word":false,"lstrip":%t,"rstrip":%t,"normalized":false,
			"special":false}],"model":{"type":"BPE","vocab":{"a":0,"b":1," ":2},"merges":[]}}`, test.lstrip, test.rstrip)
		tok, err := tokenizer.Parse([]byte(file))
		require.NoError(t, err)
		ids, err := tok.Encode(test.text, tokenizer.EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, test.want, ids, "%+v", test)
	}
}

// TestTruncateAndPad: the sections of Llama 2's golden file, which say 12 tokens from the
// end, and padding in front to 10 and a multiple of 8.
func TestTruncateAndPad(t *testing.T) {
	tok := open(t, "llama2")
	long := strings.Repeat("one two three ", 10)
	whole, err := tok.Encode(long, tokenizer.EncodeOptions{NoSpecial: true})
	require.NoError(t, err)
	cut, err := tok.Encode(long, tokenizer.EncodeOptions{Truncate: true})
	require.NoError(t, err)
	require.Equal(t, append([]int32{1}, whole[len(whole)-11:]...), cut)
	cut, err = tok.Encode(long, tokenizer.EncodeOptions{Truncate: true, NoSpecial: true, Pad: true})
	require.NoError(t, err)
	require.Equal(t, append([]int32{2, 2, 2, 2}, whole[len(whole)-12:]...), cut)
}

func TestConfig(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	_, err := tokenizer.Open(folder)
	require.ErrorIs(t, err, os.ErrNotExist)
	data, err := json.Marshal(base())
	require.NoError(t, err)
	write("tokenizer.json", string(data))
	tok, err := tokenizer.Open(filepath.Join(folder, "tokenizer.json"))
	require.NoError(t, err)
	require.Zero(t, tok.Config())

	yes, no := true, false
	write("tokenizer_config.json", `{"bos_token":"<s>","eos_token":{"__type":"AddedToken","content":"</s>","lstrip":false},"pad_token":null,
		"add_bos_token":true,"add_eos_token":false,"chat_template":"{{ x }}","tokenizer_class":"LlamaTokenizer"}`)
	tok, err = tokenizer.Open(folder)
	require.NoError(t, err)
	require.Equal(t, tokenizer.Config{ChatTemplate: "{{ x }}", BOS: "<s>", EOS: "</s>", AddBOS: &yes, AddEOS: &no,
		Special: []tokenizer.SpecialToken{{Name: "bos_token", Text: "<s>"}, {Name: "eos_token", Text: "</s>"}}}, tok.Config())

	write("tokenizer_config.json", `{"chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"}]}`)
	tok, err = tokenizer.Open(folder)
	require.NoError(t, err)
	require.Equal(t, tokenizer.Config{ChatTemplate: "a", Templates: map[string]string{"tool_use": "b"}}, tok.Config())
	write("chat_template.jinja", "from the file")
	tok, err = tokenizer.Open(folder)
	require.NoError(t, err)
	require.Equal(t, "from the file", tok.Config().ChatTemplate)

	for _, damaged := range []string{`{"bos_token":1}`, `{"bos_token":{}}`, `{"chat_template":7}`, `{`, `{"add_bos_token":"yes"}`} {
		write("tokenizer_config.json", damaged)
		_, err = tokenizer.Open(folder)
		require.ErrorIs(t, err, snug.ErrCorrupt, damaged)
		require.ErrorContains(t, err, "tokenizer_config.json")
	}
}

// TestConcurrent encodes on many goroutines with one tokenizer.
//
//check:in race
func TestConcurrent(t *testing.T) {
	tok := open(t, "qwen")
	rows := readGolden(t, "qwen")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for _, g := range rows {
				ids, err := tok.Encode(string(g.text), tokenizer.EncodeOptions{NoSpecial: true})
				if err != nil || !equal(ids, g.ids) {
					t.Errorf("%q: %v, %v", g.text, ids, err)
				}
			}
		})
	}
	group.Wait()
}
