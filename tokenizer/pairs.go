package tokenizer

import "math/bits"

// pairs is a Bloom filter of pairs of characters: what it does not have was not added.
// Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970.
type pairs struct {
	words []uint64
	shift int
}

// newPairs returns a filter for n pairs, of 16 to 32 bits a pair.
func newPairs(n int) *pairs {
	log := max(6, bits.Len(uint(n))+4)
	return &pairs{make([]uint64, 1<<log/64), 64 - log}
}

// places returns the two bits of a pair.
func (p *pairs) places(a, b rune) (uint64, uint64) {
	key := uint64(uint32(a))<<32 | uint64(uint32(b))
	h := key * 0x9E3779B97F4A7C15
	h ^= h >> 32
	g := h * 0xD6E8FEB86659FD93
	return h * 0xFF51AFD7ED558CCD >> p.shift, (g ^ g>>29) * 0xC4CEB9FE1A85EC53 >> p.shift
}

func (p *pairs) add(a, b rune) {
	i, j := p.places(a, b)
	p.words[i/64] |= 1 << (i % 64)
	p.words[j/64] |= 1 << (j % 64)
}

func (p *pairs) has(a, b rune) bool {
	i, j := p.places(a, b)
	return p.words[i/64]>>(i%64)&1 != 0 && p.words[j/64]>>(j%64)&1 != 0
}
