package tokenizer

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestParts compares single parts, and tokenizers with strange settings, with the library
// tokenizers.
func TestParts(t *testing.T) {
	f, err := os.Open("testdata/parts.jsonl.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	checks := map[string]func(t *testing.T, part, in, out json.RawMessage){
		"pre_tokenizer": checkPreTokenizer, "normalizer": checkNormalizer, "decoder": checkDecoder, "tokenizer": checkTokenizer,
	}
	seen := map[string]int{}
	for lines.Scan() {
		var row [4]json.RawMessage
		require.NoError(t, json.Unmarshal(lines.Bytes(), &row))
		kind := decoded[string](t, row[0])
		seen[kind]++
		t.Run(kind, func(t *testing.T) { checks[kind](t, row[1], row[2], row[3]) })
	}
	require.NoError(t, lines.Err())
	require.Len(t, seen, len(checks))
	t.Log(seen)
}

func decoded[T any](t *testing.T, data json.RawMessage) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}

func checkPreTokenizer(t *testing.T, part, in, out json.RawMessage) {
	all, err := readPreTokenizer(part, 0)
	require.NoError(t, err, "%s", part)
	want := decoded[[][]string](t, out)
	for i, text := range decoded[[]string](t, in) {
		if text == "" {
			continue // without pre-tokenizers the peer has one empty piece
		}
		pieces := []string{}
		require.NoError(t, chain(all, func(p piece) error {
			pieces = append(pieces, p.text)
			return nil
		})(piece{text: text, head: firstSize(text)}))
		require.Equal(t, want[i], pieces, "%s of %q", part, text)
	}
}

func checkNormalizer(t *testing.T, part, in, out json.RawMessage) {
	all, err := readNormalizer(part, 0)
	require.NoError(t, err, "%s", part)
	want := decoded[[][]string](t, out)
	for i, text := range decoded[[]string](t, in) {
		p := piece{text: text, head: firstSize(text)}
		require.NoError(t, normalizers(all).apply(&p))
		require.Equal(t, want[i][0], p.text, "%s of %q", part, text)
	}
}

func checkDecoder(t *testing.T, part, in, out json.RawMessage) {
	all, err := readDecoder(part, 0)
	require.NoError(t, err, "%s", part)
	tok := &Tokenizer{decode: all}
	want := decoded[[][]string](t, out)
	for i, tokens := range decoded[[][]string](t, in) {
		tok.texts, tok.shown, tok.known = nil, nil, nil
		var ids []int32
		for id, token := range tokens {
			tok.name(int32(id), token, token)
			ids = append(ids, int32(id))
		}
		require.Equal(t, want[i][0], tok.Decode(ids, DecodeOptions{}), "%s of %q", part, tokens)
	}
}

func checkTokenizer(t *testing.T, part, in, out json.RawMessage) {
	tok, err := Parse(part)
	require.NoError(t, err, "%s", part)
	want := decoded[[2][][]int32](t, out)
	for k, rows := range want {
		for i, text := range decoded[[]string](t, in) {
			ids, err := tok.Encode(text, EncodeOptions{PlainSpecial: k == 1})
			require.NoError(t, err, "%s of %q", part, text)
			require.Equal(t, rows[i], append([]int32{}, ids...), "%s of %q, plain %d", part, text, k)
		}
	}
}
