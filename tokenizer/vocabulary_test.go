package tokenizer_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// folder makes a folder of files. Contents that are no text are written as JSON.
func folder(t *testing.T, files map[string]any) string {
	dir := t.TempDir()
	for name, content := range files {
		text, isText := content.(string)
		if !isText {
			data, err := json.Marshal(content)
			require.NoError(t, err)
			text = string(data)
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	return dir
}

// TestVocabularyAndMerges: folders without tokenizer.json have the ids and the special tokens of transformers.
//
//check:in race
func TestVocabularyAndMerges(t *testing.T) {
	path := "testdata/vocabulary.json"
	if other := os.Getenv("SNUG_VOCABULARY"); other != "" {
		path = other
	}
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var golden struct {
		Merges string
		Cases  []struct {
			Name    string
			Files   map[string]json.RawMessage
			Special map[string]string
			Rows    []struct {
				Text       string
				IDs, Plain []int32
			}
		}
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	require.NotEmpty(t, golden.Cases)
	for _, c := range golden.Cases {
		t.Run(c.Name, func(t *testing.T) {
			files := map[string]any{"merges.txt": golden.Merges}
			for name, content := range c.Files {
				files[name] = content
			}
			tok, err := tokenizer.Open(folder(t, files))
			require.NoError(t, err)
			special := map[string]string{}
			for _, s := range tok.Config().Special {
				special[s.Name] = s.Text
			}
			require.Equal(t, c.Special, special)
			for _, row := range c.Rows {
				ids, err := tok.Encode(row.Text, tokenizer.EncodeOptions{})
				require.NoError(t, err)
				require.Equal(t, row.IDs, append([]int32{}, ids...), "%q", row.Text)
				ids, err = tok.Encode(row.Text, tokenizer.EncodeOptions{NoSpecial: true})
				require.NoError(t, err)
				require.Equal(t, row.Plain, append([]int32{}, ids...), "%q", row.Text)
			}
		})
	}
}

// TestNoTokenizerFile: the error says which file is there and how to convert it.
func TestNoTokenizerFile(t *testing.T) {
	vocab := map[string]int{"a": 0, "b": 1, "ab": 2}
	for _, c := range []struct {
		name  string
		files map[string]any
		want  string
	}{
		{"nothing", map[string]any{"config.json": "{}"}, "has no tokenizer.json: download it with the model"},
		{"a damaged model of SentencePiece", map[string]any{"tokenizer.model": "\x0a\x0e"}, `tokenizer.model: the file is no model of SentencePiece: a field of 14 bytes, and 0 are left`},
		{"a model of SentencePiece for another class", map[string]any{"sentencepiece.bpe.model": "\x0a\x0e"}, `has no tokenizer.json, and sentencepiece.bpe.model is not read: write tokenizer.json by: pip install transformers sentencepiece tiktoken protobuf && python -c 'from transformers import AutoTokenizer`},
		{"a model of T5's", map[string]any{"spiece.model": "\x0a\x0e"}, "spiece.model is not read: write tokenizer.json by"},
		{"a model of DeBERTa's", map[string]any{"spm.model": "\x0a\x0e"}, "spm.model is not read: write tokenizer.json by"},
		{"tekken", map[string]any{"tekken.json": "{}"}, "tekken.json: config: a vocabulary of 0 tokens"},
		{"WordPiece of another class", map[string]any{"vocab.txt": "[PAD]"}, "vocab.txt is not read"},
		{"another class", map[string]any{"vocab.json": vocab, "merges.txt": "a b\n", "tokenizer_config.json": map[string]any{"tokenizer_class": "CTRLTokenizer"}}, "vocab.json, of the class CTRLTokenizer is not read"},
		{"no class", map[string]any{"vocab.json": vocab, "merges.txt": "a b\n"}, "vocab.json is not read"},
		{"no merges", map[string]any{"vocab.json": vocab, "tokenizer_config.json": map[string]any{"tokenizer_class": "GPT2Tokenizer"}}, "vocab.json, of the class GPT2Tokenizer is not read"},
		{"a merge of three", map[string]any{"vocab.json": vocab, "merges.txt": "#version: 0.2\na b c\n", "config.json": map[string]any{"model_type": "gpt2"}}, `merges.txt: line 2: "a b c", want two tokens`},
		{"a merge without its token", map[string]any{"vocab.json": vocab, "merges.txt": "b a\n", "config.json": map[string]any{"model_type": "gpt2"}}, `merges: [0] joins "b" and "a"`},
		{"an id that does not follow", map[string]any{"vocab.json": vocab, "merges.txt": "a b\n", "config.json": map[string]any{"model_type": "gpt2"}, "added_tokens.json": map[string]int{"<x>": 9}}, `the added token "<x>" has the id 9, and comes to 3`},
		{"a pointer of Git LFS", map[string]any{"tokenizer.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"}, "git lfs pull"},
		{"a web page", map[string]any{"tokenizer.json": "<!DOCTYPE html><html></html>"}, "is a web page"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tokenizer.Open(folder(t, c.files))
			require.ErrorContains(t, err, c.want)
			if c.name != "nothing" {
				return
			}
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// TestSpecialTokens: the names and the order of special tokens are those of transformers, wherever they are said.
func TestSpecialTokens(t *testing.T) {
	type special = tokenizer.SpecialToken
	object := func(content string) any {
		return map[string]any{"__type": "AddedToken", "content": content, "lstrip": false, "normalized": true, "rstrip": false, "single_word": false}
	}
	decoder := map[string]any{"0": object("<s>")}
	for _, c := range []struct {
		name, config, special string
		want                  []special
		err                   string
	}{
		{"none", `{}`, ``, nil, ""},
		{"names beyond the usual ones", `{"image_token": "<i>", "eos_token": "</s>", "boi_token": {"content": "<boi>"}, "bos_token": "<s>", "num_token": 3, "add_bos_token": true}`, ``,
			[]special{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"image_token", "<i>"}, {"boi_token", "<boi>"}}, ""},
		{"an object of more tokens", `{"eos_token": "</s>", "extra_special_tokens": {"audio_token": "<a>", "eoa": {"content": "</a>"}}}`, ``, []special{{"eos_token", "</s>"}, {"audio_token", "<a>"}, {"eoa", "</a>"}}, ""},
		{"a list of more tokens", `{"eos_token": "</s>", "extra_special_tokens": ["<a>"], "additional_special_tokens": ["<b>", {"content": "<c>"}]}`, ``, []special{{"eos_token", "</s>"}}, ""},
		{"an object of the model's tokens", `{"model_specific_special_tokens": {"boi_token": "<boi>", "eoi": {"content": "</boi>"}}, "eos_token": "</s>"}`, ``, []special{{"eos_token", "</s>"}, {"boi_token", "<boi>"}, {"eoi", "</boi>"}}, ""},
		{"other names in place of the model's tokens", `{"model_specific_special_tokens": {"boi_token": "<boi>"}, "image_token": "<i>", "eos_token": "</s>"}`, ``, []special{{"eos_token", "</s>"}, {"image_token", "<i>"}}, ""},
		{"null for the model's tokens", `{"model_specific_special_tokens": null, "eos_token": "</s>"}`, ``, []special{{"eos_token", "</s>"}}, ""},
		{"a list of the model's tokens", `{"model_specific_special_tokens": ["<boi>"]}`, ``, nil, "want an object of names and tokens"},
		{"the map alone", ``, `{"eos_token": {"content": "</s>"}, "bos_token": "<s>"}`, []special{{"bos_token", "<s>"}, {"eos_token", "</s>"}}, ""},
		{"the map fills up", `{"added_tokens_decoder": ` + jsonText(t, decoder) + `, "eos_token": "</s>", "pad_token": null}`, `{"eos_token": "<x>", "bos_token": "<s>", "pad_token": "<p>", "image_token": "<i>"}`,
			[]special{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"image_token", "<i>"}}, ""},
		{"the map comes first", `{"eos_token": "</s>"}`, `{"eos_token": "<x>"}`, []special{{"eos_token", "<x>"}}, ""},
		{"a number", `{"eos_token": 3}`, ``, nil, "eos_token: \"3\", want a token"},
		{"twice", `{"eos_token": "a", "eos_token": "b"}`, ``, nil, "twice"},
		{"the name in other letters", `{"EOS_TOKEN": "b"}`, ``, nil, ""},
		{"no object", `[]`, ``, nil, "want an object"},
		{"a damaged map", `{}`, `{"eos_token": []}`, nil, "special_tokens_map.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]any{"tokenizer.json": tiny}
			if c.config != "" {
				files["tokenizer_config.json"] = c.config
			}
			if c.special != "" {
				files["special_tokens_map.json"] = c.special
			}
			tok, err := tokenizer.Open(folder(t, files))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.ErrorIs(t, err, snug.ErrCorrupt)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, tok.Config().Special)
		})
	}
}

// TestChatTemplates: which templates a folder has.
func TestChatTemplates(t *testing.T) {
	for _, c := range []struct {
		name      string
		files     map[string]any
		want      string
		templates map[string]string
		err       string
	}{
		{"none", nil, "", nil, ""},
		{"a field", map[string]any{"tokenizer_config.json": `{"chat_template": "field"}`}, "field", nil, ""},
		{"a list", map[string]any{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}`}, "a", map[string]string{"rag": "b"}, ""},
		{"a list without a default", map[string]any{"tokenizer_config.json": `{"chat_template": [{"name": "tool_use", "template": "b"}]}`}, "", map[string]string{"tool_use": "b"}, ""},
		{"an object", map[string]any{"tokenizer_config.json": `{"chat_template": {"default": "a", "rag": "b"}}`}, "a", map[string]string{"rag": "b"}, ""},
		{"a file", map[string]any{"chat_template.jinja": "file", "tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}`}, "file", nil, ""},
		{"files", map[string]any{"chat_template.jinja": "file", "additional_chat_templates/rag.jinja": "c", "additional_chat_templates/README.md": "no", "chat_template.json": `{"chat_template": "json"}`}, "file", map[string]string{"rag": "c"}, ""},
		{"more files, and a field", map[string]any{"additional_chat_templates/rag.jinja": "c", "tokenizer_config.json": `{"chat_template": "field"}`}, "field", map[string]string{"rag": "c"}, ""},
		{"chat_template.json", map[string]any{"chat_template.json": `{"chat_template": "json"}`}, "json", nil, ""},
		{"chat_template.json after the field", map[string]any{"tokenizer_config.json": `{"chat_template": "field"}`, "chat_template.json": `{"chat_template": "json"}`}, "field", nil, ""},
		{"chat_template.json of a processor", map[string]any{"preprocessor_config.json": "{}", "tokenizer_config.json": `{"chat_template": "field"}`, "chat_template.jinja": "file", "chat_template.json": `{"chat_template": "json"}`}, "json", nil, ""},
		{"a processor's own", map[string]any{"processor_config.json": `{"chat_template": "own"}`, "chat_template.jinja": "file", "chat_template.json": `{"chat_template": "json"}`}, "own", nil, ""},
		{"a processor's file", map[string]any{"processor_config.json": `{}`, "tokenizer_config.json": `{"chat_template": "field"}`, "chat_template.jinja": "file"}, "file", nil, ""},
		{"a processor without one", map[string]any{"preprocessor_config.json": `{}`, "tokenizer_config.json": `{"chat_template": "field"}`}, "field", nil, ""},
		{"a damaged template of a processor", map[string]any{"processor_config.json": `{"chat_template": 3}`}, "", nil, "processor_config.json"},
		{"a damaged chat_template.json", map[string]any{"chat_template.json": `{"chat_template": 3}`}, "", nil, "chat_template.json"},
		{"twice the same name", map[string]any{"tokenizer_config.json": `{"chat_template": [{"name": "a", "template": "a"}, {"name": "a", "template": "b"}]}`}, "", nil, "comes twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]any{"tokenizer.json": tiny}
			for name, content := range c.files {
				files[name] = content
			}
			tok, err := tokenizer.Open(folder(t, files))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.ErrorIs(t, err, snug.ErrCorrupt)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, tok.Config().ChatTemplate)
			require.Equal(t, c.templates, tok.Config().Templates)
		})
	}
}

