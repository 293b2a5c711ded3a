// Nibble generates the loops of internal/nibble over whole blocks, of a multiple
// of 32 elements. The 16 values and limits of a format stay in registers and are
// looked up by permutations.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const step = 32 // elements of a loop, 16 bytes of codes

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		k := kernels{s}
		k.encode()
		k.decode("decodeF32", "writes values[code]·absmax.", vec.Set.Write)
		k.decode("decodeF32Stream", streamed, vec.Set.Stream)
		for _, e := range []vec.Elem{vec.Float16, vec.BFloat16} {
			k.decode16(e, "decode"+e.Name, "writes values[code]·absmax, rounded.", vec.Set.Write)
			k.decode16(e, "decode"+e.Name+"Stream", streamed, vec.Set.Stream)
		}
		for _, rows := range []int{1, 2, 4, 8} {
			k.dot(rows)
		}
		for _, rows := range []int{1, 2, 4, 8} {
			k.axpy(rows)
		}
	}
	vec.Fence("makes streamed data visible before what is written next.")
	Generate()
}

const streamed = "writes around the caches; x is aligned to 64 bytes and a fence follows."

type kernels struct{ vec.Set }

func (k kernels) begin(name, doc, signature string) {
	name += k.Name
	vec.Func(name, signature, name+" "+doc)
}

// eachBlock repeats body with the number of elements of a block, which it may
// count down, for all blocks.
func eachBlock(body func(n func() reg.Register)) {
	blocks, block := Load(Param("blocks"), GP64()), Load(Param("block"), GP64())
	Label("block")
	body(func() reg.Register {
		n := GP64()
		MOVQ(block, n)
		return n
	})
	DECQ(blocks)
	JNZ(LabelRef("block"))
}

// spread returns the 32 bits of a register in every lane.
func (k kernels) spread(word reg.Register) reg.VecVirtual {
	r := k.Register()
	if k.Wide() {
		VPBROADCASTD(word, r)
		return r
	}
	x := XMM()
	VMOVD(word, x)
	VPBROADCASTD(x, r)
	return r
}

// constant returns 32 bits in the lanes of 128.
func constant(bits uint32) reg.VecVirtual {
	word, x := GP32(), XMM()
	MOVL(U32(bits), word)
	VMOVD(word, x)
	VPBROADCASTD(x, x)
	return x
}

// table returns 16 values, side by side, in one or two registers.
func (k kernels) table(from Mem) []reg.VecVirtual {
	var t []reg.VecVirtual
	for lane := 0; lane < 16; lane += k.Lanes {
		r := k.Register()
		VMOVUPS(from.Offset(4*lane), r)
		t = append(t, r)
	}
	return t
}

// encode goes through a block twice: for its absmax, as integers, which keep the
// order of magnitudes, and for the codes. AVX2 divides by absmax; AVX-512, which
// can round down, moves the limits into the block instead.
func (k kernels) encode() {
	limits := "limits *[16]float32"
	if k.Wide() {
		limits = "limits *[16]float64"
	}
	k.begin("encode", "writes the absmax of blocks and the codes of x/absmax.",
		"func(packed *uint8, absmax *float32, x *float32, blocks int, block int, "+limits+", codes *[16]uint8)")
	packed, absmax := vec.Point("packed", 1), vec.Point("absmax", 4)
	scan, x := vec.Point("x", 4), vec.Point("x", 4) // of the first time and the second
	codes, weights := XMM(), constant(0x01100110)   // 16 for the first of two codes
	VMOVDQU(Mem{Base: Load(Param("codes"), GP64())}, codes)
	magnitude := k.Constant(0x7fffffff)
	var search func(top reg.Register, absmax Mem) func(from Mem) reg.VecVirtual
	if k.Wide() {
		search = k.searchBlock()
	} else {
		search = k.searchQuotients()
	}
	eachBlock(func(n func() reg.Register) {
		top := k.Zero()
		vec.Loop("scan", n(), step, []vec.Pointer{scan}, func() {
			for i := 0; i < step; i += k.Lanes {
				v := k.Register()
				k.and(scan.At(i), magnitude, v)
				VPMAXUD(v, top, top)
			}
		})
		ranks := search(k.Largest(top), absmax.At(0))
		absmax.Advance(1)
		vec.Loop("encode", n(), step, []vec.Pointer{x}, func() {
			var pairs [2]reg.VecVirtual
			for i := range pairs {
				var nodes []reg.VecVirtual
				for at := 0; at < 16; at += k.Lanes {
					nodes = append(nodes, ranks(x.At(16*i+at)))
				}
				rank := k.bytes(nodes)
				VPSHUFB(rank, codes, rank) // by the lowest bits
				pairs[i] = XMM()
				VPMADDUBSW(weights, rank, pairs[i])
			}
			VPACKUSWB(pairs[1], pairs[0], pairs[0])
			VMOVDQU(pairs[0], packed.At(0))
			packed.Advance(step / 2)
		})
	})
	vec.End()
}

