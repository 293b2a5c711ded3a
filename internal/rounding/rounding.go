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
	"github.com/snug-ml/snug/internal/sweep"
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

// Kernels are the loops of one tier that compute random numbers and round by them.
type Kernels struct {
	// BF16 rounds a vector whose element i takes half i%PerBlock of block first+i/PerBlock.
	BF16 func(dst []snug.BFloat16, src []float32, s philox.Stream, first uint64)
	// BF16Stream is BF16 that keeps dst out of the caches where it can.
	BF16Stream func(dst []snug.BFloat16, src []float32, s philox.Stream, first uint64)

	// Accumulate, unless nil, does elements of [Draws.Accumulate], from element lo of g on,
	// and returns how many: all or a multiple of PerBlock.
	Accumulate func(acc []snug.BFloat16, g snug.View, lo int, alpha, beta float32, s philox.Stream, first uint64) int
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, Kernels{BF16: toBF16, BF16Stream: toBF16}) }

// Store rounds src at random into elements lo and up of a host view of float16 or
// bfloat16. It runs on the calling goroutine and takes 16 KiB of scratch.
func (d Draws) Store(dst snug.View, lo int, src []float32) {
	d.store(dst, lo, src, Registry.Best().BF16)
}

// StoreStream is Store for results that caches would not hold until they are read.
func (d Draws) StoreStream(dst snug.View, lo int, src []float32) {
	d.store(dst, lo, src, Registry.Best().BF16Stream)
}

func (d Draws) store(dst snug.View, lo int, src []float32, toBF16 func([]snug.BFloat16, []float32, philox.Stream, uint64)) {
	first, hi := d.First+uint64(lo), lo+len(src)
	if dst.DType() == snug.F16 {
		inTiles(dst.Float16s()[lo:hi], src, d.Stream, first, half.Registry.Best().F32ToF16Stochastic)
		return
	}
	to := dst.BFloat16s()[lo:hi]
	if skip := first % PerBlock; skip > 0 { // up to the next block
		n := min(int(PerBlock-skip), len(src))
		inTiles(to[:n], src[:n], d.Stream, first, half.Registry.Best().F32ToBF16Stochastic)
		to, src, first = to[n:], src[n:], first+uint64(n)
	}
	toBF16(to, src, d.Stream, first/PerBlock)
}

func toBF16(dst []snug.BFloat16, src []float32, s philox.Stream, first uint64) {
	inTiles(dst, src, s, first*PerBlock, half.Registry.Best().F32ToBF16Stochastic)
}

// Split24 rounds src at random to 24 bits and stores them as a bfloat16 and a byte, see [half.Splits]. Element i
// takes the 16 random bits of number First+lo+i. Split24 runs on the calling goroutine and takes 16 KiB of scratch.
func (d Draws) Split24(upper []snug.BFloat16, rest []int8, lo int, src []float32) {
	w, k, first := pool.Get().(*words), half.Split24Registry.Best(), d.First+uint64(lo)
	defer pool.Put(w)
	for len(src) > 0 {
		n := min(tile, len(src))
		k.SplitStochastic(upper[:n], rest[:n], src[:n], w.halves(d.Stream, first, n))
		upper, rest, src, first = upper[n:], rest[n:], src[n:], first+uint64(n)
	}
}

// Accumulate computes acc = alpha·g + beta·acc, for the len(acc) elements of g, a host view,
// from lo on. Both products are rounded, and the sum to float32 and then at random to acc,
// whose element 0 takes half First+lo. beta is not 0. It takes 20 KiB of scratch.
func (d Draws) Accumulate(acc []snug.BFloat16, g snug.View, lo int, alpha, beta float32) {
	d.accumulate(Registry.Best(), acc, g, lo, alpha, beta)
}

func (d Draws) accumulate(k *Kernels, acc []snug.BFloat16, g snug.View, lo int, alpha, beta float32) {
	scratch := sums.Get(half.Chunk)
	defer sums.Put(scratch)
	for len(acc) > 0 {
		first, n := d.First+uint64(lo), min(half.Chunk, len(acc))
		skip := first % PerBlock
		switch {
		case skip > 0:
			n = min(int(PerBlock-skip), len(acc)) // up to the next block
		case k.Accumulate != nil:
			done := k.Accumulate(acc, g, lo, alpha, beta, d.Stream, first/PerBlock)
			acc, lo = acc[done:], lo+done
			if n = min(n, len(acc)); done > 0 {
				continue
			}
		}
		sum := (*scratch)[:n]
		half.Registry.Best().BF16ToF32(sum, acc[:n])
		sweep.Accumulate(sum, g, lo, alpha, beta)
		Draws{d.Stream, first}.store(snug.ViewOf(acc[:n]), 0, sum, k.BF16)
		acc, lo = acc[n:], lo+n
	}
}

// sums are the scratch of running workers.
var sums cpu.Scratch

// tile is how many elements are rounded at a time, from random numbers in scratch.
const tile = 8 << 10

// words holds the random numbers of a tile and of the block before it.
type words [tile/perWord + PerBlock/perWord]uint32

var pool = sync.Pool{New: func() any { return new(words) }}

// inTiles rounds a vector whose element i takes half first+i of a stream.
func inTiles[T snug.Element](dst []T, src []float32, s philox.Stream, first uint64, round func([]T, []float32, []uint16)) {
	w := pool.Get().(*words)
	defer pool.Put(w)
	for len(src) > 0 {
		n := min(tile, len(src))
		round(dst[:n], src[:n], w.halves(s, first, n))
		dst, src, first = dst[n:], src[n:], first+uint64(n)
	}
}

// halves returns halves first to first+n-1 of a stream.
func (w *words) halves(s philox.Stream, first uint64, n int) []uint16 {
	skip := int(first % PerBlock) // halves of the first block that come before
	return s.Halves(w[:cpu.Chunks(skip+n, perWord)], (first-uint64(skip))/perWord)[skip:]
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
