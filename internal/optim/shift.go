package optim

import (
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// levels is the number of quantiles. The noise of [Shift] is the sum of two of them.
const levels = 1 << 8

// quantiles returns quantiles of the normal distribution. Each lies in the middle of 1/levels of the probability. They
// are scaled so that the sum of two has a variance of 1. None lies so close to the midpoint between two float32 that
// another processor could round it differently.
var quantiles = sync.OnceValue(func() *[levels]float32 {
	table, exact := new([levels]float32), exactLevels()
	for i, x := range exact {
		table[i] = float32(x)
	}
	return table
})

// MostNoise returns the largest magnitude of [Noise].
func MostNoise() float32 { return 2 * quantiles()[levels-1] }

func exactLevels() *[levels]float64 {
	table, sum := new([levels]float64), 0.0
	for i := range table {
		table[i] = math.Erfinv((2*float64(i) + 1 - levels) / levels)
		sum += float64(table[i] * table[i])
	}
	scale := math.Sqrt(levels / 2 / sum)
	for i := range table {
		table[i] *= scale
	}
	return table
}

// Noise sets x to elements first to first+len(x)-1 of the normal noise z of a stream. Two bytes of the stream choose
// two of 256 quantiles, whose sum is an element of z. Its mean is 0, its variance 1 and its magnitude at most 4.1. Its
// distribution function is within 0.002 of the normal one. words has len(x)/2+2 elements.
func Noise(x []float32, s philox.Stream, first uint64, words []uint32) {
	table, skip := quantiles(), int(first%2)
	halves := s.Halves(words[:(skip+len(x)+1)/2], first/2)[skip:]
	for i := range x {
		h := halves[i]
		x[i] = table[h&0xff] + table[h>>8]
	}
}

// Shift is a pass over the parameter P, a host view: P ← (P + Along·z)·Keep - Size·z, with the noise z of
// Stream. A P of 16 bits is rounded to nearest or, with Random, at random by Draws. The pass runs on all workers and
// allocates nothing.
type Shift struct {
	P                 snug.View
	Stream            philox.Stream
	First             uint64 // index in the parameter of the first element of P
	Along, Keep, Size float32
	Random            bool
	Draws             rounding.Draws // its First is the First of this Shift
	Noise             []float32      // unless nil, replaces the noise of Stream, for tests
}

// shiftGrain is how many elements an item of a Shift has.
const shiftGrain = 1 << 14

// Run makes the pass.
func (s *Shift) Run() { shiftTask.Run(cpu.Chunks(s.P.Len(), shiftGrain), *s) }

var shiftTask = cpu.NewTask(func(s *Shift, item int) {
	lo, end := cpu.Chunk(s.P.Len(), shiftGrain, item)
	scratch := tiles.Get(2 * half.Chunk)
	defer tiles.Put(scratch)
	w := shiftWords.Get().(*[half.Chunk/2 + 2]uint32)
	defer shiftWords.Put(w)
	o := Operands{P: s.P, Random: s.Random, Draws: s.Draws}
	for ; lo < end; lo += half.Chunk {
		n := min(half.Chunk, end-lo)
		z := (*scratch)[half.Chunk:][:n]
		if s.Noise != nil {
			z = s.Noise[lo:][:n]
		} else {
			Noise(z, s.Stream, s.First+uint64(lo), w[:])
		}
		x := half.Floats(s.P, lo, (*scratch)[:n])
		s.shift(x, z)
		o.Flush(lo, x)
	}
})

var shiftWords = sync.Pool{New: func() any { return new([half.Chunk/2 + 2]uint32) }}

func (s *Shift) shift(x, z []float32) {
	z = z[:len(x)]
	if s.Keep == 1 && s.Size == 0 {
		for i, v := range x {
			x[i] = v + float32(s.Along*z[i])
		}
		return
	}
	for i, v := range x {
		x[i] = float32((v+float32(s.Along*z[i]))*s.Keep) - float32(s.Size*z[i])
	}
}
