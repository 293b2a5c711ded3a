package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/gguf"
)

// ggufSource makes tokenizer.json and tokenizer_config.json of the metadata of a GGUF file.
type ggufSource struct {
	meta   *gguf.File
	kind   string // tokenizer.ggml.model
	pre    string // tokenizer.ggml.pre
	tokens []string
	kinds  []int32
	scores []float32

	file      file
	bpe       *modelFile // of file
	special   []SpecialToken
	ids       map[string]uint32 // of special, by the name
	around    [2]bool           // whether BOS and EOS are added
	templates map[string]string // by the name, the first of them defaultTemplate
}

// The kinds of tokenizers in tokenizer.ggml.model that are read.
const (
	ggufBytes  = "gpt2"       // BPE of bytes
	ggufPieces = "llama"      // SentencePiece's BPE, with scores
	ggufSpaced = "gemma4"     // BPE with ▁ for spaces and tokens of bytes, with merges
	sarvam     = "sarvam-moe" // a tokenizer.ggml.pre of such ones
)

const (
	maxRead  = 1 << 21 // tokens of a GGUF file
	maxPiece = 1 << 9  // bytes of a token with a score
)

// readGGUF reads the metadata.
func readGGUF(f *gguf.File) (*ggufSource, error) {
	if f == nil {
		return nil, refused("no GGUF file")
	}
	g := &ggufSource{meta: f, ids: map[string]uint32{}}
	for _, read := range []func() error{g.model, g.lists, g.specialTokens, g.vocabulary, g.merges, g.sections, g.chatTemplates} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// metaValue returns the value of a key behind "tokenizer.", which must be of type T.
func metaValue[T any](g *ggufSource, key string) (value T, found bool, err error) {
	key = "tokenizer." + key
	stored, found := g.meta.Value(key)
	if !found {
		return value, false, nil
	}
	value, is := stored.(T)
	if !is {
		return value, false, damaged("%s is of type %T, want %T", key, stored, value)
	}
	return value, true, nil
}

// wanted is metaValue of a key that must be there.
func wanted[T any](g *ggufSource, key string) (value T, err error) {
	value, found, err := metaValue[T](g, key)
	if err == nil && !found {
		err = damaged("the file has no tokenizer.%s", key)
	}
	return value, err
}

// model reads which kind of tokenizer the file has.
func (g *ggufSource) model() (err error) {
	if g.kind, err = wanted[string](g, "ggml.model"); err != nil {
		return err
	}
	if g.pre, _, err = metaValue[string](g, "ggml.pre"); err != nil {
		return err
	}
	switch g.kind {
	case ggufBytes, ggufPieces, ggufSpaced:
	default:
		return refused("tokenizer.ggml.model is %.40q, want %q, %q or %q: other kinds of tokenizers are not read", g.kind, ggufBytes, ggufPieces, ggufSpaced)
	}
	if g.kind == ggufBytes && (g.pre == ggufSpaced || g.pre == sarvam) {
		g.kind = ggufSpaced
	}
	return nil
}

// lists reads the tokens, their kinds and their scores.
func (g *ggufSource) lists() (err error) {
	if g.tokens, err = wanted[[]string](g, "ggml.tokens"); err != nil {
		return err
	}
	if n := len(g.tokens); n < 1 || n > maxRead {
		return refused("tokenizer.ggml.tokens has %d tokens, want 1 to %d", n, maxRead)
	}
	kinds, found, err := metaValue[[]int32](g, "ggml.token_type")
	if err != nil {
		return err
	}
	if !found {
		kinds = slices.Repeat([]int32{ggufNormal}, len(g.tokens))
	}
	if g.kinds = kinds; len(kinds) != len(g.tokens) {
		return damaged("tokenizer.ggml.token_type has %d values for %d tokens", len(kinds), len(g.tokens))
	}
	for id, kind := range kinds {
		if kind < 0 || kind > ggufByte {
			return damaged("tokenizer.ggml.token_type[%d] is %d, want 0 to %d", id, kind, ggufByte)
		}
	}
	if g.kind != ggufPieces {
		return nil
	}
	if g.scores, err = wanted[[]float32](g, "ggml.scores"); err != nil {
		return err
	}
	if len(g.scores) != len(g.tokens) {
		return damaged("tokenizer.ggml.scores has %d values for %d tokens", len(g.scores), len(g.tokens))
	}
	for id, score := range g.scores {
		if math.IsNaN(float64(score)) {
			return damaged("tokenizer.ggml.scores[%d] is not a number", id)
		}
	}
	return nil
}

// added reports whether a token is found in a text before the model sees the text, as llama.cpp does it.
func (g *ggufSource) added(id int) bool {
	return slices.Contains([]int32{ggufUnknown, ggufControl, ggufAdded}, g.kinds[id])
}

// row reports whether a token stands for a row of the model without a token, or has no text. Converters call the one of id 7 [PAD7].
func (g *ggufSource) row(id int) bool {
	return g.tokens[id] == "" || g.kinds[id] == ggufUnused && g.tokens[id] == fmt.Sprintf("[PAD%d]", id)
}

// vocabulary enters the tokens.
func (g *ggufSource) vocabulary() error {
	vocab := make(map[string]uint32, len(g.tokens))
	for id, token := range g.tokens {
		if g.row(id) {
			continue
		}
		if !utf8.ValidString(token) {
			return damaged("tokenizer.ggml.tokens[%d] is %.100q, want UTF-8", id, token)
		}
		if first, twice := vocab[token]; twice {
			return damaged("tokenizer.ggml.tokens has %.100q twice, at %d and %d", token, first, id)
		}
		vocab[token] = uint32(id)
		if g.added(id) {
			g.file.AddedTokens = append(g.file.AddedTokens, addedFile{ID: uint32(id), Content: token, RStrip: g.takesSpace(id), Special: g.kinds[id] != ggufAdded})
		}
	}
	g.file.Version = "1.0"
	g.bpe = &modelFile{Type: "BPE", Vocab: vocab}
	g.file.Model = modelPart{g.bpe}
	if g.kind != ggufBytes {
		set := true
		g.bpe.ByteFallback, g.bpe.FuseUnknown = &set, &set
		if id, found := g.ids["unk_token"]; found && !g.row(int(id)) {
			g.bpe.Unknown = &g.tokens[id]
		}
	}
	return nil
}

// takesSpace reports whether a special token takes the white space behind it, which llama.cpp knows by the name of the model.
func (g *ggufSource) takesSpace(id int) bool {
	value, _ := g.meta.Value("general.name")
	name, _ := value.(string)
	name = strings.ToLower(name)
	return (strings.Contains(name, "phi-3") || strings.Contains(name, "phi3")) &&
		!slices.Contains([]string{"<unk>", "<s>", "<|endoftext|>"}, g.tokens[id])
}

// apart takes the added tokens behind all others out of the vocabulary, as published tokenizers have them, if their ids are those
// that they get there and no merge has them.
func (g *ggufSource) apart(merges []mergeFile) {
	model := g.bpe
	first, end := 0, 0
	for id := range g.tokens {
		if g.row(id) {
			continue
		}
		if id != end {
			return // a hole
		}
		if end++; !g.added(id) {
			first = end
		}
	}
	if model.Unknown != nil {
		first = max(first, int(model.Vocab[*model.Unknown])+1)
	}
	tail := map[string]int{}
	for id := first; id < end; id++ {
		tail[g.tokens[id]] = id
	}
	for _, m := range merges {
		for _, token := range [...]string{m.a, m.b, m.a + m.b} {
			if id, in := tail[token]; in {
				first = max(first, id+1)
			}
		}
	}
	for _, token := range g.tokens[first:max(first, end)] {
		delete(model.Vocab, token)
	}
}

// specialTokens reads the tokens that have a name, and whether BOS and EOS are added to texts.
func (g *ggufSource) specialTokens() error {
	for _, s := range []struct {
		name, key string
		usual     int  // what llama.cpp takes for SentencePiece's without the key, -1 for none
		lenient   bool // whether files with an id that is no token are in use
	}{
		{"bos_token", "bos", 1, false}, {"eos_token", "eos", 2, false}, {"unk_token", "unknown", 0, false}, {"sep_token", "seperator", -1, true},
		{"pad_token", "padding", -1, true}, {"cls_token", "cls", -1, true}, {"mask_token", "mask", -1, true},
		{"eot_token", "eot", -1, false}, {"eom_token", "eom", -1, false},
	} {
		id, found, err := metaValue[uint32](g, "ggml."+s.key+"_token_id")
		if err != nil {
			return err
		}
		if !found && g.kind == ggufPieces && s.usual >= 0 && s.usual < len(g.tokens) && g.added(s.usual) {
			id, found = uint32(s.usual), true
		}
		known := int64(id) < int64(len(g.tokens)) && !g.row(int(id))
		switch {
		case !found || s.lenient && !known:
			continue
		case !known:
			return damaged("tokenizer.ggml.%s_token_id is %d, which is none of %d tokens", s.key, id, len(g.tokens))
		}
		g.ids[s.name] = id
		g.special = append(g.special, SpecialToken{s.name, g.tokens[id]})
	}
	always := g.kind == ggufSpaced && g.pre != sarvam
	usual := [2]bool{g.kind == ggufPieces || slices.Contains(startedKinds, g.pre)}
	for i, key := range [2]string{"bos", "eos"} {
		add, found, err := metaValue[bool](g, "ggml.add_"+key+"_token")
		if err != nil {
			return err
		}
		_, has := g.ids[key+"_token"]
		if g.around[i] = found && add || !found && usual[i] || i == 0 && always; g.around[i] && !has {
			return damaged("the file adds %s to texts and has no tokenizer.ggml.%s_token_id", strings.ToUpper(key), key)
		}
	}
	return nil
}

// chatTemplates reads the templates.
func (g *ggufSource) chatTemplates() error {
	g.templates = map[string]string{}
	for _, pair := range g.meta.Metadata() {
		name, named := strings.CutPrefix(pair.Key, "tokenizer.chat_template.")
		switch {
		case pair.Key == "tokenizer.chat_template":
			name = defaultTemplate
		case !named || name == defaultTemplate:
			continue
		}
		text, is := pair.Value.(string)
		if !is {
			return damaged("%s is of type %T, want string", pair.Key, pair.Value)
		}
		if strings.ContainsFunc(name, func(r rune) bool { return !plainName(r) }) || name == "" || len(name) > maxName {
			return damaged("the chat template %.100q, want a name of at most %d letters, digits, _ and -", name, maxName)
		}
		if g.templates[name] = text; len(g.templates) > maxTemplates {
			return refused("%d chat templates, want at most %d", len(g.templates), maxTemplates)
		}
		if !utf8.ValidString(text) || len(text) > maxTemplate {
			return damaged("%s has %d bytes, want at most %d of UTF-8", pair.Key, len(text), maxTemplate)
		}
	}
	return nil
}

const (
	maxName     = 64      // bytes of the name of a template
	maxTemplate = 1 << 20 // bytes of a template, the limit of files.Template
)

func plainName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}
