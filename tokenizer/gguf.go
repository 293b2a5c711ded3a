package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
)

// GGUFOptions say what the file of a model holds of its tokenizer besides what the tokenizer knows.
type GGUFOptions struct {
	// Rows is the number of rows of the model's embedding; 0 is Len. Rows without a token have unused ones, and tokens without
	// a row are left out, with their merges.
	Rows int
	// BOS, EOS and Pad are the ids in the model's config.json, for a tokenizer that does not name these tokens; below 0: none.
	BOS, EOS, Pad int
	// Ends are ids that end the model's answers. The first that is not EOS becomes the token that ends a turn.
	Ends []int32
}

// The kinds of tokens in tokenizer.ggml.token_type.
const (
	ggufNormal  = 1
	ggufUnknown = 2
	ggufControl = 3 // special tokens
	ggufAdded   = 4 // other added tokens
	ggufUnused  = 5
	ggufByte    = 6
)

// GGUF returns the metadata that a file of llama.cpp's has of the tokenizer: the tokens and their kinds, merges or scores, the
// pre-tokenizer, special tokens, what is added around a text, and chat templates. notes are sentences without their full
// stop about what llama.cpp does in another way in some texts.
//
// Two kinds of tokenizers have a form there. Byte-level ones become "gpt2" with their merges; llama.cpp knows a list of
// pre-tokenizers, and the one is named that does what tokenizer.json says. It applies no normalizer to them: a text in
// decomposed characters, which NFC would compose, has other tokens there. Tokenizers of SentencePiece's BPE, with ▁ for
// spaces and tokens of bytes, become "llama", where the token with the highest score is made first: the scores are minus the place of
// the token in the merges. That is the same only if the merges are sorted by the token that they make, and have all ways to
// make it, as those of tokenizers that were converted from SentencePiece do.
//
// Errors wrap [snug.ErrConfig] and name the part that llama.cpp does not have.
func (t *Tokenizer) GGUF(o GGUFOptions) (metadata []gguf.Pair, notes []string, err error) {
	defer fault.Named(&err, "tokenizer: GGUF")
	if t == nil || t.model == nil {
		return nil, nil, refused("want a tokenizer of Open or Parse")
	}
	if o.Rows == 0 {
		o.Rows = t.Len()
	}
	if o.Rows < 1 || o.Rows > spreadTimes*t.Len()+spreadMore {
		return nil, nil, refused("%d rows for %d tokens", o.Rows, t.Len())
	}
	m, is := t.model.(*bpe)
	if !is {
		return nil, nil, refused("model: llama.cpp's files are written of BPE alone")
	}
	if m.prefix != "" || m.suffix != "" {
		return nil, nil, refused("model: continuing_subword_prefix or end_of_word_suffix, which llama.cpp does not have")
	}
	g := &ggufVocabulary{Tokenizer: t, GGUFOptions: o, model: m}
	make := g.pieces
	if g.byteLevel() {
		make = g.byteTokens
	}
	if err := make(); err != nil {
		return nil, nil, err
	}
	if err := g.special(); err != nil {
		return nil, nil, err
	}
	if t.Len() > o.Rows {
		g.note("%d tokens have no row in the model, and are left out", t.Len()-o.Rows)
	}
	g.noteTaken()
	g.templates()
	return g.pairs, g.notes, nil
}

// ggufVocabulary makes the metadata of a tokenizer.
type ggufVocabulary struct {
	*Tokenizer
	GGUFOptions
	model *bpe // of the tokenizer
	pairs []gguf.Pair
	notes []string
}

func (g *ggufVocabulary) add(key string, value any) {
	g.pairs = append(g.pairs, gguf.Pair{Key: "tokenizer." + key, Value: value})
}

func (g *ggufVocabulary) note(format string, args ...any) {
	g.notes = append(g.notes, fmt.Sprintf(format, args...))
}

// noteTaken notes added tokens that look at what is beside them.
func (g *ggufVocabulary) noteTaken() {
	n := 0
	for _, m := range []*matcher{&g.Tokenizer.added.raw, &g.Tokenizer.added.normalized} {
		for _, t := range m.tokens {
			if t.single || t.lstrip || t.rstrip {
				n++
			}
		}
	}
	if n > 0 {
		g.note("%d added tokens take the blanks beside them, or want to be whole words (lstrip, rstrip, single_word), and do not in llama.cpp: some texts have other tokens there", n)
	}
}

// byteLevel reports whether tokens spell bytes.
func (g *ggufVocabulary) byteLevel() bool {
	return slices.ContainsFunc(g.split, func(p preTokenizer) bool {
		_, is := p.(byteLevel)
		return is
	})
}

// byteTokens adds the tokens of a byte-level tokenizer, with its merges.
func (g *ggufVocabulary) byteTokens() error {
	for _, n := range g.normalizer {
		if u, is := n.(unicodeForm); !is || u.form != forms["NFC"] {
			return refused("normalizer: llama.cpp applies none to byte-level tokenizers")
		}
	}
	if len(g.normalizer) > 0 {
		g.note("a text in decomposed characters, which NFC composes, has other tokens in llama.cpp")
	}
	pre, note, err := preKindOf(g.splitFile, g.model.wholeWords)
	if err != nil {
		return err
	}
	if note != "" {
		g.note("%s", note)
	}
	merges, err := g.mergeList()
	if err != nil {
		return err
	}
	tokens, kinds := g.tokens()
	g.add("ggml.model", "gpt2")
	g.add("ggml.pre", pre)
	g.add("ggml.tokens", tokens)
	g.add("ggml.token_type", kinds)
	g.add("ggml.merges", merges)
	return nil
}

