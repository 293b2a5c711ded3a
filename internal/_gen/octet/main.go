// Octet generates the loops of internal/octet over whole blocks, of a multiple of 32 elements. Floats of 8 bits become
// numbers by way of binary16, whose fields theirs are a part of; those of E4M3 are then in units of 2^8.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const step = 32 // elements of a loop

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		for _, f := range []string{"E4M3", "E5M2", "Int8"} {
			k := kernels{s, f}
			for _, e := range vec.Elems {
				k.decode(e)
			}
			for _, rows := range []int{1, 2, 4, 8} {
				k.dot(rows)
			}
			for _, rows := range []int{1, 2, 4, 8} {
				k.axpy(rows)
			}
		}
	}
	Generate()
}

type kernels struct {
	vec.Set
	format string
}

func (k kernels) begin(name, doc, signature string) {
	name += k.format + k.Name
	vec.Func(name, signature, name+" "+doc)
}

// eachBlock repeats body with the number of elements of a block, which it may count down, for all blocks.
func eachBlock(body func(left reg.Register)) {
	blocks, block := Load(Param("blocks"), GP64()), Load(Param("block"), GP64())
	Label("block")
	left := GP64()
	MOVQ(block, left)
	body(left)
	DECQ(blocks)
	JNZ(LabelRef("block"))
}

// reader sets up constants and returns what reads the numbers of 2·Lanes codes.
func (k kernels) reader() func(from Mem) [2]reg.VecVirtual {
	switch k.format {
	case "Int8":
		return func(from Mem) (v [2]reg.VecVirtual) {
			for i := range v {
				v[i] = k.Register()
				VPMOVSXBD(from.Offset(i*k.Lanes), v[i])
				VCVTDQ2PS(v[i], v[i])
			}
			return v
		}
	case "E5M2":
		return func(from Mem) [2]reg.VecVirtual {
			words := k.Register()
			VPMOVZXBW(from, words)
			VPSLLW(Imm(8), words, words)
			return k.widen(words)
		}
	}
	fields := k.Constant(0xbf80bf80) // all bits but the second, a copy of the sign
	return func(from Mem) [2]reg.VecVirtual {
		words := k.Register()
		VPMOVSXBW(from, words)
		VPSLLW(Imm(7), words, words)
		return k.widen(k.And(fields, words))
	}
}

// widen returns the numbers of a register of binary16.
func (k kernels) widen(words reg.VecVirtual) (v [2]reg.VecVirtual) {
	v[0], v[1] = k.Register(), k.Register()
	if k.Wide() {
		upper := YMM()
		VEXTRACTI64X4(Imm(1), words, upper)
		VCVTPH2PS(words.AsY(), v[0])
		VCVTPH2PS(upper, v[1])
		return v
	}
	upper := XMM()
	VEXTRACTI128(Imm(1), words, upper)
	VCVTPH2PS(words.AsX(), v[0])
	VCVTPH2PS(upper, v[1])
	return v
}

// scaler returns what reads a scale for the numbers of reader. E4M3's are 2^-8 of what they should be.
func (k kernels) scaler() func(from Mem) reg.VecVirtual {
	var factor reg.VecVirtual
	if k.format == "E4M3" {
		factor = k.Constant(0x43800000) // 256
	}
	return func(from Mem) reg.VecVirtual {
		scale := k.Register()
		VBROADCASTSS(from, scale)
		if factor != nil {
			VMULPS(factor, scale, scale)
		}
		return scale
	}
}

func (k kernels) decode(e vec.Elem) {
	k.begin("decode"+e.Name, "writes value·scale·factor, rounded.", "func(x *"+e.Go+", codes *uint8, scales *float32, blocks int, block int, factor float32)")
	x, codes, scales := vec.Point("x", e.Size), vec.Point("codes", 1), vec.Point("scales", 4)
	read, scaled := k.reader(), k.scaler()
	var factor reg.VecVirtual
	if k.format == "Int8" {
		factor = k.Broadcast(Param("factor"))
	}
	store := k.storer(e, x)
	eachBlock(func(left reg.Register) {
		scale := scaled(scales.At(0))
		scales.Advance(1)
		Label("values")
		for i := 0; i < step; i += 2 * k.Lanes {
			v := read(codes.At(i))
			for _, w := range v {
				VMULPS(scale, w, w)
				if factor != nil {
					VMULPS(factor, w, w)
				}
			}
			store(v, i)
		}
		codes.Advance(step)
		x.Advance(step)
		SUBQ(Imm(step), left)
		JNZ(LabelRef("values"))
	})
	vec.End()
}

// storer sets up constants and returns what rounds two registers of numbers, no NaNs, and writes them at an element.
func (k kernels) storer(e vec.Elem, x vec.Pointer) func(v [2]reg.VecVirtual, at int) {
	if e == vec.BFloat16 && k.Wide() {
		nearest := vec.NewHalves().NearestNumber()
		return func(v [2]reg.VecVirtual, at int) { VMOVUPS(nearest(v[0], v[1]), x.At(at)) }
	}
	round := k.Rounder(e)
	return func(v [2]reg.VecVirtual, at int) {
		for i, w := range v {
			VMOVUPS(round(w), x.At(at+i*k.Lanes))
		}
	}
}

