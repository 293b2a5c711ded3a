package tokenizer_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

var goldenFolder = flag.String("golden", "testdata", "the folder that testdata/make.py wrote")

// pipelines are the folders of testdata.
var pipelines = []string{"llama2", "llama3", "gemma", "qwen"}

func unpack(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	data, err := io.ReadAll(z)
	require.NoError(t, err)
	return data
}

func open(t testing.TB, pipeline string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Parse(unpack(t, filepath.Join(*goldenFolder, pipeline, "tokenizer.json.gz")))
	require.NoError(t, err)
	return tok
}

// golden is what the library tokenizers makes of a text.
type golden struct {
	text         []byte
	ids, special []int32
	all, plain   string // decoded with and without special tokens
}

func (g *golden) UnmarshalJSON(data []byte) error {
	row := []any{&g.text, &g.ids, &g.special, &g.all, &g.plain}
	err := json.Unmarshal(data, &row)
	if len(row) == 4 {
		g.plain = g.all
	}
	return err
}

func readGolden(t testing.TB, pipeline string) (rows []golden) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(unpack(t, filepath.Join(*goldenFolder, pipeline, "golden.jsonl.gz"))))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var g golden
		require.NoError(t, json.Unmarshal(lines.Bytes(), &g))
		rows = append(rows, g)
	}
	require.NoError(t, lines.Err())
	require.Greater(t, len(rows), 300)
	return rows
}

// TestGolden compares ids and texts with those of the library tokenizers, in the
// pipelines of published models.
func TestGolden(t *testing.T) {
	for _, pipeline := range pipelines {
		t.Run(pipeline, func(t *testing.T) {
			tok := open(t, pipeline)
			wrong, tokens := 0, 0
			for _, g := range readGolden(t, pipeline) {
				ids, err := tok.Encode(string(g.text), tokenizer.EncodeOptions{NoSpecial: true})
				require.NoError(t, err)
				special, err := tok.Encode(string(g.text), tokenizer.EncodeOptions{})
				require.NoError(t, err)
				tokens += len(ids)
				all := tok.Decode(g.special, tokenizer.DecodeOptions{})
				plain := tok.Decode(g.special, tokenizer.DecodeOptions{SkipSpecial: true})
				if !equal(ids, g.ids) || !equal(special, g.special) || all != g.all || plain != g.plain {
					if wrong++; wrong <= 5 {
						t.Errorf("%q:\nids  %v\nwant %v\nspecial %v\nwant    %v\ntext %q\nwant %q\nplain %q\nwant  %q", g.text, ids, g.ids, special, g.special, all, g.all, plain, g.plain)
					}
				}
			}
			t.Logf("%d tokens, %d texts wrong", tokens, wrong)
		})
	}
}

func equal(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
