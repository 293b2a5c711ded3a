package tokenizer

import (
	"bytes"
	"slices"
	"strings"
)

// trie has the tokens of a vocabulary by their bytes. The children of a node are neighbors in the order of their bytes, and
// nodes are numbered by their depth: the children of node i are first[i] to first[i+1]-1.
type trie struct {
	bytes []byte   // by node: the byte that leads to it
	first []uint32 // by node, and one more
	value []int32  // by node: the id of the token that ends there, -1 for none
}

// keyed is a token with its id.
type keyed struct {
	token string
	id    int32
}

// newTrie makes a trie. Of equal tokens the last one counts. Empty tokens are left out. It takes 9 bytes of memory for each
// different beginning of a token.
func newTrie(tokens []keyed) *trie {
	slices.SortStableFunc(tokens, func(a, b keyed) int { return strings.Compare(a.token, b.token) })
	t := &trie{bytes: []byte{0}, value: []int32{-1}}
	type part struct{ from, to, depth int } // tokens with a common beginning
	for queue, at := []part{{0, len(tokens), 0}}, 0; at < len(queue); at++ {
		p := queue[at]
		queue[at] = part{}
		t.first = append(t.first, uint32(len(t.bytes)))
		for p.from < p.to && len(tokens[p.from].token) == p.depth {
			if p.depth > 0 {
				t.value[at] = tokens[p.from].id
			}
			p.from++
		}
		for p.from < p.to {
			b, end := tokens[p.from].token[p.depth], p.from+1
			for end < p.to && tokens[end].token[p.depth] == b {
				end++
			}
			t.bytes, t.value = append(t.bytes, b), append(t.value, -1)
			queue = append(queue, part{p.from, end, p.depth + 1})
			p.from = end
		}
	}
	t.first = append(t.first, uint32(len(t.bytes)))
	return t
}

// next returns the child of a node by a byte, 0 for none.
func (t *trie) next(node uint32, b byte) uint32 {
	from, to := t.first[node], t.first[node+1]
	if to-from > 64 && int(b) < int(to-from) && t.bytes[from+uint32(b)] == b { // all bytes up to this one
		return from + uint32(b)
	}
	if to-from <= 8 {
		for i, c := range t.bytes[from:to] {
			if c == b {
				return from + uint32(i)
			}
		}
		return 0
	}
	if i := bytes.IndexByte(t.bytes[from:to], b); i >= 0 {
		return from + uint32(i)
	}
	return 0
}
