package fused

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
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

// slopes say how logits z become gradients, before the slope of the cap:
//
//	factor·exp(z[j] − base) + shift − less[j] − Σ hit·hits[k] over k with targets[k] = j
type slopes struct {
	powers  bool    // z holds the exponentials already; then there is no cap
	base    float32 // the peak, or lse
	factor  float32
	shift   float32
	less    []float32 // nil: 0
	targets []int32   // those of other tiles, and negative ones, count nothing
	hits    []float32 // nil: 1
	hit     float32
}

func (s *slopes) hitOf(i int) float32 {
	if s.hits == nil {
		return 1
	}
	return s.hits[i]
}

// gradient replaces the logits z by their gradients. buf has expBlock elements.
func (a *logitArgs) gradient(z []float32, s slopes, buf []float32) {
	k := rowwise.Registry.Best()
	for at := 0; at < len(z); at += expBlock {
		block := z[at:min(at+expBlock, len(z))]
		caps := buf[:len(block)]
		if a.limit != 0 {
			k.SoftcapSlopes(caps, block, 1/(a.limit*a.scale), 1)
		}
		if !s.powers {
			k.ExpSum(block, block, s.base)
		}
		k.ScaleAbove(block, s.factor, flushBelow)
		if s.shift != 0 {
			for i := range block {
				block[i] += s.shift
			}
		}
		if s.less != nil {
			k.Axpby(block, s.less[at:][:len(block)], -1, 1)
		}
		for i, t := range s.targets {
			if j := int(t) - a.from - at; t >= 0 && 0 <= j && j < len(block) {
				block[j] -= s.hit * s.hitOf(i)
			}
		}
		if a.limit != 0 {
			k.ScoreGrad(block, caps, 0, 1) // a product
		}
	}
}

// expBlock is how many exponentials are added in float32.
const expBlock = 1024

// expSum sets dst[j] to exp(z[j] − peak) and returns their sum. Without a dst they go to
// waste, in a block.
func expSum(dst, z []float32, peak float32, waste []float32) (total float64) {
	k := rowwise.Registry.Best()
	for len(z) > 0 {
		n := min(expBlock, len(z))
		to := waste
		if dst != nil {
			to, dst = dst, dst[n:]
		}
		total += float64(k.ExpSum(to[:n], z[:n], peak))
		z = z[n:]
	}
	return total
}

// flushBelow is where exponentials are set to zero. Their sum is at least 1, so
// that this changes no bit of it, and their gradients would soon be subnormal
// numbers, with which processors multiply up to a hundred times slower.
const flushBelow = 0x1p-60

// rowStats is what the tiles of a row of logits leave, RowStats of head.h. The sum of
// the exponentials, less the peak, is hi + lo: the float64 to 48 bits. aim is Σ q[j]·z[j] over the
// distribution q that the row should have, which is z[t] for a target t.
type rowStats struct{ peak, hi, lo, aim float32 }

// statsLen is the float32 elements of a row's statistics.
const statsLen = int(unsafe.Sizeof(rowStats{}) / 4)

// statsOf returns the statistics that v holds.
func statsOf(v snug.View) []rowStats {
	x := v.Float32s()
	return unsafe.Slice((*rowStats)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/statsLen)
}

func (s *rowStats) total() float64 { return float64(s.hi) + float64(s.lo) }

func (s *rowStats) setTotal(x float64) {
	s.hi = float32(x)
	s.lo = float32(x - float64(s.hi))
}

// lse returns the logarithm of the sum of the exponentials.
func (s *rowStats) lse() float64 { return float64(s.peak) + math.Log(s.total()) }

// rise brings the statistics to the peak of both what came before and the logits z. It returns the
// base of exponentials, and what the sums of earlier ones are to be multiplied by.
func (s *rowStats) rise(z []float32) (base float32, factor float64) {
	peak := rowwise.Registry.Best().Max(z, 1, s.peak)
	factor = 1
	if peak != s.peak {
		factor = math.Exp(float64(s.peak) - float64(peak))
	}
	s.peak = peak
	if math.IsInf(float64(peak), -1) {
		return 0, factor // as yet there are logits of −Inf and NaN only
	}
	return peak, factor
}

// fold adds the logits z of a tile, which become exponentials.
func (s *rowStats) fold(z []float32) {
	base, factor := s.rise(z)
	s.setTotal(s.total()*factor + expSum(z, z, base, nil))
}

// begun returns the statistics of a row before its first tile.
func begun() rowStats { return rowStats{peak: float32(math.Inf(-1))} }
