package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/gguf"
)

// blank stands for a space in tokens of SentencePiece.
const blank = "▁"

// pieces adds the tokens of a tokenizer of SentencePiece's BPE, with scores.
func (g *ggufVocabulary) pieces() error {
	if g.model.fallback == nil {
		return refused("model: llama.cpp has byte-level tokenizers, and those with ▁ for spaces and tokens of bytes, byte_fallback")
	}
	for b, id := range g.model.fallback {
		if id < 0 || int(id) >= g.Rows {
			return refused("model: no token <0x%02X>, and llama.cpp wants one for each byte", b)
		}
	}
	if g.model.wholeWords {
		return refused("model: ignore_merges, which llama.cpp does not have for tokenizers with ▁ for spaces")
	}
	prefix, err := g.spaces()
	if err != nil {
		return err
	}
	scores, err := g.scores()
	if err != nil {
		return err
	}
	tokens, kinds := g.tokens()
	for _, id := range g.model.fallback {
		kinds[id] = ggufByte
	}
	for id, kind := range kinds {
		switch kind {
		case ggufUnused:
			scores[id] = -10000
		case ggufControl, ggufAdded:
			scores[id] = -1000
		}
	}
	g.add("ggml.model", "llama")
	g.add("ggml.pre", "default")
	g.add("ggml.tokens", tokens)
	g.add("ggml.scores", scores)
	g.add("ggml.token_type", kinds)
	g.pairs = append(g.pairs, gguf.Pair{Key: "tokenizer.ggml.add_space_prefix", Value: prefix})
	return nil
}

// spaces reports whether a space comes before a text. It checks that spaces become ▁, and nothing else happens to a text.
func (g *ggufVocabulary) spaces() (prefix bool, err error) {
	replaced := false
	for _, n := range g.normalizer {
		p, isPrepend := n.(prepend)
		r, isReplace := n.(replace)
		switch {
		case isPrepend && p.text == blank && !replaced:
			prefix = true
		case isReplace && r.text == " " && r.content == blank:
			replaced = true
		default:
			return false, refused("normalizer: llama.cpp has one alone for tokenizers with ▁ for spaces, which makes ▁ of each space and may put one in front")
		}
	}
	for _, p := range g.split {
		m, is := p.(metaspace)
		switch {
		case is && m.sign == blank && !replaced && !prefix:
			replaced, prefix = true, m.prepend != "never"
			if m.prepend == "first" {
				g.note("llama.cpp puts a space also in front of text that follows a special token, and this tokenizer only in front of the whole text")
			}
			if m.cut {
				if token := g.joinsWords(); token != "" {
					return false, refused("pre_tokenizer: Metaspace cuts at spaces, and llama.cpp would use the token %.40q", token)
				}
			}
		case strings.Contains(string(g.splitFile), `"String":" "`) || strings.Contains(string(g.splitFile), `"String": " "`):
			// spaces are gone by then
		default:
			return false, refused("pre_tokenizer: llama.cpp has none for tokenizers with ▁ for spaces")
		}
	}
	if !replaced {
		return false, refused("normalizer: want one that makes ▁ of each space, as llama.cpp does")
	}
	return prefix, nil
}

// joinsWords returns a token with ▁ behind another character, empty if there is none.
func (g *ggufVocabulary) joinsWords() string {
	for _, token := range g.texts {
		if _, added := g.ids[token]; !added && strings.Contains(strings.TrimLeft(token, blank), blank) {
			return token
		}
	}
	return ""
}

// scores returns the scores of all rows: minus the place of a token among those that merges make, in the order of the merges, and
// lower ones for characters. It checks that making the token with the highest score first is the order of the merges.
func (g *ggufVocabulary) scores() ([]float32, error) {
	scores := make([]float32, g.Rows)
	made := map[int32]bool{}
	order := g.ranked()
	var last int32 = -1
	for _, m := range order {
		if g.found(m.id) || m.id == last {
			continue
		}
		if made[m.id] {
			return nil, refused("merges: %.40q is made at several places of the list, and llama.cpp wants all ways to make a token together", g.texts[m.id])
		}
		if last = m.id; int(m.id) < g.Rows {
			scores[m.id] = -float32(len(made))
		}
		made[m.id] = true
	}
	if err := g.allWays(); err != nil {
		return nil, err
	}
	n := len(made)
	for id := range min(len(g.texts), g.Rows) {
		if g.known[id] && !made[int32(id)] && !g.found(int32(id)) {
			scores[id] = -float32(n)
			n++
		}
	}
	return scores, nil
}

// found reports whether a token comes from outside of the merges: an added one, which is found before, or one of a byte.
func (g *ggufVocabulary) found(id int32) bool {
	if _, added := g.ids[g.texts[id]]; added {
		return true
	}
	return slices.Contains(g.model.fallback[:], id)
}

// allWays returns an error unless the merges have each pair of tokens that spells a third.
func (g *ggufVocabulary) allWays() error {
	skip := map[string]bool{}
	for token := range g.ids {
		skip[token] = true
	}
	for b := range 256 {
		skip[fmt.Sprintf("<0x%02X>", b)] = true
	}
	for id, token := range g.texts {
		if _, ok := g.model.vocab[token]; !g.known[id] || !ok || skip[token] {
			continue
		}
		for at := range token {
			left, right := token[:at], token[at:]
			a, okA := g.model.vocab[left]
			b, okB := g.model.vocab[right]
			if at == 0 || !okA || !okB || skip[left] || skip[right] {
				continue
			}
			if _, ok := g.model.merges[pairKey(a, b)]; !ok {
				return refused("merges: llama.cpp would join %.40q and %.40q, and the list has no such merge: it is not one of SentencePiece", left, right)
			}
		}
	}
	return nil
}