// tiny is a tokenizer.json with an added token.
const tiny = `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "added_tokens": [
	{"id": 3, "content": "<i>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]}`

func jsonText(t *testing.T, v any) string {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

// TestLimit: a text with a token beyond the rows of the embedding is an error that names the token; others are encoded.
func TestLimit(t *testing.T) {
	all, err := tokenizer.Open(folder(t, map[string]any{"tokenizer.json": tiny}))
	require.NoError(t, err)
	tok := all.Limit(3)
	for _, rows := range []int{4, 5} {
		require.Equal(t, all, all.Limit(rows))
	}
	for _, o := range []tokenizer.EncodeOptions{{}, {NoSpecial: true}} {
		ids, err := tok.Encode("abab", o)
		require.NoError(t, err)
		require.Equal(t, []int32{2, 2}, ids)
		_, err = tok.Encode("ab<i>", o)
		require.ErrorContains(t, err, `the text has the token "<i>" with id 3, and the model's embedding has 3 rows`)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, _, err = tok.EncodeSpans("ab<i>", o)
		require.ErrorContains(t, err, `the token "<i>" with id 3`)
	}
	ids, err := all.Encode("ab<i>", tokenizer.EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, []int32{2, 3}, ids)
	e, err := tok.Encoder(tokenizer.EncodeOptions{}, 0, func([]int32) error { return nil })
	require.NoError(t, err)
	_, err = e.Write([]byte("ab<i>"))
	require.ErrorContains(t, errors.Join(err, e.Close()), `the token "<i>" with id 3`)
}
