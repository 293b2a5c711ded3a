package tokenizer_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/tokenizer"
)

// written returns the tokenizer that Open reads from a file with the metadata of another, and the one of the files that FilesOfGGUF makes.
func written(t testing.TB, tok *tokenizer.Tokenizer) (read, again *tokenizer.Tokenizer) {
	t.Helper()
	pairs, _, err := tok.GGUF(tokenizer.GGUFOptions{Rows: tok.Len() + 3, BOS: -1, EOS: -1, Pad: -1})
	require.NoError(t, err)
	folder := t.TempDir()
	path := filepath.Join(folder, "model") // any name
	w, err := gguf.Create(path, pairs, nil)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	read, err = tokenizer.Open(path)
	require.NoError(t, err)
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	named, err := tokenizer.FilesOfGGUF(f)
	require.NoError(t, err)
	for name, text := range named {
		name = filepath.Join(folder, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
		require.NoError(t, os.WriteFile(name, text, 0o666))
	}
	again, err = tokenizer.Open(folder)
	require.NoError(t, err)
	require.Equal(t, read.Config(), again.Config())
	return read, again
}

// TestGGUFGolden: a tokenizer that goes through the metadata of a GGUF file has the ids and the texts of the library tokenizers, as
// the one of tokenizer.json has them.
func TestGGUFGolden(t *testing.T) {
	for pipeline, config := range map[string]string{"llama3": `{"bos_token":"<|begin_of_text|>"}`, "qwen": `{"eos_token":"<|im_end|>"}`} {
		t.Run(pipeline, func(t *testing.T) {
			folder := t.TempDir()
			file := unpack(t, filepath.Join(*goldenFolder, pipeline, "tokenizer.json.gz"))
			require.NoError(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), file, 0o666))
			require.NoError(t, os.WriteFile(filepath.Join(folder, "tokenizer_config.json"), []byte(config), 0o666))
			tok, err := tokenizer.Open(folder)
			require.NoError(t, err)
			read, again := written(t, tok)
			require.Equal(t, tok.Len(), read.Len(), "rows without a token are no tokens")
			require.Equal(t, tok.Config().Special, read.Config().Special)
			for id := range int32(tok.Len()) {
				want, ok := tok.Token(id)
				have, known := read.Token(id)
				require.Equal(t, ok, known, id)
				require.Equal(t, want, have)
				require.Equal(t, tok.Special(id), read.Special(id), want)
			}
			for _, g := range readGolden(t, pipeline) {
				for _, have := range []*tokenizer.Tokenizer{read, again} {
					ids, err := have.Encode(string(g.text), tokenizer.EncodeOptions{NoSpecial: true})
					require.NoError(t, err)
					special, err := have.Encode(string(g.text), tokenizer.EncodeOptions{})
					require.NoError(t, err)
					require.True(t, equal(ids, g.ids) && equal(special, g.special), "%q:\nids  %v\nwant %v", g.text, ids, g.ids)
					require.Equal(t, g.all, have.Decode(g.special, tokenizer.DecodeOptions{}), "%q", g.text)
					require.Equal(t, g.plain, have.Decode(g.special, tokenizer.DecodeOptions{SkipSpecial: true}), "%q", g.text)
				}
			}
		})
	}
}

// byScores joins what makes the token with the highest score, the leftmost first, until there is none, as llama.cpp does.
func byScores(text string, scores map[string]float32, id func(token string) int32) (ids []int32) {
	symbols := strings.Split(text, "")
	for {
		best, at := float32(math.Inf(-1)), -1
		for i := range len(symbols) - 1 {
			if score, is := scores[symbols[i]+symbols[i+1]]; is && score > best {
				best, at = score, i
			}
		}
		if at < 0 {
			break
		}
		symbols = slices.Replace(symbols, at, at+2, symbols[at]+symbols[at+1])
	}
	for _, symbol := range symbols {
		if _, is := scores[symbol]; is {
			ids = append(ids, id(symbol))
			continue
		}
		for i := range len(symbol) {
			ids = append(ids, id(fmt.Sprintf("<0x%02X>", symbol[i])))
		}
	}
	return ids
}

// TestGGUFScores: a vocabulary with scores gives the tokens that the definition gives, and what is written of it does, too.
func TestGGUFScores(t *testing.T) {
	for pipeline, prefix := range map[string]bool{"llama2": true, "gemma": false} {
		t.Run(pipeline, func(t *testing.T) {
			source := open(t, pipeline)
			n := source.Len()
			tokens, kinds, scores := make([]string, n), make([]int32, n), make([]float32, n)
			definition := map[string]float32{}
			var added []string
			for id := range n {
				token, _ := source.Token(int32(id))
				alone, err := source.Encode(token, tokenizer.EncodeOptions{NoSpecial: true})
				require.NoError(t, err)
				tokens[id], kinds[id], scores[id] = token, 1, -float32((id*7919)%n)
				switch {
				case source.Special(int32(id)):
					kinds[id] = 3
				case strings.HasPrefix(token, "<0x"):
					kinds[id] = 6
				case len(alone) == 1 && strings.Trim(token, "\n") == "" || strings.HasPrefix(token, "<") && strings.HasSuffix(token, ">"):
					kinds[id] = 4
				default:
					definition[token] = scores[id]
				}
				if kinds[id] == 3 || kinds[id] == 4 {
					added = append(added, token)
				}
			}
			path := filepath.Join(t.TempDir(), "scores.gguf")
			w, err := gguf.Create(path, []gguf.Pair{
				{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.tokens", Value: tokens}, {Key: "tokenizer.ggml.token_type", Value: kinds},
				{Key: "tokenizer.ggml.scores", Value: scores}, {Key: "tokenizer.ggml.add_space_prefix", Value: prefix}, {Key: "tokenizer.ggml.bos_token_id", Value: uint32(2)},
			}, nil)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			read, err := tokenizer.Open(path)
			require.NoError(t, err)
			second, third := written(t, read)
			texts, all := 0, 0
			for _, g := range readGolden(t, pipeline) {
				text := strings.ToValidUTF8(string(g.text), "\uFFFD")
				if slices.ContainsFunc(added, func(token string) bool { return strings.Contains(text, token) }) || text == "" || len(text) > 2000 {
					continue
				}
				spaced := strings.ReplaceAll(text, " ", "▁")
				if prefix {
					spaced = "▁" + spaced
				}
				want := byScores(spaced, definition, func(token string) int32 {
					id, known := read.ID(token)
					require.True(t, known, token)
					return id
				})
				texts++
				all += len(want)
				for _, tok := range []*tokenizer.Tokenizer{read, second, third} {
					ids, err := tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
					require.NoError(t, err)
					require.Equal(t, want, ids, "%q", text)
					require.Equal(t, strings.ReplaceAll(text, "▁", " "), tok.Decode(ids, tokenizer.DecodeOptions{}))
				}
			}
			require.Greater(t, texts, 200)
			t.Logf("%d texts, %d tokens", texts, all)
		})
	}
}
