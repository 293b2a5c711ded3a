package tokenizer_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

var proseFile = flag.String("text", "", "a file to measure with, in place of golden texts")

// prose is some megabytes of text: the golden texts many times over, or a file.
func prose(b *testing.B) string {
	if *proseFile != "" {
		text, err := os.ReadFile(*proseFile)
		require.NoError(b, err)
		return string(text)
	}
	var s strings.Builder
	for _, g := range readGolden(b, "llama3") {
		s.Write(g.text)
	}
	return strings.Repeat(s.String(), 20)
}

func BenchmarkEncode(b *testing.B) {
	text := prose(b)
	for _, pipeline := range pipelines {
		b.Run(pipeline, func(b *testing.B) {
			tok := open(b, pipeline)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				_, err := tok.Encode(text, tokenizer.EncodeOptions{})
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	data := unpack(b, "testdata/llama3/tokenizer.json.gz")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, err := tokenizer.Parse(data)
		require.NoError(b, err)
	}
}
