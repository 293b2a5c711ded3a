// Nibble generates the NEON loops of internal/nibble over whole blocks, of a multiple
// of 32 elements. Values and codes are looked up in tables of bytes.
package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

func main() {
	f := NewFile()
	encode(f)
	decode(f)
	decode16(f, Float16)
	decode16(f, BFloat16)
	for _, rows := range []int{1, 2, 4} {
		dot(f, rows)
	}
	for _, rows := range []int{1, 2, 4, 8} {
		axpy(f, rows)
	}
	f.Generate()
}

// values is how many a table of a format has, in vectors of Lanes.
const values = 16

// bytes and words name the 8-bit and 16-bit lanes of a register to Go's assembler.

func bytes(v V) string { return fmt.Sprintf("V%d.B16", int(v)) }
func words(v V) string { return fmt.Sprintf("V%d.H8", int(v)) }

// lookup sets d to the bytes of a table of neighbouring registers at the indexes.
func lookup(f *Func, d, index V, table ...V) {
	list := ""
	for i, t := range table {
		if int(t) != int(table[0])+i {
			panic("a table in registers that are no neighbours")
		}
		if i > 0 {
			list += ", "
		}
		list += bytes(t)
	}
	f.Go("VTBL %s, [%s], %s", bytes(index), list, bytes(d))
}

// blocks repeats body, with the number of elements of a block, which it may count down,
// for all blocks, at least one.
func blocks(f *Func, body func(n func() R)) {
	left, block := f.Param("blocks"), f.Param("block")
	f.Label("block")
	f.Scope(func() {
		body(func() R {
			n := f.R()
			f.Go("MOVD %s, %s", block, n)
			return n
		})
	})
	f.Go("SUBS $1, %s", left)
	f.Go("BNE block")
}

// loop repeats body while n, which it counts down by step, is not 0.
func loop(f *Func, label string, n R, step int, body func()) {
	f.Label(label)
	f.Scope(body)
	f.Go("SUBS $%d, %s", step, n)
	f.Go("BNE %s", label)
}

// pattern returns 16 bytes.
func pattern(f *Func, low, high uint64) V {
	v := f.V()
	f.Scope(func() {
		upper := f.V()
		f.Go("MOVD $%#x, R16", low)
		f.Go("FMOVD R16, %s", v)
		f.Go("MOVD $%#x, R16", high)
		f.Go("FMOVD R16, %s", upper)
		f.Do(TRN1x2D(v, v, upper))
	})
	return v
}

// codes returns 16 codes from 8 bytes, a byte each. mask has 15 in every byte.
func codes(f *Func, packed R, mask V) V {
	first, second := f.V(), f.V()
	f.Go("FMOVD.P 8(%s), %s", packed, second)
	f.Go("VUSHR $4, %s, %s", bytes(second), bytes(first))
	f.Do(AND(second, second, mask))
	f.Go("VZIP1 %s, %s, %s", bytes(second), bytes(first), bytes(first))
	return first
}

// scaled returns the values times the absmax of a block, which it moves along, in
// registers that are given.
func scaled(f *Func, absmax R, from, to []V) {
	f.Scope(func() {
		scale := f.V()
		f.Go("FMOVS.P 4(%s), %s", absmax, scale)
		f.Do(DUP(scale, scale))
		for i, v := range from {
			f.Do(FMUL(to[i], v, scale))
		}
	})
}

// decode writes 16 values at a time.
func decode(file *File) {
	f := file.Func("decodeF32NEON", "func(x *float32, packed *uint8, absmax *float32, blocks, block int, values *[16]float32)",
		"writes values[code]·absmax.")
	t, x, packed, absmax := newTable(f), f.Param("x"), f.Param("packed"), f.Param("absmax")
	mask := f.Word(0x0f0f0f0f)
	blocks(f, func(n func() R) {
		t.begin(absmax)
		loop(f, "decode", n(), values, func() {
			c := codes(f, packed, mask)
			f.Go("VSHL $2, %s, %s", bytes(c), bytes(c))
			for i := range t.spread {
				f.Scope(func() { f.Go("FMOVQ.P %s, 16(%s)", t.values(c, i), x) })
			}
		})
	})
	f.Return()
}

