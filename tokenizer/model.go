package tokenizer

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"unicode/utf8"
)

// Ids may be this much larger than the number of tokens.
const (
	spreadTimes = 8
	spreadMore  = 1 << 16
)

// build makes the model and enters its tokens in t.
func (f *modelFile) build(t *Tokenizer) (*bpe, error) {
	if f.Dropout != nil && *f.Dropout != 0 {
		return nil, refused("dropout %v, want 0: tokens would be random", *f.Dropout)
	}
	m := &bpe{
		vocab: make(map[string]int32, len(f.Vocab)), merges: make(map[uint64]merged, len(f.Merges)),
		single: slices.Repeat([]int32{-1}, singles), cache: &cache{maphash.MakeSeed(), make([]atomic.Pointer[cached], cacheSlots)},
		prefix: text(f.Prefix), suffix: text(f.Suffix), unknown: f.Unknown,
		fuseUnknown: isSet(f.FuseUnknown), wholeWords: isSet(f.IgnoreMerges),
	}
	most := uint32(spreadTimes*len(f.Vocab) + spreadMore)
	for token, id := range f.Vocab {
		if id >= most {
			return nil, damaged("vocab: id %d of %.100q among %d tokens, want less than %d", id, token, len(f.Vocab), most)
		}
		if old, taken := t.taken(int32(id)); taken {
			return nil, damaged("vocab: %.100q and %.100q both have id %d", min(old, token), max(old, token), id)
		}
		m.vocab[token] = int32(id)
		t.name(int32(id), token, token)
		if r, size := utf8.DecodeRuneInString(token); size == len(token) && size > 0 && r < singles {
			m.single[r] = int32(id)
		}
	}
	if isSet(f.ByteFallback) {
		m.fallback = new([256]int32)
		for b := range m.fallback {
			id, ok := m.vocab[fmt.Sprintf("<0x%02X>", b)]
			if !ok {
				id = -1
			}
			m.fallback[b] = id
		}
	}
	return m, m.addMerges(f.Merges)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func isSet(b *bool) bool { return b != nil && *b }

// addMerges enters the merges of the file, in their order.
func (m *bpe) addMerges(list []mergeFile) error {
	m.joins = newPairs(len(list))
	if m.prefix != "" || m.suffix != "" {
		m.joins = nil // characters have other tokens at the borders of words
	}
	odd := map[int32]bool{} // tokens that stand for other text than their own
	if m.unknown != nil {
		odd[m.vocab[*m.unknown]] = true
	}
	if m.fallback != nil {
		for _, id := range m.fallback {
			odd[id] = true
		}
	}
	var whole []byte
	rank := uint32(0)
	for i, pair := range list {
		if pair.joined != list[0].joined {
			return damaged(`merges: [%d] has another form than [0]: "a b" or ["a","b"]`, i)
		}
		if pair.comment {
			continue
		}
		a, okA := m.vocab[pair.a]
		b, okB := m.vocab[pair.b]
		whole = append(whole[:0], pair.a...)
		if okB = okB && len(pair.b) >= len(m.prefix); okB {
			whole = append(whole, pair.b[len(m.prefix):]...)
		}
		id, ok := m.vocab[string(whole)]
		if !okA || !okB || !ok {
			return damaged("merges: [%d] joins %.100q and %.100q, which with their result must be in the vocabulary", i, pair.a, pair.b)
		}
		m.merges[pairKey(a, b)] = merged{rank, id}
		rank++
		if odd[a] || odd[b] {
			m.joins = nil
		}
		if m.joins != nil {
			before, _ := utf8.DecodeLastRuneInString(pair.a)
			after, _ := utf8.DecodeRuneInString(pair.b)
			m.joins.add(before, after)
		}
	}
	return nil
}

// taken returns the token that has an id already.
func (t *Tokenizer) taken(id int32) (token string, ok bool) {
	if int(id) >= len(t.known) {
		return "", false
	}
	return t.texts[id], t.known[id]
}
