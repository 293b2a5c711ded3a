package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// dot decodes blocks and multiplies them by rows of x. With AVX2 elements are in another order, see evensFirst: one and two rows
// meet values that byte shuffles look up, which is twice as fast as permutations; more rows leave no registers for its tables.
func (k kernels) dot(rows int) {
	planes := !k.Wide() && rows <= 2
	table := "values *[16]float32"
	if planes {
		table = "planes *[64]uint8"
	}
	k.begin(fmt.Sprintf("dot%dx", rows), "adds the products of rows of x, stride elements apart, and of lines of codes to rows of y, rowY elements apart.",
		"func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax int, lines, blocks, block int, "+table+")")
	packed, absmax, at := vec.Point("packed", 1), vec.Point("absmax", 4), GP64()
	x := make([]reg.Register, rows)
	x[0] = Load(Param("x"), GP64())
	stride := Load(Param("stride"), GP64())
	for r := 1; r < rows; r++ {
		x[r] = GP64()
		LEAQ(Mem{Base: x[r-1], Index: stride, Scale: 4}, x[r])
	}
	begin := k.permuted
	if planes {
		begin = k.shuffled
	}
	decode := begin(packed)
	Label("line")
	sums := k.sums(rows)
	XORQ(at, at)
	eachBlock(func(n func() reg.Register) {
		value, left := decode(absmax.At(0)), n()
		absmax.Advance(1)
		Label("dot")
		for i, w := range value() {
			w := w()
			for r, sum := range sums {
				VFMADD231PS(Mem{Base: x[r], Index: at, Scale: 4, Disp: 4 * k.Lanes * i}, w, sum[i%len(sum)])
			}
		}
		packed.Advance(step / 2)
		ADDQ(Imm(step), at)
		SUBQ(Imm(step), left)
		JNZ(LabelRef("dot"))
	})
	y, rowY := Load(Param("y"), GP64()), Load(Param("rowY"), GP64())
	for _, sum := range sums {
		for n := len(sum) / 2; n > 0; n /= 2 {
			for v := range n {
				VADDPS(sum[v+n], sum[v], sum[v])
			}
		}
		total := vec.Total(sum[0])
		VADDSS(Mem{Base: y}, total, total)
		VMOVSS(total, Mem{Base: y})
		LEAQ(Mem{Base: y, Index: rowY, Scale: 4}, y)
	}
	ADDQ(Imm(4), vec.ParamAddr("y"))
	packed.Skip("skip")
	absmax.Skip("skipAbsmax")
	DECQ(vec.ParamAddr("lines"))
	JNZ(LabelRef("line"))
	vec.End()
}

// scaledVectors returns functions that make the vectors of a step, one after the other, for a block with a scale.
type scaledVectors = func(absmax Mem) func() []func() reg.VecVirtual

// permuted decodes by permutations of a table that is scaled once for a block.
func (k kernels) permuted(packed vec.Pointer) scaledVectors {
	values, shifts := Mem{Base: Load(Param("values"), GP64())}, k.Register()
	var bytes Op
	if k.Wide() {
		r := k.Register()
		VPBROADCASTQ(four(), shifts)
		VMOVUPS(bytesOfLanes(), r)
		bytes = r
	} else {
		bytes = bytesOfEvens()
		VMOVDQU(shiftsOfEvens(), shifts)
	}
	return func(absmax Mem) func() (vectors []func() reg.VecVirtual) {
		table := k.scaled(values, absmax)
		return func() (vectors []func() reg.VecVirtual) {
			for i := 0; i < step; i += k.Lanes {
				vectors = append(vectors, func() reg.VecVirtual { return k.pick(table, k.codes(packed.At(i/2), bytes, shifts)) })
			}
			return vectors
		}
	}
}

// shuffled looks up the four bytes of 32 values, puts them together and scales them.
func (k kernels) shuffled(packed vec.Pointer) scaledVectors {
	from := Mem{Base: Load(Param("planes"), GP64())}
	var planes [4]reg.VecVirtual
	for i := range planes {
		planes[i] = k.Register()
		VBROADCASTI128(from.Offset(16*i), planes[i])
	}
	shifts, nibble := k.Register(), k.Constant(0x0f0f0f0f)
	VMOVDQU(shiftsOfEvens(), shifts)
	return func(absmax Mem) func() (vectors []func() reg.VecVirtual) {
		scale := k.Register()
		VBROADCASTSS(absmax, scale)
		return func() (vectors []func() reg.VecVirtual) {
			codes := k.Register()
			VBROADCASTI128(packed.At(0), codes)
			VPSRLVD(shifts, codes, codes)
			VPAND(nibble, codes, codes)
			var bytes [4]reg.VecVirtual
			for i, p := range planes {
				bytes[i] = k.Register()
				VPSHUFB(codes, p, bytes[i])
			}
			words := func(i int) [2]reg.VecVirtual {
				low, high := k.Register(), k.Register()
				VPUNPCKLBW(bytes[i+1], bytes[i], low)
				VPUNPCKHBW(bytes[i+1], bytes[i], high)
				return [2]reg.VecVirtual{low, high}
			}
			lower, upper := words(0), words(2)
			for i := range 4 {
				vectors = append(vectors, func() reg.VecVirtual {
					v := k.Register()
					if l, u := lower[i/2], upper[i/2]; i%2 == 0 {
						VPUNPCKLWD(u, l, v)
					} else {
						VPUNPCKHWD(u, l, v)
					}
					VMULPS(scale, v, v)
					return v
				})
			}
			return vectors
		}
	}
}

// sums returns lanes of sums for rows: two sets, or with AVX2 four for 1 row, whose vectors come faster than sums follow each other,
// and, as it has half of the registers, one for 8 rows.
func (k kernels) sums(rows int) [][]reg.VecVirtual {
	sets := 2
	switch {
	case rows*sets > k.Lanes:
		sets = 1
	case rows == 1 && !k.Wide():
		sets = 4
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
