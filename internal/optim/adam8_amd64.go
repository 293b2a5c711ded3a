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
	fresh            *float32 // the moments: 16 of the first, 16 of the second, and so on, but of VBMI all of each
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
	bytes   bool // the loops are those of AVX512_VBMI
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
	r.map1, r.map2 = m.Encoder.Values(), v.Encoder.Values()
	for b := range whole {
		r.update(&o, lo+b*r.n, b, scratch)
		r.finish(b)
	}
	if r.waiting {
		encode8AVX512((*byte)(unsafe.Pointer(&r.block8)), r.n)
	}
	r.rest(c, &o, lo, hi, whole, scratch)
}

// rest updates the elements after so many whole blocks.
func (r *run8) rest(c Constants, o *Operands, lo, hi, whole int, scratch []float32) {
	if lo += whole * r.n; lo < hi {
		rest := [...]State8{r.m.from(whole, r.n), r.v.from(whole, r.n)}
		Step(&Coef{Constants: c}, *o, lo, hi, rest[:], r.n, scratch)
	}
}

// adam8VBMI is adam8 with codes by permutations of bytes, 64 at a time. It encodes a block after it has updated the
// next one, so that it does not wait for the largest magnitudes.
func adam8VBMI(c Constants, o Operands, lo, hi int, m, v State8, block int, scratch []float32) {
	if block%blockq.Group != 0 {
		adam8(c, o, lo, hi, m, v, block, scratch)
		return
	}
	r := run8{n: block, m: m, v: v, bytes: true}
	whole := (hi - lo) / block
	r.coef = c.AdamFactors()
	for b := range whole {
		r.decode(b, scratch)
		r.update(&o, lo+b*block, b, scratch)
		r.m.Absmax[b], r.v.Absmax[b] = blockq.FromMagnitude(r.top1), blockq.FromMagnitude(r.top2)
		if b > 0 {
			r.encode(b-1, scratch)
		}
	}
	if whole > 0 {
		r.encode(whole-1, scratch)
	}
	r.rest(c, &o, lo, hi, whole, scratch)
}

// decode sets the tile of block b to its old moments.
func (r *run8) decode(b int, tile []float32) {
	n, fresh := r.n, r.tile(b, tile)
	r.m.Encoder.DecodeGroups(fresh[:n], r.m.Codes[b*n:][:n], r.m.Absmax[b])
	r.v.Encoder.DecodeGroups(fresh[n:], r.v.Codes[b*n:][:n], r.v.Absmax[b])
}

// encode writes the codes of block b.
func (r *run8) encode(b int, tile []float32) {
	n, fresh := r.n, r.tile(b, tile)
	r.m.Encoder.EncodeGroups(r.m.Codes[b*n:][:n], fresh[:n], r.m.Absmax[b], true)
	r.v.Encoder.EncodeGroups(r.v.Codes[b*n:][:n], fresh[n:], r.v.Absmax[b], false)
}

// tile returns the new moments of block b.
func (r *run8) tile(b int, tile []float32) []float32 { return tile[b%2*2*r.n:][:2*r.n] }

// from returns the blocks from b on.
func (s State8) from(b, block int) State8 {
	s.Codes, s.Absmax = s.Codes[b*block:], s.Absmax[b:]
	return s
}

// update does block b, whose first element is lo.
func (r *run8) update(o *Operands, lo, b int, tile []float32) {
	n, p, g := r.n, &o.P, &o.G
	r.fresh = &r.tile(b, tile)[0]
	r.codes1, r.codes2 = &r.m.Codes[b*n:][:n][0], &r.v.Codes[b*n:][:n][0]
	r.absmax1, r.absmax2 = r.m.Absmax[b], r.v.Absmax[b]
	switch dt := p.DType(); {
	case dt != g.DType() || o.Random || o.Lost != nil:
		pt := half.Floats(*p, lo, tile[4*n:5*n])
		gt := half.Floats(*g, lo, tile[5*n:6*n])
		r.p, r.g = unsafe.Pointer(&pt[0]), unsafe.Pointer(&gt[0])
		r.loop(snug.F32)
		o.Flush(lo, pt)
		return
	case dt == snug.F32:
		r.p, r.g = unsafe.Pointer(&p.Float32s()[lo:][:n][0]), unsafe.Pointer(&g.Float32s()[lo:][:n][0])
	case dt == snug.F16:
		r.p, r.g = unsafe.Pointer(&p.Float16s()[lo:][:n][0]), unsafe.Pointer(&g.Float16s()[lo:][:n][0])
	default:
		r.p, r.g = unsafe.Pointer(&p.BFloat16s()[lo:][:n][0]), unsafe.Pointer(&g.BFloat16s()[lo:][:n][0])
	}
	r.loop(p.DType())
}

// loop runs the assembly for p and g of a type.
func (r *run8) loop(dt snug.DType) {
	at, n := (*byte)(unsafe.Pointer(&r.block8)), r.n
	switch {
	case r.bytes && dt == snug.F32:
		adam8F32VBMI(at, n)
	case r.bytes && dt == snug.F16:
		adam8F16VBMI(at, n)
	case r.bytes:
		adam8BF16VBMI(at, n)
	case r.waiting && dt == snug.F32:
		adam8EncodeF32AVX512(at, n)
	case r.waiting && dt == snug.F16:
		adam8EncodeF16AVX512(at, n)
	case r.waiting:
		adam8EncodeBF16AVX512(at, n)
	case dt == snug.F32:
		adam8F32AVX512(at, n)
	case dt == snug.F16:
		adam8F16AVX512(at, n)
	default:
		adam8BF16AVX512(at, n)
	}
}

// finish has the new moments of block b encoded with the next block, or does so
// where that cannot.
func (r *run8) finish(b int) {
	absmax1, absmax2 := blockq.FromMagnitude(r.top1), blockq.FromMagnitude(r.top2)
	r.m.Absmax[b], r.v.Absmax[b] = absmax1, absmax2
	r.before = before{r.fresh, r.codes1, r.codes2}
	var ok1, ok2 bool
	r.quotient1, ok1 = r.m.Encoder.Quick(absmax1)
	r.quotient2, ok2 = r.v.Encoder.Quick(absmax2)
	if r.waiting = ok1 && ok2; r.waiting {
		return
	}
	n, fresh := r.n, unsafe.Slice(r.fresh, 2*r.n)
	codes1, codes2 := r.m.Codes[b*n:][:n], r.v.Codes[b*n:][:n]
	for i := 0; i < n; i += step {
		x := fresh[2*i:][:2*step]
		r.m.Encoder.Encode(codes1[i:i+step], x[:step], absmax1)
		r.v.Encoder.Encode(codes2[i:i+step], x[step:], absmax2)
	}
}
