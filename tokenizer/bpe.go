package tokenizer

import (
	"fmt"
	"math"
	"sync"
	"unicode/utf8"
)

// bpe is byte pair encoding: Sennrich, Haddow and Birch, "Neural Machine Translation of
// Rare Words with Subword Units", 2016. A word begins as its characters. The pair of
// neighbours whose merge comes first in the file's list is joined, the leftmost of equal
// ones, until no merge applies.
type bpe struct {
	vocab  map[string]int32
	merges map[uint64]merged // by the two ids
	single []int32           // ids of characters from U+0000 on, -1 for none

	prefix, suffix string // of characters that do not begin a word, and of the last one
	unknown        *string
	fuseUnknown    bool
	fallback       *[256]int32 // tokens of bytes, -1 for none; nil without byte_fallback
	wholeWords     bool        // ignore_merges: a word that is a token is that token

	named map[string]int32 // ids of tokens that no text becomes
	user  *matcher         // tokens that stand for their text wherever it is, and are not merged; nil for none

	joins *pairs // characters that a merge may join; nil where that is not known
	cache *cache
}

// merged is what becomes of a pair: the first one in the list has rank 0.
type merged struct {
	rank uint32
	id   int32
}

const singles = 0x3000

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// encode appends the tokens of a word.
func (m *bpe) encode(dst []int32, p piece) ([]int32, error) {
	if p.text == "" {
		return dst, nil
	}
	return m.cache.cached(dst, p.text, false, func(dst []int32) ([]int32, error) { return m.word(dst, spelled(p)) })
}

// spelled returns the word as the vocabulary spells it.
func spelled(p piece) string {
	if p.raw {
		return spell(p.text)
	}
	return p.text
}

// word appends the tokens of a word that is not in the cache.
func (m *bpe) word(dst []int32, word string) ([]int32, error) {
	if m.wholeWords {
		if id, ok := m.vocab[word]; ok {
			return append(dst, id), nil
		}
	}
	if len(word) <= maxCached || m.joins == nil {
		return m.merge(dst, word)
	}
	err := m.parts(word, func(part string) (err error) {
		dst, err = m.part(dst, part)
		return err
	})
	return dst, err
}

// parts calls f with the parts of a long word between borders that no merge crosses. They are words of their own.
func (m *bpe) parts(word string, f func(part string) error) error {
	from := 0
	before, at := utf8.DecodeRuneInString(word)
	for at < len(word) {
		r, size := utf8.DecodeRuneInString(word[at:])
		if m.joins != nil && !m.joins.has(before, r) && m.known(before) && m.known(r) {
			if err := f(word[from:at]); err != nil {
				return err
			}
			from = at
		}
		before = r
		at += size
	}
	return f(word[from:])
}

// part appends the tokens of a part of a word.
func (m *bpe) part(dst []int32, part string) ([]int32, error) {
	return m.cache.cached(dst, part, true, func(dst []int32) ([]int32, error) { return m.merge(dst, part) })
}

func (m *bpe) known(r rune) bool {
	if r < singles {
		return m.single[r] >= 0
	}
	_, ok := m.vocab[string(r)]
	return ok
}

// symbol is a token of a word while it is merged.
type symbol struct {
	id         int32
	prev, next int32 // places of the neighbours, -1 for none
	gone       bool  // joined to the one before
}

// candidate is a merge that may apply: the smallest key first.
type candidate struct {
	key uint64 // rank and place of the left symbol
	id  int32
}

