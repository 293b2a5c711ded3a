package tokenizer_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/ucd"
	"github.com/snug-ml/snug/tokenizer"
)

// spans: EncodeSpans has the ids of Encode, and the places of the tokens make up the text.
func spans(t *rapid.T) {
	for _, pipeline := range pipelines {
		tok := opened[pipeline]
		s := strings.ToValidUTF8(text.Draw(t, "s"), "?")
		for _, o := range []tokenizer.EncodeOptions{{}, {NoSpecial: true}, {NoSpecial: true, PlainSpecial: true}} {
			ids, places, err := tok.EncodeSpans(s, o)
			require.NoError(t, err)
			want, err := tok.Encode(s, o)
			require.NoError(t, err)
			require.Equal(t, want, ids, "%s: %q", pipeline, s)
			require.Len(t, places, len(ids))
			last := tokenizer.Span{}
			var covered strings.Builder
			for i, p := range places {
				require.LessOrEqual(t, p.Begin, p.End)
				require.LessOrEqual(t, last.Begin, p.Begin)
				if pipeline != "qwen" { // tokens of one rewritten character share it
					require.True(t, p == last || last.End <= p.Begin, "%s: %q: %v", pipeline, s, places)
				}
				require.LessOrEqual(t, last.End, p.End)
				covered.WriteString(s[max(p.Begin, last.End):max(p.End, last.End)])
				last = p
				token, _ := tok.Token(ids[i])
				switch part := s[p.Begin:p.End]; pipeline {
				case "llama2", "gemma":
					if !tok.Special(ids[i]) && !strings.HasPrefix(token, "<0x") && utf8.ValidString(part) && part != "" {
						require.Contains(t, []string{token, strings.TrimPrefix(token, "▁")}, strings.ReplaceAll(part, " ", "▁"))
					}
				case "llama3":
					if !tok.Special(ids[i]) {
						require.Equal(t, len(part), utf8.RuneCountInString(token))
					}
				}
			}
			if o.NoSpecial && pipeline != "qwen" {
				require.Equal(t, s, covered.String(), "%s: %v", pipeline, places)
			} else if o.NoSpecial {
				require.Equal(t, ucd.NFC.String(s), ucd.NFC.String(covered.String()), "%s: %v", pipeline, places)
			}
		}
	}
}

func TestSpans(t *testing.T) {
	openAll(t)
	rapid.Check(t, spans)
}

func FuzzSpans(f *testing.F) {
	openAll(f)
	f.Fuzz(rapid.MakeFuzz(spans))
}

// TestSpansOfParts: places under each part that changes text.
func TestSpansOfParts(t *testing.T) {
	const model = `"model":{"type":"BPE","unk_token":"?","vocab":{"?":0,"a":1,"b":2,"ab":3,"▁":4,"▁a":5,"Ġ":6,"Ã":7,"©":8,"é":9,"x":10,"y":11},"merges":["a b","▁ a"]}`
	added := `"added_tokens":[{"id":12,"content":"<s>","single_word":false,"lstrip":true,"rstrip":true,"normalized":false,"special":true}]`
	for _, c := range []struct {
		name, parts, text string
		want              []string // the bytes of each token
	}{
		{"nothing", `"normalizer":null,"pre_tokenizer":null`, "abba", []string{"ab", "b", "a"}},
		{"unknown characters", `"normalizer":null,"pre_tokenizer":null`, "aéüa", []string{"a", "é", "ü", "a"}},
		{"prepend", `"normalizer":{"type":"Prepend","prepend":"▁"},"pre_tokenizer":null`, "ab a", []string{"", "ab", " ", "a"}},
		{"replace", `"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},"pre_tokenizer":null`, "ab a", []string{"ab", " a"}},
		{"a pattern", `"normalizer":{"type":"Replace","pattern":{"Regex":"x+"},"content":"ab"},"pre_tokenizer":null`, "axxxxb", []string{"a", "xxxx", "b"}},
		{"removed", `"normalizer":{"type":"Replace","pattern":{"String":"x"},"content":""},"pre_tokenizer":null`, "xaxbx", []string{"axb"}},
		{"composed", `"normalizer":{"type":"NFC"},"pre_tokenizer":null`, "ae\u0301b", []string{"a", "e\u0301", "b"}},
		{"lower case", `"normalizer":{"type":"Lowercase"},"pre_tokenizer":null`, "AİB", []string{"A", "İ", "İ", "B"}},
		{"strip", `"normalizer":{"type":"Strip","strip_left":true,"strip_right":true},"pre_tokenizer":null`, "  ab ", []string{"ab"}},
		{"metaspace", `"normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "a ab", []string{"a", " ", "ab"}},
		{"bytes", `"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}`, "ab éa", []string{"", "ab", " ", "\xc3", "\xa9", "a"}},
		{"bytes before a cut", `"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},` +
			`{"type":"Split","pattern":{"String":"Ġ"},"behavior":"Isolated","invert":false}]}`, "ab éa", []string{"ab", " ", "\xc3", "\xa9", "a"}},
		{"removed spaces", `"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"}`, " a  ab ", []string{"a", "ab"}},
		{"added tokens that take spaces", `"normalizer":null,"pre_tokenizer":null`, "a <s>  ab", []string{"a", "<s>", "ab"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := tokenizer.Parse([]byte(`{"version":"1.0","truncation":null,"padding":null,` + added + `,` + c.parts + `,"post_processor":null,"decoder":null,` + model + `}`))
			require.NoError(t, err)
			ids, places, err := tok.EncodeSpans(c.text, tokenizer.EncodeOptions{})
			require.NoError(t, err)
			want, err := tok.Encode(c.text, tokenizer.EncodeOptions{})
			require.NoError(t, err)
			require.Equal(t, want, ids)
			var have []string
			for _, p := range places {
				have = append(have, c.text[p.Begin:p.End])
			}
			require.Equal(t, c.want, have, places)
		})
	}
}

func TestSpansRefused(t *testing.T) {
	tok := open(t, "llama2")
	for _, c := range []struct {
		text string
		o    tokenizer.EncodeOptions
		kind error
	}{
		{"a\xff", tokenizer.EncodeOptions{}, snug.ErrCorrupt},
		{"a", tokenizer.EncodeOptions{Truncate: true}, snug.ErrConfig},
		{"a", tokenizer.EncodeOptions{Pad: true}, snug.ErrConfig},
	} {
		_, _, err := tok.EncodeSpans(c.text, c.o)
		require.ErrorIs(t, err, c.kind)
	}
	_, _, err := (*tokenizer.Tokenizer)(nil).EncodeSpans("a", tokenizer.EncodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
}