func (k kernels) and(a Mem, b, to reg.VecVirtual) {
	if k.Wide() {
		VPANDD(a, b, to)
	} else {
		VPAND(a, b, to)
	}
}

// bytes returns the lowest bytes of 16 lanes, none above 255.
func (k kernels) bytes(v []reg.VecVirtual) reg.VecVirtual {
	to := XMM()
	if k.Wide() {
		VPMOVDB(v[0], to)
		return to
	}
	words := YMM()
	VPACKUSDW(v[1], v[0], words) // packs within halves of 128 bits
	VPERMQ(Imm(0xd8), words, words)
	VEXTRACTI128(Imm(1), words, to)
	VPACKUSWB(to, words.AsX(), to)
	return to
}

// divisor writes the absmax whose magnitude has the bits top, NaN for an
// infinity. It returns that, or 1 where all elements count as 0, and a mask that
// makes them so.
func divisor(top reg.Register, absmax Mem) (bits, keep reg.Register) {
	bits, keep = GP32(), GP32()
	MOVL(top, bits)
	MOVL(U32(1<<32-1), keep)
	CMPL(top, U32(0x7f800000))
	JB(LabelRef("finite"))
	MOVL(U32(0x7fc00000), top)
	JMP(LabelRef("zeros"))
	Label("finite")
	TESTL(top, top)
	JNZ(LabelRef("known"))
	Label("zeros")
	MOVL(U32(0x3f800000), bits)
	XORL(keep, keep)
	Label("known")
	MOVL(top, absmax)
	return bits, keep
}

// searchQuotients divides. It returns what begins a block; that returns what finds
// the ranks plus 16 of elements.
func (k kernels) searchQuotients() func(top reg.Register, absmax Mem) func(from Mem) reg.VecVirtual {
	limits := k.table(Mem{Base: Load(Param("limits"), GP64())})
	root, two := k.Register(), k.Constant(2)
	VBROADCASTSS(Mem{Base: Load(Param("limits"), GP64())}.Offset(4), root)
	return func(top reg.Register, absmax Mem) func(from Mem) reg.VecVirtual {
		bits, mask := divisor(top, absmax)
		by, keep := k.spread(bits), k.spread(mask)
		return func(from Mem) reg.VecVirtual {
			q, node, limit, above := k.Register(), k.Register(), k.Register(), k.Register()
			VMOVUPS(from, q)
			VDIVPS(by, q, q)
			VPAND(keep, q, q)
			VCMPPS(Imm(greater), root, q, above)
			VPSUBD(above, two, node)
			for level := 1; level < 4; level++ {
				VPERMPS(limits[level/3], node, limit) // by the lowest bits
				VCMPPS(Imm(greater), limit, q, above)
				VPADDD(node, node, node)
				VPSUBD(above, node, node)
			}
			return node
		}
	}
}

