package fused

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// logitArgs are the products of a chunk of rows and a tile of classes, and what makes logits, and
// then gradients, of them.
type logitArgs struct {
	logits      []float32
	rows, vocab int // vocab: the classes of the tile
	from        int // the first of them
	bias        snug.View
	limit       float32 // of the cap; 0: none
	scale       float32 // 1/Temperature
	narrow      bool    // gradients are wanted as bfloat16, at the start of each row
}

func (a *logitArgs) logitsOf(r int) []float32 { return a.logits[r*a.vocab:][:a.vocab] }

// items returns the items of a task over the rows, and each calls f for the rows of one. buf has expBlock elements.
func (a *logitArgs) items() int { return cpu.Chunks(a.rows, itemRows(a.vocab)) }

func (a *logitArgs) each(item int, f func(r int, buf []float32)) {
	buf := scratch.Get(expBlock)
	defer scratch.Put(buf)
	lo, hi := cpu.Chunk(a.rows, itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		f(r, *buf)
	}
}

// finish makes logits of the products z: it adds the bias, caps, and divides by the temperature. buf has expBlock
// elements.
func (a *logitArgs) finish(z, buf []float32) {
	k := rowwise.Registry.Best()
	if a.bias.Len() > 0 {
		scale := a.scale
		if a.limit != 0 {
			scale = 1 // which comes after the cap
		}
		for at := 0; at < len(z); at += expBlock {
			block := z[at:min(at+expBlock, len(z))]
			k.Axpby(block, load(buf[:len(block)], a.bias, a.from+at), scale, 1)
		}
	}
	if a.limit != 0 {
		k.Softcap(z, 1/a.limit, a.limit*a.scale)
	}
}

// round rounds the gradients of a row to bfloat16, if that is wanted.
func (a *logitArgs) round(r int) {
	if !a.narrow {
		return
	}
	z := a.logitsOf(r)
	dst := bfloat16s(z)
	for at := 0; at < len(z); at += half.Chunk {
		end := min(at+half.Chunk, len(z))
		half.Store(dst, at, z[at:end])
	}
}

// bfloat16s returns the memory of x as bfloat16.
func bfloat16s(x []float32) snug.View {
	return snug.SliceView(unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x)))
}

// dlogits say how logits z become their gradients, before the derivative of the cap:
//
//	factor·exp(z[j] − max) + shift − less[j] − Σ hit·hits[k] over k with targets[k] = j
type dlogits struct {
	exps    bool    // z holds the exponentials already; then there is no cap
	max     float32 // or lse
	factor  float32
	shift   float32
	less    []float32 // nil: 0
	targets []int32   // those of other tiles, and negative ones, count nothing
	hits    []float32 // nil: 1
	hit     float32
}

func (d *dlogits) hitOf(i int) float32 {
	if d.hits == nil {
		return 1
	}
	return d.hits[i]
}

// gradient replaces the logits z by their gradients. buf has expBlock elements.
func (a *logitArgs) gradient(z []float32, d dlogits, buf []float32) {
	k := rowwise.Registry.Best()
	for at := 0; at < len(z); at += expBlock {
		block := z[at:min(at+expBlock, len(z))]
		caps := buf[:len(block)]
		if a.limit != 0 {
			k.SoftcapSlopes(caps, block, 1/(a.limit*a.scale), 1)
		}
		if !d.exps {
			k.ExpSum(block, block, d.max)
		}
		k.ScaleAbove(block, d.factor, flushBelow)
		if d.shift != 0 {
			for i := range block {
				block[i] += d.shift
			}
		}
		if d.less != nil {
			k.Axpby(block, d.less[at:][:len(block)], -1, 1)
		}
		for i, t := range d.targets {
			if j := int(t) - a.from - at; t >= 0 && 0 <= j && j < len(block) {
				block[j] -= d.hit * d.hitOf(i)
			}
		}
		if a.limit != 0 {
			k.ScoreGrad(block, caps, 0, 1) // a product
		}
	}
}

// expBlock is how many exponentials are added in float32.
const expBlock = 1024

// expSum sets dst[j] to exp(z[j] − max) and returns their sum. Without a dst they go to
// waste, in a block.
func expSum(dst, z []float32, max float32, waste []float32) (sumExp float64) {
	k := rowwise.Registry.Best()
	for len(z) > 0 {
		n := min(expBlock, len(z))
		to := waste
		if dst != nil {
			to, dst = dst, dst[n:]
		}
		sumExp += float64(k.ExpSum(to[:n], z[:n], max))
		z = z[n:]
	}
	return sumExp
}

// flushBelow is where exponentials are set to zero. Their sum is at least 1, so
// that this changes no bit of it, and their gradients would soon be subnormal
// numbers, with which processors multiply up to a hundred times slower.
const flushBelow = 0x1p-60

// rowStats is what the tiles of a row of logits leave, RowStats of head.h, by the online softmax of Milakov and Gimelshein,
// "Online normalizer calculation for softmax" (2018):
//
//	max'    = max(max, max_j z[j])
//	sumExp' = exp(max − max')·sumExp + Σ_j exp(z[j] − max')
//
// sumExp is hi + lo: the float64 to 48 bits. targetLogit is Σ q[j]·z[j] over the distribution q that the row should have,
// z[t] for a target t without Smoothing.
type rowStats struct{ max, hi, lo, targetLogit float32 }

// statsLen is the float32 elements of a row's statistics.
const statsLen = int(unsafe.Sizeof(rowStats{}) / 4)

// statsOf returns the statistics that v holds.
func statsOf(v snug.View) []rowStats {
	x := v.Float32s()
	return unsafe.Slice((*rowStats)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/statsLen)
}

func (s *rowStats) sumExp() float64 { return float64(s.hi) + float64(s.lo) }

func (s *rowStats) setSumExp(x float64) {
	s.hi = float32(x)
	s.lo = float32(x - float64(s.hi))
}

// lse returns the logarithm of the sum of the exponentials.
func (s *rowStats) lse() float64 { return float64(s.max) + math.Log(s.sumExp()) }

// raise takes the logits z into max. It returns the maximum to subtract before exponentials are taken, 0 while every logit is
// −Inf or NaN, and the factor by which the sum of earlier exponentials changes.
func (s *rowStats) raise(z []float32) (finite float32, factor float64) {
	before := s.max
	s.max = rowwise.Registry.Best().Max(z, 1, before)
	factor = 1
	if s.max != before {
		factor = math.Exp(float64(before) - float64(s.max))
	}
	if math.IsInf(float64(s.max), -1) {
		return 0, factor // as yet there are logits of −Inf and NaN only
	}
	return s.max, factor
}

// fold adds the logits z of a tile, which become exponentials.
func (s *rowStats) fold(z []float32) {
	max, factor := s.raise(z)
	s.setSumExp(s.sumExp()*factor + expSum(z, z, max, nil))
}

// noLogits returns the statistics of a row before its first tile.
func noLogits() rowStats { return rowStats{max: float32(math.Inf(-1))} }
