package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// merges enters the merges of the file, or makes those of its scores.
func (g *ggufSource) merges() (err error) {
	if g.kind == ggufPieces {
		g.bpe.Merges, err = g.mergesOfScores()
	} else {
		g.bpe.Merges, err = g.mergesOfFile()
	}
	if err == nil {
		g.apart(g.bpe.Merges)
	}
	return err
}

func (g *ggufSource) mergesOfFile() ([]mergeFile, error) {
	lines, err := wanted[[]string](g, "ggml.merges")
	if err != nil {
		return nil, err
	}
	list := make([]mergeFile, len(lines))
	for i, line := range lines {
		at := strings.IndexByte(line[min(1, len(line)):], ' ') + 1
		if at == 0 {
			return nil, damaged("tokenizer.ggml.merges[%d] is %.100q, want two tokens with a space between them", i, line)
		}
		list[i] = mergeFile{a: line[:at], b: line[at+1:]}
	}
	return list, nil
}

// Merges of scores may be this many more than the tokens; those of published tokenizers are about twice as many.
const (
	mergesTimes = 8
	mergesMore  = 1 << 16
)

// mergesOfScores returns all ways to make a token of two others. llama.cpp makes the token with the highest score first, at the
// leftmost place, and a list makes the first merge first. The order is that of transformers' converter of SentencePiece: by the
// scores, then by the characters of the left token, the longest first, and then by the ids. Tokens that do not come of merges
// are those that are found before, bytes, and rows without a token.
func (g *ggufSource) mergesOfScores() ([]mergeFile, error) {
	type way struct {
		id, left, right uint32
		score           float32
		runes, rest     int // of left, and of right
	}
	piece := func(id uint32) bool { return !g.added(int(id)) && g.kinds[id] != ggufByte && !g.row(int(id)) }
	vocab := g.bpe.Vocab
	var ways []way
	for id, token := range g.tokens {
		if !piece(uint32(id)) {
			continue
		}
		if len(token) > maxPiece {
			return nil, refused("tokenizer.ggml.tokens[%d] has %d bytes, want at most %d", id, len(token), maxPiece)
		}
		runes, all := 0, utf8.RuneCountInString(token)
		for at := range token {
			left, okL := vocab[token[:at]]
			right, okR := vocab[token[at:]]
			if at > 0 && okL && okR && piece(left) && piece(right) {
				ways = append(ways, way{uint32(id), left, right, g.scores[id], runes, all - runes})
			}
			runes++
		}
		if most := mergesTimes*len(g.tokens) + mergesMore; len(ways) > most {
			return nil, refused("more than %d ways to make a token of two others", most)
		}
	}
	slices.SortFunc(ways, func(x, y way) int {
		return cmp.Or(cmp.Compare(y.score, x.score), y.runes-x.runes, y.rest-x.rest, cmp.Compare(x.id, y.id), cmp.Compare(x.left, y.left))
	})
	list := make([]mergeFile, len(ways))
	for i, w := range ways {
		list[i] = mergeFile{a: g.tokens[w.left], b: g.tokens[w.right]}
	}
	return list, nil
}

// Sections of tokenizer.json for tokenizers with ▁ for spaces, as transformers' converter of SentencePiece makes them.
const (
	spacesNormalizer = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	prefixNormalizer = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + spacesNormalizer + `]}`
	spacesDecoder    = `{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}`
	prefixDecoder    = spacesDecoder + `,{"type":"Strip","content":" ","start":1,"stop":0}`
	bytesDecoder     = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
)

// startedKinds are pre-tokenizers of models whose texts begin with BOS unless the file says otherwise.
var startedKinds = []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"}

// sections makes the sections around the model.
func (g *ggufSource) sections() (err error) {
	f := &g.file
	if f.PostProcessor, err = g.postProcessor(); err != nil {
		return err
	}
	switch g.kind {
	case ggufBytes:
		kind, err := preKindNamed(cmp.Or(g.pre, "default"))
		if err != nil {
			return err
		}
		g.bpe.IgnoreMerges = &kind.whole
		if slices.Contains(composed, g.pre) {
			f.Normalizer = json.RawMessage(`{"type":"NFC"}`)
		}
		f.Decoder = json.RawMessage(bytesDecoder)
		f.PreTokenizer, err = kind.section()
		return err
	case ggufPieces:
		prefix, found, err := metaValue[bool](g, "ggml.add_space_prefix")
		if err != nil {
			return err
		}
		if prefix || !found {
			f.Normalizer = json.RawMessage(prefixNormalizer)
			f.Decoder = json.RawMessage(`{"type":"Sequence","decoders":[` + prefixDecoder + `]}`)
			return nil
		}
	}
	f.Normalizer = json.RawMessage(spacesNormalizer)
	f.Decoder = json.RawMessage(`{"type":"Sequence","decoders":[` + spacesDecoder + `]}`)
	return nil
}

// postProcessor returns the section that adds BOS and EOS, nothing if the file adds neither.
func (g *ggufSource) postProcessor() (json.RawMessage, error) {
	if g.around == [2]bool{} {
		return nil, nil
	}
	type special struct {
		ID     string   `json:"id"`
		IDs    []uint32 `json:"ids"`
		Tokens []string `json:"tokens"`
	}
	tokens := map[string]special{}
	text := func(id string, kind uint32) (parts []templateFile) {
		parts = []templateFile{{Sequence: &templateItem{id, kind}}}
		for i, name := range [2]string{"bos_token", "eos_token"} {
			if !g.around[i] {
				continue
			}
			token := g.tokens[g.ids[name]]
			tokens[token] = special{token, []uint32{g.ids[name]}, []string{token}}
			parts = slices.Insert(parts, i*len(parts), templateFile{Special: &templateItem{token, kind}})
		}
		return parts
	}
	return plainJSON(map[string]any{
		"type": "TemplateProcessing", "single": text("A", 0), "pair": append(text("A", 0), text("B", 1)...), "special_tokens": tokens,
	})
}

// config returns the text of tokenizer_config.json.
func (g *ggufSource) config() ([]byte, error) {
	keys := map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
		"add_bos_token": g.around[0], "add_eos_token": g.around[1],
	}
	for _, s := range g.special {
		keys[s.Name] = s.Text
	}
	return plainJSON(keys)
}

// plainJSON returns the JSON of a value, with < and > as they are.
func plainJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