// searchBlock does that with the products of absmax and limits, exact in float64
// and rounded down.
func (k kernels) searchBlock() func(top reg.Register, absmax Mem) func(from Mem) reg.VecVirtual {
	low, high := ZMM(), ZMM()
	VMOVUPD(Mem{Base: Load(Param("limits"), GP64())}, low)
	VMOVUPD(Mem{Base: Load(Param("limits"), GP64())}.Offset(64), high)
	one, two, three := k.Constant(1), k.Constant(2), k.Constant(3)
	return func(top reg.Register, absmax Mem) func(from Mem) reg.VecVirtual {
		bits, mask := divisor(top, absmax)
		keep, by, limits, upper, root := k.spread(mask), k.spread(bits), k.Register(), k.Register(), k.Register()
		VCVTPS2PD(by.AsY(), by)
		VMULPD(low, by, limits)
		VMULPD(high, by, upper)
		VCVTPD2PS_RD_SAE(limits, limits.AsY())
		VCVTPD2PS_RD_SAE(upper, upper.AsY())
		VINSERTF64X4(Imm(1), upper.AsY(), limits, limits)
		VPERMPS(limits, one, root)
		return func(from Mem) reg.VecVirtual {
			v, node, limit := k.Register(), k.Register(), k.Register()
			VPANDD(from, keep, v)
			above := K()
			VCMPPS(Imm(greater), root, v, above)
			VPBLENDMD(three, two, above, node)
			for range 3 {
				VPERMPS(limits, node, limit)
				above := K()
				VCMPPS(Imm(greater), limit, v, above)
				VPADDD(node, node, node)
				VPORD(one, node, above, node)
			}
			return node
		}
	}
}

const greater = 30 // predicate of VCMPPS

// decode multiplies the values once for a block. A code is moved to a lane with
// the byte that it shares, which is then shifted; permutations look at its lowest
// bits.
func (k kernels) decode(name, doc string, store func(s vec.Set, x reg.Register, to Mem)) {
	k.begin(name, doc, "func(x *float32, packed *uint8, absmax *float32, blocks int, block int, values *[16]float32)")
	x, packed, absmax := vec.Point("x", 4), vec.Point("packed", 1), vec.Point("absmax", 4)
	values := k.table(Mem{Base: Load(Param("values"), GP64())})
	bytes, shifts := k.Register(), k.Register()
	VMOVUPS(bytesOfLanes(), bytes)
	VPBROADCASTQ(four(), shifts) // 4 in the first of two lanes
	eachBlock(func(n func() reg.Register) {
		scale := k.Register()
		VBROADCASTSS(absmax.At(0), scale)
		absmax.Advance(1)
		var table []reg.VecVirtual
		for _, v := range values {
			t := k.Register()
			VMULPS(scale, v, t)
			table = append(table, t)
		}
		vec.Loop("decode", n(), step, []vec.Pointer{x}, func() {
			for i := 0; i < step; i += k.Lanes {
				store(k.Set, k.pick(table, k.codes(packed.At(i/2), bytes, shifts)), x.At(i))
			}
			packed.Advance(step / 2)
		})
	})
	vec.End()
}

// codes returns codes in the lowest bits of lanes.
func (k kernels) codes(from Mem, bytes, shifts Op) reg.VecVirtual {
	code := k.Register()
	if k.Wide() {
		VPBROADCASTQ(from, code)
	} else {
		VPBROADCASTD(from, code)
	}
	VPSHUFB(bytes, code, code)
	VPSRLVD(shifts, code, code)
	return code
}

// pick returns the values of codes.
func (k kernels) pick(table []reg.VecVirtual, code reg.VecVirtual) reg.VecVirtual {
	low := k.Register()
	VPERMPS(table[0], code, low)
	if k.Wide() {
		return low
	}
	high := k.Register()
	VPERMPS(table[1], code, high)
	VPSLLD(Imm(28), code, code) // bit 3 to the sign
	VBLENDVPS(code, high, low, low)
	return low
}

// data returns a table of 32-bit words, which is written once.
func data(name string, words int, word func(i int) uint32) Mem {
	if m, ok := tables[name]; ok {
		return m
	}
	m := GLOBL(name, RODATA|NOPTR)
	for i := range words {
		DATA(4*i, U32(word(i)))
	}
	tables[name] = m
	return m
}

var tables = map[string]Mem{}

// bytesOfLanes returns a table for VPSHUFB: each pair of lanes has the next byte.
func bytesOfLanes() Mem {
	return data("bytesOfLanes", 16, func(i int) uint32 { return 0x80808000 | uint32(i/2) })
}

