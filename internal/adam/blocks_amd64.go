//go:build !noasm && gc

package adam

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/half"
)

// block8 is what the assembly takes, at the offsets that its generator names: a
// block to update and the one before, to encode.
type block8 struct {
	p, g             unsafe.Pointer
	fresh            *float32 // the new moments: 16 of the first, 16 of the second, and so on
	codes1, codes2   *uint8
	map1, map2       *[256]float32
	coef             Coef
	absmax1, absmax2 float32
	top1, top2       uint32 // results: the bits of the largest magnitudes

	before    before
	quotient1 blockq.Quick
	quotient2 blockq.Quick
}

// before is the block before, whose codes are to be written.
type before struct {
	fresh          *float32
	codes1, codes2 *uint8
}

// run8 is a run of blocks of n elements.
type run8 struct {
	block8
	n       int
	s       Blocks8
	waiting bool // the block before has no codes yet
}

// blockwiseAVX512 does blocks whose length is not a multiple of step.
var blockwiseAVX512 = blockwise(vector(updateAVX512))

// step8 encodes a block while it updates the next one: the former loads from
// tables, the latter waits for divisions and roots. Elements of p and g that are
// not of one type are converted.
func step8(c Coef, p, g snug.View, lo, hi int, s Blocks8, tile []float32) {
	r := run8{n: s.Block, s: s}
	whole := 0
	if r.n%step == 0 {
		whole = (hi - lo) / r.n
	}
	r.coef = c
	r.map1, r.map2 = s.Encoder1.Values(), s.Encoder2.Values()
	for b := range whole {
		r.update(p, g, lo+b*r.n, b, tile)
	}
	if r.waiting {
		encode8AVX512((*byte)(unsafe.Pointer(&r.block8)), r.n)
	}
	rest := lo + whole*r.n
	blockwiseAVX512(c, p, g, rest, hi, s.From(whole), tile)
}

// update does block b, whose first element is lo.
func (r *run8) update(p, g snug.View, lo, b int, tile []float32) {
	n := r.n
	fresh := tile[b%2*2*n:][:2*n]
	r.fresh = &fresh[0]
	r.codes1, r.codes2 = &r.s.Codes1[b*n:][:n][0], &r.s.Codes2[b*n:][:n][0]
	r.absmax1, r.absmax2 = r.s.Absmax1[b], r.s.Absmax2[b]
	at := (*byte)(unsafe.Pointer(&r.block8))
	switch dt := p.DType(); {
	case dt != g.DType():
		pt := half.Floats(p, lo, tile[4*n:5*n])
		gt := half.Floats(g, lo, tile[5*n:6*n])
		r.p, r.g = unsafe.Pointer(&pt[0]), unsafe.Pointer(&gt[0])
		if r.waiting {
			stepEncodeF32AVX512(at, n)
		} else {
			stepF32AVX512(at, n)
		}
		half.Flush(p, lo, pt)
	case dt == snug.F32:
		r.p, r.g = unsafe.Pointer(&p.Float32s()[lo:][:n][0]), unsafe.Pointer(&g.Float32s()[lo:][:n][0])
		if r.waiting {
			stepEncodeF32AVX512(at, n)
		} else {
			stepF32AVX512(at, n)
		}
	case dt == snug.F16:
		r.p, r.g = unsafe.Pointer(&p.Float16s()[lo:][:n][0]), unsafe.Pointer(&g.Float16s()[lo:][:n][0])
		if r.waiting {
			stepEncodeF16AVX512(at, n)
		} else {
			stepF16AVX512(at, n)
		}
	default:
		r.p, r.g = unsafe.Pointer(&p.BFloat16s()[lo:][:n][0]), unsafe.Pointer(&g.BFloat16s()[lo:][:n][0])
		if r.waiting {
			stepEncodeBF16AVX512(at, n)
		} else {
			stepBF16AVX512(at, n)
		}
	}
	r.finish(b, fresh)
}

// finish has the new moments of block b encoded with the next block, or does so
// where that cannot.
func (r *run8) finish(b int, fresh []float32) {
	absmax1, absmax2 := blockq.FromMagnitude(r.top1), blockq.FromMagnitude(r.top2)
	r.s.Absmax1[b], r.s.Absmax2[b] = absmax1, absmax2
	r.before = before{r.fresh, r.codes1, r.codes2}
	var ok1, ok2 bool
	r.quotient1, ok1 = r.s.Encoder1.Quick(absmax1)
	r.quotient2, ok2 = r.s.Encoder2.Quick(absmax2)
	if r.waiting = ok1 && ok2; r.waiting {
		return
	}
	n := r.n
	codes1, codes2 := r.s.Codes1[b*n:][:n], r.s.Codes2[b*n:][:n]
	for i := 0; i < n; i += step {
		x := fresh[2*i:][:2*step]
		r.s.Encoder1.Encode(codes1[i:i+step], x[:step], absmax1)
		r.s.Encoder2.Encode(codes2[i:i+step], x[step:], absmax2)
	}
}