// mergeList returns the merges in their order, two tokens with a space between them.
func (g *ggufVocabulary) mergeList() ([]string, error) {
	order := g.ranked()
	list := make([]string, 0, len(order))
	for _, m := range order {
		if max(m.a, m.b, m.id) >= int32(g.Rows) {
			continue
		}
		a, b := g.texts[m.a], g.texts[m.b]
		if strings.Contains(a+b, " ") {
			return nil, refused("merges: %.40q and %.40q have a space, which is not in the alphabet of bytes", a, b)
		}
		list = append(list, a+" "+b)
	}
	return list, nil
}

// ranking is a merge of two tokens to another.
type ranking struct {
	a, b, id int32
	rank     uint32
}

// ranked returns the merges in their order.
func (g *ggufVocabulary) ranked() []ranking {
	list := make([]ranking, 0, len(g.model.merges))
	for key, m := range g.model.merges {
		list = append(list, ranking{int32(key >> 32), int32(uint32(key)), m.id, m.rank})
	}
	slices.SortFunc(list, func(x, y ranking) int { // of one rank as transformers converts tiktoken's ranks
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b))
	})
	return list
}

// tokens returns the tokens of all rows and their kinds.
func (g *ggufVocabulary) tokens() (tokens []string, kinds []int32) {
	tokens, kinds = make([]string, g.Rows), make([]int32, g.Rows)
	for id := range g.Rows {
		token, known := g.Token(int32(id))
		if !known {
			tokens[id], kinds[id] = fmt.Sprintf("[PAD%d]", id), ggufUnused
			continue
		}
		tokens[id], kinds[id] = token, ggufNormal
		if _, added := g.ids[token]; !added {
			continue
		}
		kinds[id] = ggufControl
		if !g.added.special[token] && !looksSpecial(token) {
			tokens[id], kinds[id] = strings.ReplaceAll(token, "▁", " "), ggufAdded
		}
	}
	return tokens, kinds
}

// looksSpecial reports whether an added token is one that publishers forgot to mark as special, by llama.cpp's converter.
func looksSpecial(token string) bool {
	around := func(left, right string) bool {
		return strings.HasPrefix(token, left) && strings.HasSuffix(token, right)
	}
	return slices.Contains([]string{"<pad>", "<mask>", "<2mass>", "[@BOS@]"}, token) ||
		around("<|", "|>") || around("<｜", "｜>") || around("<unused", ">")
}

// special adds the ids of special tokens, and whether they are added to texts.
func (g *ggufVocabulary) special() error {
	bos, eos := -1, -1
	for _, s := range []struct {
		name, key string
		config    int
		id        *int
	}{
		{"bos_token", "bos", g.BOS, &bos}, {"eos_token", "eos", g.EOS, &eos}, {"unk_token", "unknown", -1, nil}, {"sep_token", "seperator", -1, nil},
		{"pad_token", "padding", g.Pad, nil}, {"cls_token", "cls", -1, nil}, {"mask_token", "mask", -1, nil},
	} {
		id := s.config
		if known, ok := g.ID(g.config.token(s.name)); ok {
			id = int(known)
		}
		if id < 0 || id >= g.Rows {
			continue
		}
		if s.id != nil {
			*s.id = id
		}
		g.add("ggml."+s.key+"_token_id", uint32(id))
	}
	for _, id := range g.Ends {
		if int(id) != eos && id >= 0 && int(id) < g.Rows {
			g.add("ggml.eot_token_id", uint32(id))
			break
		}
	}
	first, last, err := g.around(bos, eos)
	if err != nil {
		return err
	}
	g.add("ggml.add_bos_token", first)
	g.add("ggml.add_eos_token", last)
	return nil
}

// around reports whether the tokenizer adds BOS in front of a text, and EOS behind.
func (g *ggufVocabulary) around(bos, eos int) (first, last bool, err error) {
	if len(g.post) == 0 {
		return false, false, nil
	}
	ids := g.post[0].apply([]int32{-1})
	at := slices.Index(ids, -1)
	front, behind := ids[:at], ids[at+1:]
	if len(front) > 1 || len(front) == 1 && int(front[0]) != bos || len(behind) > 1 || len(behind) == 1 && int(behind[0]) != eos {
		return false, false, refused("post_processor: tokens %v before a text and %v after it, and llama.cpp adds BOS and EOS, %d and %d", front, behind, bos, eos)
	}
	return len(front) == 1, len(behind) == 1, nil
}

// templates adds the chat templates.
func (g *ggufVocabulary) templates() {
	if g.config.ChatTemplate != "" {
		g.add("chat_template", g.config.ChatTemplate)
	}
	names := []string{}
	for name := range g.config.Templates {
		names = append(names, name)
	}
	if slices.Sort(names); len(names) == 0 {
		return
	}
	kept := names[:0]
	for _, name := range names {
		key := strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
				return r
			}
			return -1
		}, name)
		if key == name {
			g.add("chat_template."+name, g.config.Templates[name])
			kept = append(kept, name)
		}
	}
	g.add("chat_templates", kept)
}