// bytesOfEvens returns one where lanes have the bytes of 4 and again of 4, for elements in the order of evensFirst.
func bytesOfEvens() Mem {
	return data("bytesOfEvens", 8, func(i int) uint32 { return 0x80808000 | uint32(i%4) })
}

// shiftsOfEvens returns shifts of such lanes: by 4 for the first of two codes.
func shiftsOfEvens() Mem {
	return data("shiftsOfEvens", 8, func(i int) uint32 { return 4 - 4*uint32(i/4) })
}

func four() Mem { return data("four", 2, func(i int) uint32 { return 4 - 4*uint32(i) }) }

// decode16 rounds the values once for a block.
func (k kernels) decode16(e vec.Elem, name, doc string, store func(s vec.Set, x reg.Register, to Mem)) {
	k.begin(name, doc, "func(x *uint16, packed *uint8, absmax *float32, blocks int, block int, values *[16]float32)")
	x, packed, absmax := vec.Point("x", 2), vec.Point("packed", 1), vec.Point("absmax", 4)
	values, round := k.table(Mem{Base: Load(Param("values"), GP64())}), k.Rounder(e)
	begin := k.pickBytes
	if k.Wide() {
		begin = k.pickWords
	}
	pick := begin()
	eachBlock(func(n func() reg.Register) {
		scale := k.Register()
		VBROADCASTSS(absmax.At(0), scale)
		absmax.Advance(1)
		var words []reg.Register
		for _, v := range values {
			t := k.Register()
			VMULPS(scale, v, t)
			words = append(words, round(t))
		}
		each := pick(words)
		vec.Loop("decode", n(), step, []vec.Pointer{x}, func() {
			results := each(packed.At(0))
			packed.Advance(step / 2)
			for i, r := range results {
				store(k.Set, r, x.At(step/len(results)*i))
			}
		})
	})
	vec.End()
}

// pickWords returns what begins a block, given its values; that returns what looks
// up 32 codes at a time. Permutations look at one bit above those of a code: the
// table has the values twice.
func (k kernels) pickWords() func(words []reg.Register) func(from Mem) []reg.VecVirtual {
	return func(words []reg.Register) func(from Mem) []reg.VecVirtual {
		table := ZMM()
		VINSERTI64X4(Imm(1), words[0], words[0].(reg.VecVirtual).AsZ(), table)
		return func(from Mem) []reg.VecVirtual {
			first, second := ZMM(), ZMM()
			VPMOVZXBD(from, second)
			VPSRLD(Imm(4), second, first)
			VPSLLD(Imm(16), second, second)
			VPORD(first, second, first)
			VPERMW(table, first, first)
			return []reg.VecVirtual{first}
		}
	}
}

// pickBytes is pickWords by the two bytes of each result.
func (k kernels) pickBytes() func(words []reg.Register) func(from Mem) []reg.VecVirtual {
	nibble, lowest := constant(0x0f0f0f0f), constant(0x00ff00ff)
	return func(words []reg.Register) func(from Mem) []reg.VecVirtual {
		var lows, highs [2]reg.VecVirtual
		for i, w := range words {
			lows[i], highs[i] = XMM(), XMM()
			VPAND(w, lowest, lows[i])
			VPSRLW(Imm(8), w, highs[i])
		}
		low, high := XMM(), XMM()
		VPACKUSWB(lows[1], lows[0], low)
		VPACKUSWB(highs[1], highs[0], high)
		return func(from Mem) (results []reg.VecVirtual) {
			first, second, codes := XMM(), XMM(), XMM()
			VMOVDQU(from, second)
			VPSRLW(Imm(4), second, first)
			VPAND(nibble, first, first)
			VPAND(nibble, second, second)
			VPUNPCKHBW(second, first, codes)
			VPUNPCKLBW(second, first, first)
			for _, c := range []reg.VecVirtual{first, codes} {
				l, h, out := XMM(), XMM(), XMM()
				VPSHUFB(c, low, l)
				VPSHUFB(c, high, h)
				VPUNPCKLBW(h, l, out)
				VPUNPCKHBW(h, l, l)
				results = append(results, out, l)
			}
			return results
		}
	}
}
