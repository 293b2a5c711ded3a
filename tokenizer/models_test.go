package tokenizer_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

// folderCase is a folder with a tokenizer, and what its library makes of texts.
type folderCase struct {
	Name  string
	Files map[string][]byte
	Plain bool // special tokens are plain text, and none are added
	Rows  []json.RawMessage
}

func folderCases(t testing.TB) (all []folderCase) {
	lines := bufio.NewScanner(bytes.NewReader(unpack(t, "testdata/models.jsonl.gz")))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var c folderCase
		require.NoError(t, json.Unmarshal(lines.Bytes(), &c))
		all = append(all, c)
	}
	require.NoError(t, lines.Err())
	require.Greater(t, len(all), 10)
	return all
}

func (c folderCase) open(t *testing.T) *tokenizer.Tokenizer {
	files := map[string]any{}
	for name, data := range c.Files {
		files[name] = string(data)
	}
	tok, err := tokenizer.Open(folder(t, files))
	require.NoError(t, err)
	return tok
}

// TestModels compares ids and texts with those of the libraries tokenizers, sentencepiece, mistral_common and tiktoken.
func TestModels(t *testing.T) {
	for _, c := range folderCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			tok := c.open(t)
			o := tokenizer.EncodeOptions{NoSpecial: c.Plain, PlainSpecial: c.Plain}
			for _, r := range c.Rows {
				var text, decoded string
				var want []int32
				require.NoError(t, json.Unmarshal(r, &[]any{&text, &want, &decoded}))
				ids, err := tok.Encode(text, o)
				require.NoError(t, err)
				require.Equal(t, want, append([]int32{}, ids...), "%q", text)
				require.Equal(t, decoded, tok.Decode(ids, tokenizer.DecodeOptions{}), "%q", text)
				same, spans, err := tok.EncodeSpans(text, o)
				require.NoError(t, err)
				require.Equal(t, append([]int32{}, ids...), append([]int32{}, same...))
				at := 0
				for _, s := range spans {
					require.LessOrEqual(t, s.Begin, s.End)
					require.LessOrEqual(t, s.End, len(text))
					require.GreaterOrEqual(t, s.Begin, at, "%q %v", text, spans)
					at = s.Begin
				}
				var parts []int32
				e, err := tok.Encoder(o, 0, func(some []int32) error {
					parts = append(parts, some...)
					return nil
				})
				require.NoError(t, err)
				_, err = e.Write([]byte(text))
				require.NoError(t, err)
				require.NoError(t, e.Close())
				require.Equal(t, append([]int32{}, ids...), append([]int32{}, parts...), "%q", text)
			}
		})
	}
}
