package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// dot decodes blocks as decode does and multiplies them by rows of x.
func (k kernels) dot(rows int) {
	k.begin(fmt.Sprintf("dot%dx", rows), "writes the products of rows of x, stride elements apart, and the values of codes.",
		"func(y *float32, x *float32, stride int, packed *uint8, absmax *float32, blocks int, block int, values *[16]float32)")
	packed, absmax, at := vec.Point("packed", 1), vec.Point("absmax", 4), GP64()
	x := make([]reg.Register, rows)
	x[0] = Load(Param("x"), GP64())
	stride := Load(Param("stride"), GP64())
	for r := 1; r < rows; r++ {
		x[r] = GP64()
		LEAQ(Mem{Base: x[r-1], Index: stride, Scale: 4}, x[r])
	}
	sums := k.sums(rows)
	values, shifts := Mem{Base: Load(Param("values"), GP64())}, k.Register()
	VPBROADCASTQ(four(), shifts)
	var bytes Op = bytesOfLanes()
	if k.Wide() {
		r := k.Register()
		VMOVUPS(bytesOfLanes(), r)
		bytes = r
	}
	XORQ(at, at)
	eachBlock(func(n func() reg.Register) {
		table, left := k.scaled(values, absmax.At(0)), n()
		absmax.Advance(1)
		Label("dot")
		for i := 0; i < step; i += k.Lanes {
			w := k.pick(table, k.codes(packed.At(i/2), bytes, shifts))
			for r, sum := range sums {
				VFMADD231PS(Mem{Base: x[r], Index: at, Scale: 4, Disp: 4 * i}, w, sum[i/k.Lanes%len(sum)])
			}
		}
		packed.Advance(step / 2)
		ADDQ(Imm(step), at)
		SUBQ(Imm(step), left)
		JNZ(LabelRef("dot"))
	})
	y := vec.Point("y", 4)
	for r, sum := range sums {
		for _, more := range sum[1:] {
			VADDPS(more, sum[0], sum[0])
		}
		VMOVSS(vec.Total(sum[0]), y.At(r))
	}
	vec.End()
}

// sums returns lanes of sums for rows: two sets, or with AVX2, which has half of the
// registers, one for 8 rows.
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

// axpy adds multiples of vectors of codes to rows of sums, so that these are read and written
// once for four vectors, or with AVX2, whose tables take two registers, for two. Vectors that
// follow are fetched meanwhile: in a range of columns codes are not one stream.
func (k kernels) axpy(rows int) {
	k.begin(fmt.Sprintf("axpy%dx", rows), fmt.Sprintf("adds multiples of %d vectors of codes, stride bytes apart, to rows of y.", k.vectors()),
		"func(y *float32, a *float32, packed *uint8, stride int, absmax *float32, blocks int, block int, values *[16]float32)")
	y, a := vec.Point("y", 4), vec.Point("a", 4)
	values := Mem{Base: Load(Param("values"), GP64())}
	stride, next := Load(Param("stride"), GP64()), GP64()
	packed := k.everyVector(Load(Param("packed"), GP64()), stride, 1)
	LEAQ(Mem{Base: packed[0].Base, Index: stride, Scale: uint8(k.vectors())}, next)
	absmax := k.everyVector(Load(Param("absmax"), GP64()), Load(Param("blocks"), GP64()), 4)
	eachBlock(func(n func() reg.Register) {
		tables := make([][]reg.VecVirtual, k.vectors())
		for v := range tables {
			tables[v] = k.scaled(values, absmax[v])
		}
		ADDQ(Imm(4), absmax[0].Base)
		left := n()
		Label("values")
		for _, p := range packed {
			p.Base = next
			PREFETCHT0(p)
		}
		for i := 0; i < step/2; i += k.Lanes {
			var even, odd []reg.VecVirtual
			for v, t := range tables {
				code, first := k.Register(), k.Register()
				VPMOVZXBD(packed[v].Offset(i), code)
				VPSRLD(Imm(4), code, first)
				even, odd = append(even, k.pick(t, first)), append(odd, k.pick(t, code))
			}
			for r := range rows {
				k.multiplyAdd(even, odd, a, y, r, rows, r*step+i)
			}
		}
		ADDQ(Imm(step/2), packed[0].Base)
		ADDQ(Imm(step/2), next)
		y.Advance(rows * step)
		SUBQ(Imm(step), left)
		JNZ(LabelRef("values"))
	})
	vec.End()
}

// multiplyAdd adds the products of row r of a and values to the sums at and at+16.
func (k kernels) multiplyAdd(even, odd []reg.VecVirtual, a, y vec.Pointer, r, rows, at int) {
	first, second := k.Register(), k.Register()
	VMOVUPS(y.At(at), first)
	VMOVUPS(y.At(at+step/2), second)
	for v := range even {
		factor := k.Register()
		VBROADCASTSS(a.At(v*rows+r), factor)
		VFMADD231PS(even[v], factor, first)
		VFMADD231PS(odd[v], factor, second)
	}
	VMOVUPS(first, y.At(at))
	VMOVUPS(second, y.At(at+step/2))
}

// vectors is how many vectors of codes axpy has at a time.
func (k kernels) vectors() int { return k.Lanes / 4 }

// everyVector returns where vectors begin that are stride times scale bytes apart.
func (k kernels) everyVector(base, stride reg.Register, scale uint8) []Mem {
	at := []Mem{{Base: base}, {Base: base, Index: stride, Scale: scale}}
	if k.vectors() == 4 {
		triple := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
		at = append(at, Mem{Base: base, Index: stride, Scale: 2 * scale}, Mem{Base: base, Index: triple, Scale: scale})
	}
	return at
}

// scaled returns the values of a format times an absmax.
func (k kernels) scaled(values, absmax Mem) []reg.VecVirtual {
	scale := k.Register()
	VBROADCASTSS(absmax, scale)
	var table []reg.VecVirtual
	for lane := 0; lane < 16; lane += k.Lanes {
		t := k.Register()
		VMULPS(values.Offset(4*lane), scale, t)
		table = append(table, t)
	}
	return table
}
