//go:build !noasm && gc

package optim

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
	coef             [9]float32 // see [Constants.AdamFactors]
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
	m, v    State8
	waiting bool // the block before has no codes yet
}

// adam8 encodes a block while it updates the next one: the former loads from
// tables, the latter waits for divisions and roots. Elements of p and g that are
// not of one type are converted, and so is a p that is rounded at random.
func adam8(c Constants, o Operands, lo, hi int, m, v State8, block int, scratch []float32) {
	r := run8{n: block, m: m, v: v}
	whole := 0
	if r.n%step == 0 {
		whole = (hi - lo) / r.n
	}
	r.coef = c.AdamFactors()
	r.map1, r.map2 = r.m.Encoder.Values(), r.v.Encoder.Values()
	for b := range whole {
		r.update(&o, lo+b*r.n, b, scratch)
	}
	if r.waiting {
		encode8AVX512((*byte)(unsafe.Pointer(&r.block8)), r.n)
	}
	if lo += whole * r.n; lo < hi {
		rest := [...]State8{m.from(whole, block), v.from(whole, block)}
		Step(&Coef{Constants: c}, o, lo, hi, rest[:], block, scratch)
	}
}

// from returns the blocks from b on.
func (s State8) from(b, block int) State8 {
	s.Codes, s.Absmax = s.Codes[b*block:], s.Absmax[b:]
	return s
}

// update does block b, whose first element is lo.
func (r *run8) update(o *Operands, lo, b int, tile []float32) {
	n, p, g := r.n, &o.P, &o.G
	fresh := tile[b%2*2*n:][:2*n]
	r.fresh = &fresh[0]
	r.codes1, r.codes2 = &r.m.Codes[b*n:][:n][0], &r.v.Codes[b*n:][:n][0]
	r.absmax1, r.absmax2 = r.m.Absmax[b], r.v.Absmax[b]
	at := (*byte)(unsafe.Pointer(&r.block8))
	switch dt := p.DType(); {
	case dt != g.DType() || o.Random:
		pt := half.Floats(*p, lo, tile[4*n:5*n])
		gt := half.Floats(*g, lo, tile[5*n:6*n])
		r.p, r.g = unsafe.Pointer(&pt[0]), unsafe.Pointer(&gt[0])
		if r.waiting {
			adam8EncodeF32AVX512(at, n)
		} else {
			adam8F32AVX512(at, n)
		}
		o.Flush(lo, pt)
	case dt == snug.F32:
		r.p, r.g = unsafe.Pointer(&p.Float32s()[lo:][:n][0]), unsafe.Pointer(&g.Float32s()[lo:][:n][0])
		if r.waiting {
			adam8EncodeF32AVX512(at, n)
		} else {
			adam8F32AVX512(at, n)
		}
	case dt == snug.F16:
		r.p, r.g = unsafe.Pointer(&p.Float16s()[lo:][:n][0]), unsafe.Pointer(&g.Float16s()[lo:][:n][0])
		if r.waiting {
			adam8EncodeF16AVX512(at, n)
		} else {
			adam8F16AVX512(at, n)
		}
	default:
		r.p, r.g = unsafe.Pointer(&p.BFloat16s()[lo:][:n][0]), unsafe.Pointer(&g.BFloat16s()[lo:][:n][0])
		if r.waiting {
			adam8EncodeBF16AVX512(at, n)
		} else {
			adam8BF16AVX512(at, n)
		}
	}
	r.finish(b, fresh)
}

// finish has the new moments of block b encoded with the next block, or does so
// where that cannot.
func (r *run8) finish(b int, fresh []float32) {
	absmax1, absmax2 := blockq.FromMagnitude(r.top1), blockq.FromMagnitude(r.top2)
	r.m.Absmax[b], r.v.Absmax[b] = absmax1, absmax2
	r.before = before{r.fresh, r.codes1, r.codes2}
	var ok1, ok2 bool
	r.quotient1, ok1 = r.m.Encoder.Quick(absmax1)
	r.quotient2, ok2 = r.v.Encoder.Quick(absmax2)
	if r.waiting = ok1 && ok2; r.waiting {
		return
	}
	n := r.n
	codes1, codes2 := r.m.Codes[b*n:][:n], r.v.Codes[b*n:][:n]
	for i := 0; i < n; i += step {
		x := fresh[2*i:][:2*step]
		r.m.Encoder.Encode(codes1[i:i+step], x[:step], absmax1)
		r.v.Encoder.Encode(codes2[i:i+step], x[step:], absmax2)
	}
}
