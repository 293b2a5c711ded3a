package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// TestVocabTxt: lines that come twice, empty ones, and folders whose config.json says the class alone, as transformers 5.24 reads them.
func TestVocabTxt(t *testing.T) {
	const lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nwor\n##ld\n"
	bert := `{"tokenizer_class": "BertTokenizer"}`
	for _, c := range []struct {
		name, lines, config, model string
		want                       []int32
		err                        string
	}{
		{"a class", lines, bert, "", []int32{2, 4, 5, 6, 7, 3}, ""},
		{"a token twice", lines + "[MASK]\nhello\n", bert, "", []int32{2, 8, 5, 6, 7, 3}, ""},
		{"empty lines", lines + "\n\n", bert, "", []int32{2, 4, 5, 6, 8, 3}, ""},
		{"a token twice that gives an added token the id of another", lines + "hello\n", bert, "", nil, `the added token "[MASK]" would have the id 7 of "hello"`},
		{"config.json of BERT", lines, "", `{"model_type": "bert"}`, []int32{2, 4, 5, 6, 7, 3}, ""},
		{"config.json of DistilBERT", lines, "", `{"model_type": "distilbert"}`, []int32{2, 4, 5, 6, 7, 3}, ""},
		{"config.json of MobileBERT", lines, "", `{"model_type": "mobilebert"}`, []int32{2, 4, 5, 6, 7, 3}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]any{"vocab.txt": c.lines}
			for name, text := range map[string]string{"tokenizer_config.json": c.config, "config.json": c.model} {
				if text != "" {
					files[name] = text
				}
			}
			tok, err := tokenizer.Open(folder(t, files))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.ErrorIs(t, err, snug.ErrCorrupt)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, encoded(t, tok, "hello world[MASK]", tokenizer.EncodeOptions{}))
		})
	}
}

// TestUntypedModel: a section "model" without a type is of the first kind of BPE, WordPiece, WordLevel and Unigram that it has the
// keys of, as for the library tokenizers.
func TestUntypedModel(t *testing.T) {
	for range 20 { // the order of maps
		tok, err := tokenizer.Parse([]byte(`{"model": {"vocab": {"a": 0, "b": 1, "ab": 2, "<u>": 3}, "merges": ["a b"], "unk_token": "<u>"}}`))
		require.NoError(t, err)
		require.Equal(t, []int32{2, 0}, encoded(t, tok, "aba", tokenizer.EncodeOptions{}))
		tok, err = tokenizer.Parse([]byte(`{"model": {"vocab": {"a": 0, "<u>": 1}, "unk_token": "<u>"}}`))
		require.NoError(t, err)
		require.Equal(t, []int32{1}, encoded(t, tok, "aba", tokenizer.EncodeOptions{}))
	}
}

// TestErrorOnce: an error says its kind once.
func TestErrorOnce(t *testing.T) {
	tok, err := tokenizer.Parse([]byte(`{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<u>"}}`))
	require.NoError(t, err)
	_, err = tok.Encode("b", tokenizer.EncodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, 1, strings.Count(err.Error(), snug.ErrConfig.Error()), err)
}
