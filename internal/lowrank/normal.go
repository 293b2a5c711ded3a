package lowrank

import (
	"math"
	"sync"

	"github.com/snug-ml/snug/internal/philox"
)

// normalBits is how many random bits a normal number takes.
const normalBits = 16

// upper is how many normal numbers above 0 there are.
const upper = 1 << (normalBits - 1)

// quantiles returns the upper half of 2^16 quantiles of the normal distribution.
var quantiles = sync.OnceValue(func() *[upper]float32 {
	table := new([upper]float32)
	for i, x := range exactQuantiles() {
		table[i] = float32(x)
	}
	return table
})

// exactQuantiles returns them in float64, each in the middle of its share of the probability, times what gives them a
// variance of 1. None lies so close to the middle of two float32 that another processor could round it otherwise.
func exactQuantiles() *[upper]float64 {
	table, sum := new([upper]float64), 0.0
	for i := range table {
		table[i] = math.Sqrt2 * math.Erfinv((float64(i)+0.5)/upper)
		sum += float64(table[i] * table[i])
	}
	scale := math.Sqrt(upper / sum)
	for i := range table {
		table[i] *= scale
	}
	return table
}

// wordsAt is how many random words exist at a time.
const wordsAt = 1 << 10

var words = sync.Pool{New: func() any { return new([wordsAt]uint32) }}

// Normal sets x to elements first to first+len(x)-1 of the normal numbers that a stream names: independent, with a
// mean of 0, a variance of 1 and magnitudes of up to 4.33. An element takes 16 bits of the stream.
func Normal(x []float32, s philox.Stream, first uint64) {
	table, w := quantiles(), words.Get().(*[wordsAt]uint32)
	defer words.Put(w)
	for len(x) > 0 {
		skip := first % 2
		n := min(len(x), 2*wordsAt-int(skip))
		for i, h := range s.Halves(w[:(int(skip)+n+1)/2], first/2)[skip:][:n] {
			sign := uint32(h) >> (normalBits - 1) << 31
			x[i] = math.Float32frombits(math.Float32bits(table[h&(upper-1)]) | sign)
		}
		x, first = x[n:], first+uint64(n)
	}
}