// dot multiplies n codes by rows of x.
func (k kernels) dot(rows int) {
	k.begin(fmt.Sprintf("dot%dx", rows), "writes the products of rows of x, stride elements apart, and n codes.",
		"func(y *float32, x *float32, stride int, codes *uint8, n int)")
	codes, left, at := vec.Point("codes", 1), Load(Param("n"), GP64()), GP64()
	x := make([]reg.Register, rows)
	x[0] = Load(Param("x"), GP64())
	stride := Load(Param("stride"), GP64())
	for r := 1; r < rows; r++ {
		x[r] = GP64()
		LEAQ(Mem{Base: x[r-1], Index: stride, Scale: 4}, x[r])
	}
	sums, read := k.sums(rows), k.reader()
	XORQ(at, at)
	Label("dot")
	for i := 0; i < step; i += 2 * k.Lanes {
		for h, w := range read(codes.At(i)) {
			for r, sum := range sums {
				VFMADD231PS(Mem{Base: x[r], Index: at, Scale: 4, Disp: 4 * (i + h*k.Lanes)}, w, sum[h%len(sum)])
			}
		}
	}
	codes.Advance(step)
	ADDQ(Imm(step), at)
	SUBQ(Imm(step), left)
	JNZ(LabelRef("dot"))
	y := vec.Point("y", 4)
	for r, sum := range sums {
		for _, more := range sum[1:] {
			VADDPS(more, sum[0], sum[0])
		}
		VMOVSS(vec.Total(sum[0]), y.At(r))
	}
	vec.End()
}

// sums returns lanes of sums for rows: two sets, or with AVX2, which has half of the registers, one for 8 rows.
func (k kernels) sums(rows int) [][]reg.VecVirtual {
	sets := 2
	if rows*sets > k.Lanes {
		sets = 1
	}
	sums := make([][]reg.VecVirtual, rows)
	for r := range sums {
		for range sets {
			sums[r] = append(sums[r], k.Zero())
		}
	}
	return sums
}

// vectors is how many vectors of codes axpy has at a time, so that sums are read and written once for all.
func (k kernels) vectors() int { return k.Lanes / 4 }

// axpy adds multiples of vectors of codes to rows of sums. Vectors that follow are fetched meanwhile: in a range of
// columns codes are not one stream.
func (k kernels) axpy(rows int) {
	k.begin(fmt.Sprintf("axpy%dx", rows), fmt.Sprintf("adds multiples of %d vectors of n codes, stride bytes apart, to rows of y.", k.vectors()),
		"func(y *float32, a *float32, codes *uint8, stride int, n int)")
	y, a := vec.Point("y", 4), vec.Point("a", 4)
	stride, next, left := Load(Param("stride"), GP64()), GP64(), Load(Param("n"), GP64())
	codes := k.everyVector(Load(Param("codes"), GP64()), stride)
	LEAQ(Mem{Base: codes[0].Base, Index: stride, Scale: uint8(k.vectors())}, next)
	read := k.reader()
	Label("values")
	for _, p := range codes {
		p.Base = next
		PREFETCHT0(p)
	}
	for i := 0; i < step; i += 2 * k.Lanes {
		var w [][2]reg.VecVirtual
		for _, p := range codes {
			w = append(w, read(p.Offset(i)))
		}
		for r := range rows {
			k.multiplyAdd(w, a, y, r, rows, r*step+i)
		}
	}
	ADDQ(Imm(step), codes[0].Base)
	ADDQ(Imm(step), next)
	y.Advance(rows * step)
	SUBQ(Imm(step), left)
	JNZ(LabelRef("values"))
	vec.End()
}

// multiplyAdd adds the products of row r of a and values to the sums from at on.
func (k kernels) multiplyAdd(w [][2]reg.VecVirtual, a, y vec.Pointer, r, rows, at int) {
	first, second := k.Register(), k.Register()
	VMOVUPS(y.At(at), first)
	VMOVUPS(y.At(at+k.Lanes), second)
	for v, pair := range w {
		factor := k.Register()
		VBROADCASTSS(a.At(v*rows+r), factor)
		VFMADD231PS(pair[0], factor, first)
		VFMADD231PS(pair[1], factor, second)
	}
	VMOVUPS(first, y.At(at))
	VMOVUPS(second, y.At(at+k.Lanes))
}

// everyVector returns where vectors begin that are stride bytes apart.
func (k kernels) everyVector(base, stride reg.Register) []Mem {
	at := []Mem{{Base: base}, {Base: base, Index: stride, Scale: 1}}
	if k.vectors() == 4 {
		triple := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
		at = append(at, Mem{Base: base, Index: stride, Scale: 2}, Mem{Base: base, Index: triple, Scale: 1})
	}
	return at
}