// table is the 64 bytes of the values of a block: a code is spread to the 4 bytes of a
// lane, which look up one after the other.
type table struct {
	*Func
	format, block []V
	bytesOf       V
	spread        []V
}

func newTable(f *Func) *table {
	t := &table{Func: f, block: f.Vs(values / Lanes)}
	t.format, t.bytesOf = format(f), f.Word(0x03020100)
	for i := range uint64(values / Lanes) {
		low := 0x0101010100000000 + 0x0404040404040404*i
		t.spread = append(t.spread, pattern(f, low, low+0x0202020202020202))
	}
	return t
}

// begin sets the values for a block and moves on to the next absmax.
func (t *table) begin(absmax R) { scaled(t.Func, absmax, t.format, t.block) }

// values returns the values of the i-th four of 16 codes, times 4, in bytes.
func (t *table) values(codes V, i int) V {
	v := t.V()
	lookup(t.Func, v, t.spread[i], codes)
	t.Do(ORR(v, v, t.bytesOf))
	lookup(t.Func, v, v, t.block...)
	return v
}

// format returns the values of a format.
func format(f *Func) []V {
	p := f.Param("values")
	var v []V
	for i := range values / Lanes {
		v = append(v, f.Load(Float32, p, i*Lanes))
	}
	return v
}

// decode16 looks up the lower and the upper bytes of the values, which it rounds once for
// a block.
func decode16(file *File, e Elem) {
	f := file.Func("decode"+e.Name+"NEON", "func(x *uint16, packed *uint8, absmax *float32, blocks, block int, values *[16]float32)",
		"writes values[code]·absmax, rounded.")
	x, packed, absmax := f.Param("x"), f.Param("packed"), f.Param("absmax")
	from, mask, low, high := format(f), f.Word(0x0f0f0f0f), f.V(), f.V()
	round := func(d, x V) { f.Do(FCVTN(d, x)) }
	if e == BFloat16 {
		round = f.RoundBFloat16()
	}
	blocks(f, func(n func() R) {
		f.Scope(func() {
			to := f.Vs(values / Lanes)
			scaled(f, absmax, from, to)
			for _, v := range to {
				f.Scope(func() { round(v, v) })
			}
			f.Do(TRN1x2D(to[0], to[0], to[1]), TRN1x2D(to[2], to[2], to[3]))
			f.Go("VUZP1 %s, %s, %s", bytes(to[2]), bytes(to[0]), bytes(low))
			f.Go("VUZP2 %s, %s, %s", bytes(to[2]), bytes(to[0]), bytes(high))
		})
		loop(f, "decode", n(), values, func() {
			c, l, h, out := codes(f, packed, mask), f.V(), f.V(), f.V()
			lookup(f, l, c, low)
			lookup(f, h, c, high)
			f.Go("VZIP1 %s, %s, %s", bytes(h), bytes(l), bytes(out))
			f.Go("VZIP2 %s, %s, %s", bytes(h), bytes(l), bytes(l))
			f.Go("FMOVQ.P %s, 16(%s)", out, x)
			f.Go("FMOVQ.P %s, 16(%s)", l, x)
		})
	})
	f.Return()
}

