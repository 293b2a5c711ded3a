package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

const (
	cacheSlots = 1 << 16
	maxCached  = 64 // bytes of a word
)

// cache keeps the tokens of words. A word has one slot, which the last word takes: no
// locks, and a bound on the memory.
type cache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cached]
}

type cached struct {
	word string
	part bool // whether it is a part of a word
	ids  []int32
}

// get returns the tokens of a word, nil if they are not there, and the word's slot.
func (c *cache) get(word string, part bool) (ids []int32, slot *atomic.Pointer[cached]) {
	slot = &c.slots[maphash.String(c.seed, word)%cacheSlots]
	if e := slot.Load(); e != nil && e.word == word && e.part == part {
		return e.ids, slot
	}
	return nil, slot
}

// put stores copies of a word and of its tokens.
func put(slot *atomic.Pointer[cached], word string, part bool, ids []int32) {
	slot.Store(&cached{strings.Clone(word), part, append(make([]int32, 0, len(ids)), ids...)})
}
