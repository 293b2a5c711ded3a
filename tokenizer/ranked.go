package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// rankedBytes is a vocabulary of rows of bytes in the order in which they are merged, as the library tiktoken has them: of all
// neighbors whose bytes together are in the vocabulary, those with the lowest rank are joined first. A word that is in the
// vocabulary is that token.
type rankedBytes struct {
	tokens  []string // by rank, as bytes
	first   int32    // id of the first one
	special []string // of the ids before first
}

// maxWays is the most ways to make a token of two others for each token, beside mergesMore.
const maxWays = 16

func (r *rankedBytes) make(t *Tokenizer) (model, error) {
	m := &bpe{vocab: make(map[string]int32, len(r.tokens)), merges: make(map[uint64]merged, 4*len(r.tokens)), single: slices.Repeat([]int32{-1}, singles),
		named: make(map[string]int32, len(r.special)), wholeWords: true, cache: newCache(), joins: newPairs(4 * len(r.tokens))}
	ids := make(map[string]int32, len(r.tokens))
	for rank, token := range r.tokens {
		id := r.first + int32(rank)
		if _, twice := ids[token]; twice || token == "" || len(token) > maxPiece {
			return nil, damaged("the token of rank %d is %.40q, want 1 to %d bytes that no other token has", rank, token, maxPiece)
		}
		ids[token] = id
		name := spell(token)
		m.vocab[name] = id
		t.name(id, name, name)
		if len(token) == 1 {
			m.single[byteRunes[token[0]]] = id
		}
	}
	for b, r := range byteRunes {
		if m.single[r] < 0 {
			return nil, damaged("no token is the byte 0x%02X", b)
		}
	}
	for rank, token := range r.tokens {
		for at := 1; at < len(token); at++ {
			left, okL := ids[token[:at]]
			right, okR := ids[token[at:]]
			if !okL || !okR {
				continue
			}
			m.merges[pairKey(left, right)] = merged{uint32(rank), ids[token]}
			m.joins.add(byteRunes[token[at-1]], byteRunes[token[at]])
		}
		if most := maxWays*len(r.tokens) + mergesMore; len(m.merges) > most {
			return nil, refused("more than %d ways to make a token of two others", most)
		}
	}
	for id, token := range r.special {
		if _, twice := m.named[token]; twice || token == "" || !utf8.ValidString(token) {
			return nil, damaged("the special token %d is %.100q, want a text that no other special token has", id, token)
		}
		m.named[token] = int32(id)
		t.name(int32(id), token, token)
	}
	return m, nil
}

// sections of the file around the model: a pattern, and bytes.
func (r *rankedBytes) file(pattern string) (*file, error) {
	split, err := plainJSON(map[string]any{"type": "Split", "pattern": map[string]string{"Regex": pattern}, "behavior": "Isolated", "invert": false})
	if err != nil {
		return nil, err
	}
	f := &file{Model: modelPart{r}, Decoder: []byte(bytesDecoder)}
	f.PreTokenizer = slices.Concat([]byte(`{"type":"Sequence","pretokenizers":[`), split, []byte(`,{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`))
	return f, nil
}