// encode goes through a block twice: for its absmax, as integers, which keep the order of
// magnitudes, and for the codes. The rank of a quotient is how many limits are below.
func encode(file *File) {
	f := file.Func("encodeNEON", "func(packed *uint8, absmax *float32, x *float32, blocks, block int, limits *[16]float32, codes *[16]uint8)",
		"writes the absmax of blocks and the codes of x/absmax.")
	packed, absmax, x, scan := f.Param("packed"), f.Param("absmax"), f.Param("x"), f.Param("x")
	from, limits, order := f.Param("limits"), f.Vs(values-1), f.V()
	for i, v := range limits {
		f.Go("FMOVS %d(%s), %s", 4*(1+i), from, v)
		f.Do(DUP(v, v))
	}
	f.Go("FMOVQ (%s), %s", f.Param("codes"), order)
	blocks(f, func(n func() R) {
		by, keep := f.V(), f.V()
		f.Scope(func() { divisor(f, absmax, largest(f, scan, n()), by, keep) })
		loop(f, "encode", n(), 2*values, func() {
			a, b := ranks(f, x, limits, by, keep), ranks(f, x, limits, by, keep)
			lookup(f, a, a, order)
			lookup(f, b, b, order)
			first := f.V()
			f.Go("VUZP1 %s, %s, %s", bytes(b), bytes(a), bytes(first))
			f.Go("VUZP2 %s, %s, %s", bytes(b), bytes(a), bytes(a))
			f.Go("VSHL $4, %s, %s", bytes(first), bytes(first))
			f.Do(ORR(a, a, first))
			f.Go("FMOVQ.P %s, 16(%s)", a, packed)
		})
	})
	f.Return()
}

// largest returns the bits of the largest magnitude of n elements.
func largest(f *Func, x, n R) R {
	magnitude, top, bits := f.Word(0x7fffffff), f.Zero(), f.R()
	loop(f, "scan", n, 2*values, func() {
		for range 2 * values / Lanes {
			v := f.V()
			f.Go("FMOVQ.P 16(%s), %s", x, v)
			f.Do(AND(v, v, magnitude), UMAX(top, top, v))
		}
	})
	f.Do(UMAXV(top, top))
	f.Go("FMOVS %s, %s", top, bits)
	return bits
}

// divisor writes the absmax whose magnitude has the bits top, NaN for an infinity, and
// spreads it, or 1 where all elements count as 0, and a mask that makes them so.
func divisor(f *Func, absmax, top R, by, keep V) {
	bits, mask := f.R(), f.R()
	f.Go("MOVWU %s, %s", top, top)
	f.Go("MOVD %s, %s", top, bits)
	f.Go("MOVD $-1, %s", mask)
	f.Go("MOVD $0x7f800000, R16")
	f.Go("CMP R16, %s", top)
	f.Go("BLO finite")
	f.Go("MOVD $0x7fc00000, %s", top)
	f.Go("B zeros")
	f.Label("finite")
	f.Go("CBNZ %s, known", top)
	f.Label("zeros")
	f.Go("MOVD $0x3f800000, %s", bits)
	f.Go("MOVD $0, %s", mask)
	f.Label("known")
	f.Go("MOVW.P %s, 4(%s)", top, absmax)
	f.Do(DUPGeneral(by, bits), DUPGeneral(keep, mask))
}

// ranks returns the ranks of 16 elements, a byte each, and moves x on.
func ranks(f *Func, x R, limits []V, by, keep V) V {
	out := f.Vs(4)
	f.Scope(func() {
		q, above := f.V(), f.V()
		for _, rank := range out {
			f.Go("FMOVQ.P 16(%s), %s", x, q)
			f.Do(FDIV(q, q, by), AND(q, q, keep), EOR(rank, rank, rank))
			for _, limit := range limits {
				f.Do(FCMGT(above, q, limit), SUB(rank, rank, above))
			}
		}
	})
	f.Go("VUZP1 %s, %s, %s", words(out[1]), words(out[0]), words(out[0]))
	f.Go("VUZP1 %s, %s, %s", words(out[3]), words(out[2]), words(out[2]))
	f.Go("VUZP1 %s, %s, %s", bytes(out[2]), bytes(out[0]), bytes(out[0]))
	return out[0]
}