// scratch is the memory of a merge.
type scratch struct {
	symbols []symbol
	queue   []candidate
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// merge appends the tokens of a word, in time O(n log n).
func (m *bpe) merge(dst []int32, word string) ([]int32, error) {
	if len(word) > math.MaxInt32 {
		return dst, fmt.Errorf("a word of %d bytes after the normalizer, want %d at most", len(word), math.MaxInt32)
	}
	if len(word) > longWord {
		n := len(dst)
		err := m.windows(word, symbolWindow, func(ids []int32) error {
			dst = append(dst, ids...)
			return nil
		})
		if err != errFar {
			return dst, err
		}
		dst = dst[:n]
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.reset()
	if err := (&characters{bpe: m, word: word}).add(s, math.MaxInt); err != nil {
		return dst, err
	}
	s.merge(m)
	for i := range s.symbols {
		if !s.symbols[i].gone {
			dst = append(dst, s.symbols[i].id)
		}
	}
	return dst, nil
}

func (s *scratch) reset() { s.symbols, s.queue = s.symbols[:0], s.queue[:0] }

// merge joins symbols until no merge applies.
func (s *scratch) merge(m *bpe) {
	for i := range len(s.symbols) - 1 {
		s.offer(m, int32(i))
	}
	for len(s.queue) > 0 {
		top := s.pop()
		at := int32(uint32(top.key))
		left := &s.symbols[at]
		if left.gone || left.next < 0 {
			continue
		}
		right := &s.symbols[left.next]
		if now, ok := m.merges[pairKey(left.id, right.id)]; !ok || now.id != top.id {
			continue // the pair has changed since
		}
		left.id, left.next = top.id, right.next
		right.gone = true
		if right.next >= 0 {
			s.symbols[right.next].prev = at
		}
		if left.prev >= 0 {
			s.offer(m, left.prev)
		}
		if left.next >= 0 {
			s.offer(m, at)
		}
	}
}

// characters are the characters of a word, which are taken apart in order.
type characters struct {
	*bpe
	word    string
	at      int
	unknown int32 // 1 and a token that waits for what comes next, 0 for none
}

// add adds symbols to s until it has n or more, or the word ends. A character may add several.
func (m *characters) add(s *scratch, n int) error {
	for m.at < len(m.word) && len(s.symbols) < n {
		at, word := m.at, m.word
		if m.user != nil && m.user.starts[word[at]] {
			if i, size := m.user.longest(word[at:]); i >= 0 {
				m.flush(s)
				s.add(m.user.tokens[i].id)
				m.at += size
				continue
			}
		}
		r, size := utf8.DecodeRuneInString(word[at:])
		text := word[at : at+size]
		id, ok := int32(-1), false
		if m.prefix == "" && m.suffix == "" && r < singles {
			id = m.single[r]
			ok = id >= 0
		} else {
			if at > 0 && m.prefix != "" {
				text = m.prefix + text
			}
			if at+size == len(word) && m.suffix != "" {
				text += m.suffix
			}
			id, ok = m.vocab[text]
		}
		m.at += size
		if ok {
			m.flush(s)
			s.add(id)
			continue
		}
		if m.fallback != nil && m.bytes(s, text) || m.bpe.unknown == nil {
			continue
		}
		if m.unknown > 0 && m.fuseUnknown {
			continue
		}
		m.flush(s)
		id, ok = m.vocab[*m.bpe.unknown]
		if !ok {
			return fmt.Errorf("no token for %+q, and the unknown token %q is not in the vocabulary", text, *m.bpe.unknown)
		}
		m.unknown = id + 1
	}
	if m.at == len(m.word) {
		m.flush(s)
	}
	return nil
}

// flush adds the unknown token that waits.
func (m *characters) flush(s *scratch) {
	if m.unknown > 0 {
		s.add(m.unknown - 1)
		m.unknown = 0
	}
}

// bytes adds the tokens of the bytes of text if there is one for each.
func (m *bpe) bytes(s *scratch, text string) bool {
	for i := range len(text) {
		if m.fallback[text[i]] < 0 {
			return false
		}
	}
	for i := range len(text) {
		s.add(m.fallback[text[i]])
	}
	return true
}

// add appends a symbol.
func (s *scratch) add(id int32) {
	n := int32(len(s.symbols))
	if n > 0 {
		s.symbols[n-1].next = n
	}
	s.symbols = append(s.symbols, symbol{id: id, prev: n - 1, next: -1})
}

// offer queues the merge of the symbol at a place with the next one, if there is one.
func (s *scratch) offer(m *bpe, at int32) {
	left := s.symbols[at]
	to, ok := m.merges[pairKey(left.id, s.symbols[left.next].id)]
	if !ok {
		return
	}
	s.queue = append(s.queue, candidate{uint64(to.rank)<<32 | uint64(uint32(at)), to.id})
	q := s.queue
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if q[up].key <= q[i].key {
			break
		}
		q[up], q[i] = q[i], q[up]
		i = up
	}
}

// pop takes the first candidate off the queue.
func (s *scratch) pop() candidate {
	q := s.queue
	top, n := q[0], len(q)-1
	q[0] = q[n]
	s.queue = q[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return top
		}
		if down+1 < n && q[down+1].key < q[down].key {
			down++
		}
		if q[i].key <= q[down].key {
			return top
		}
		q[i], q[down] = q[down], q[i]
		i = down
	}
}
