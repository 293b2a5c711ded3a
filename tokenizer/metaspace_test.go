package tokenizer_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

// TestFirstMetaspace: with "first", a ▁ is added to what stands for the first character of the text, as in tokenizers 0.23.
func TestFirstMetaspace(t *testing.T) {
	const vocab = `[["[UNK]",0],["▁",-1],["a",-1],["b",-1],["c",-1],["z",-1],["漢",-1]]`
	replace := func(what, content string) string {
		return fmt.Sprintf(`{"type": "Replace", "pattern": {"String": "%s"}, "content": "%s"}`, what, content)
	}
	for _, c := range []struct {
		name, normalizer, text string
		want                   []int32
	}{
		{"the first character is gone", replace("a", ""), "ab", []int32{3}},
		{"the first two are gone", replace("ab", ""), "abc", []int32{4}},
		{"another text for the first character", replace("a", "zc"), "ab", []int32{1, 5, 4, 3}},
		{"another text for the first two", replace("ab", "zc"), "abc", []int32{5, 4, 4}},
		{"a place further back", replace("b", "zc"), "ab", []int32{1, 2, 5, 4}},
		{"a text in front, and another for a part of it", `{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "ab"}, ` + replace("b", "z") + `]}`, "c", []int32{1, 2, 5, 4}},
		{"BERT's spaces around ideographs", `{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}`, "漢a", []int32{1, 6, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := tokenizer.Parse([]byte(`{"normalizer": ` + c.normalizer + `, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"},
				{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]}, "model": {"type": "Unigram", "unk_id": 0, "vocab": ` + vocab + `}}`))
			require.NoError(t, err)
			require.Equal(t, c.want, encoded(t, tok, c.text, tokenizer.EncodeOptions{}))
		})
	}
}
