package dataset

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

// A text is encoded as a whole: a token that crosses the border of a span is a label, and the tokens that a tokenizer puts
// around a text are there once.
func TestLabels(t *testing.T) {
	const vocab = `"vocab":{"?":0,"</s>":1,"u":2,"n":3,"d":4,"o":5,"un":6,"do":7,"undo":8,"▁":9,"▁undo":10,"4":11,"▁4":12,"<s>":13,"<end>":14},"merges":["u n","d o","un do","▁ undo","▁ 4"]`
	post := `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}],` +
		`"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[13],"tokens":["<s>"]},"</s>":{"id":"</s>","ids":[1],"tokens":["</s>"]}}}`
	prepend := `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`
	for _, c := range []struct {
		name, normalizer, post, text string
		spans                        [][2]int
		end                          int32
		want                         string // labels in brackets
	}{
		{"no blank is added between prompt and completion", prepend, `"post_processor":null`, "undo 4", [][2]int{{4, 6}}, -1, "▁undo[▁4]"},
		{"a word that goes on", prepend, `"post_processor":null`, "undo", [][2]int{{2, 4}}, -1, "[▁undo]"},
		{"a word that goes on without a prefix", "null", `"post_processor":null`, "undo", [][2]int{{2, 4}}, 1, "[undo</s>]"},
		{"special tokens around all", "null", post, "un do", [][2]int{{2, 5}}, 1, "<s>un[?do</s>]"},
		{"an end that is in the text", "null", `"post_processor":null`, "undo<end>", [][2]int{{0, 9}}, 14, "[undo<end>]"},
		{"two spans", "null", `"post_processor":null`, "undo<end>4un<end>4", [][2]int{{0, 4}, {10, 17}}, -1, "[undo]<end>4[un<end>]4"},
		{"no span", "null", post, "un", nil, -1, "<s>un</s>"},
		{"all of a text", prepend, post, "undo", [][2]int{{0, 4}}, -1, "[<s>▁undo</s>]"},
		{"a text without characters", prepend, post, "", [][2]int{{0, 0}}, 1, "[<s></s>]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := tokenizer.Parse([]byte(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":14,"content":"<end>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],` +
				`"normalizer":` + c.normalizer + `,"pre_tokenizer":null,` + c.post + `,"decoder":null,"model":{"type":"BPE","unk_token":"?",` + vocab + `}}`))
			require.NoError(t, err)
			var spans []span
			for _, s := range c.spans {
				spans = append(spans, span{Begin: s[0], End: s[1]})
			}
			ids, err := labels(tok, c.text, spans, c.end, tokenizer.EncodeOptions{})
			require.NoError(t, err)
			have, in := "", false
			for _, id := range ids {
				if is := id >= 0; is != in {
					have, in = have+map[bool]string{true: "[", false: "]"}[is], is
				}
				token, _ := tok.Token(max(id, ^id))
				have += token
			}
			if in {
				have += "]"
			}
			require.Equal(t, c.want, have)
		})
	}
	_, err := labels(tok, "\xff", nil, -1, tokenizer.EncodeOptions{})
	require.Error(t, err)
}
