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
	sortKeyed(tokens)
	n := beginnings(tokens)
	t := &trie{bytes: make([]byte, 1, n+1), value: make([]int32, 1, n+1), first: make([]uint32, 0, n+2)}
	t.value[0] = -1
	type part struct{ from, to int32 } // tokens with a common beginning of depth bytes
	level, below := []part{{0, int32(len(tokens))}}, []part{}
	for depth := 0; len(level) > 0; depth++ {
		for _, p := range level {
			at := len(t.first)
			t.first = append(t.first, uint32(len(t.bytes)))
			for p.from < p.to && len(tokens[p.from].token) == depth {
				if depth > 0 {
					t.value[at] = tokens[p.from].id
				}
				p.from++
			}
			for p.from < p.to {
				b, end := tokens[p.from].token[depth], p.from+1
				for end < p.to && tokens[end].token[depth] == b {
					end++
				}
				t.bytes, t.value = append(t.bytes, b), append(t.value, -1)
				below = append(below, part{p.from, end})
				p.from = end
			}
		}
		level, below = below, level[:0]
	}
	t.first = append(t.first, uint32(len(t.bytes)))
	return t
}

// sortKeyed sorts tokens by their bytes.
func sortKeyed(tokens []keyed) {
	slices.SortStableFunc(tokens, func(a, b keyed) int { return strings.Compare(a.token, b.token) })
}

// beginnings returns how many different beginnings of some length sorted tokens have.
func beginnings(sorted []keyed) (n int) {
	before := ""
	for _, k := range sorted {
		same := 0
		for same < min(len(before), len(k.token)) && before[same] == k.token[same] {
			same++
		}
		n += len(k.token) - same
		before = k.token
	}
	return n
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
