package lowrank

import (
	"math"
	"sync"

	"github.com/snug-ml/snug/internal/philox"
)

// normalBits is how many random bits a normal number takes.
const normalBits = 16

// quantiles returns the upper half of 2^16 quantiles of the normal distribution, each in the middle of its share of
// the probability, times what gives them a variance of 1. None lies so close to the middle between two float32 that
// another processor could round it otherwise.
var quantiles = sync.OnceValue(func() *[1 << (normalBits - 1)]float32 {
	var exact [1 << (normalBits - 1)]float64
	sum := 0.0
	for i := range exact {
		exact[i] = math.Sqrt2 * math.Erfinv((float64(i)+0.5)/float64(len(exact)))
		sum += float64(exact[i] * exact[i])
	}
	scale, table := math.Sqrt(float64(len(exact))/sum), new([1 << (normalBits - 1)]float32)
	for i, x := range exact {
		table[i] = float32(x * scale)
	}
	return table
})

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
			x[i] = math.Float32frombits(math.Float32bits(table[h&(1<<(normalBits-1)-1)]) | sign)
		}
		x, first = x[n:], first+uint64(n)
	}
}
