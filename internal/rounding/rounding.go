// Package rounding is stochastic rounding by the random numbers of streams that are
// named, so that a vector can be rounded in pieces, in any order, on any device, and
// again after a restart, with the same result.
package rounding

import (
	"hash/fnv"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
)

// Draws names the random numbers of a vector: element i takes the 16-bit half
// First+i of the Stream.
type Draws struct {
	philox.Stream
	First uint64
}

// Words have two halves, and come in blocks of four: PerBlock elements share one.
const (
	perWord  = 2
	PerBlock = 4 * perWord
)

// MaxStore is how many elements Store takes at a time.
const MaxStore = 8 << 10

// words holds the random numbers of MaxStore elements and of the block before them.
type words [MaxStore/perWord + PerBlock/perWord]uint32

var pool = sync.Pool{New: func() any { return new(words) }}

// Store rounds up to MaxStore elements of src at random into elements lo and up of a
// host view of float16 or bfloat16. It runs on the calling goroutine and takes
// 16 KiB of scratch.
func (d Draws) Store(dst snug.View, lo int, src []float32) {
	w := pool.Get().(*words)
	defer pool.Put(w)
	k, draws, hi := half.Registry.Best(), d.halves(w, lo, len(src)), lo+len(src)
	if dst.DType() == snug.F16 {
		k.F32ToF16Stochastic(dst.Float16s()[lo:hi], src, draws)
		return
	}
	k.F32ToBF16Stochastic(dst.BFloat16s()[lo:hi], src, draws)
}

// halves returns the random numbers of elements lo to lo+n-1.
func (d Draws) halves(w *words, lo, n int) []uint16 {
	first := d.First + uint64(lo)
	skip := int(first % PerBlock) // halves of the first block that come before
	return d.Halves(w[:cpu.Chunks(skip+n, perWord)], (first-uint64(skip))/perWord)[skip:]
}

// Tensor returns the number of a tensor by its name, the FNV-1a hash.
func Tensor(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// Seed returns number k of the SplitMix64 sequence of seed.
func Seed(seed, k uint64) uint64 {
	z := seed + (k+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
