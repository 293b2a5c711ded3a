package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// group is the number of codes that AVX512_VBMI does together: a register of bytes. Element 16k+j of a group is byte
// k of 32-bit lane j while the bytes belong to lanes.
const group = 64

// The offsets of the fields of Lines in internal/blockq.
const (
	offKey    = 0
	offSlope  = offKey + 256
	offOffset = offSlope + 64
	offZero   = offOffset + 64
	offKeep   = offZero + 1
)

// Bits of a float32.
const (
	bucketBit = 19                      // the lowest bit of a bucket: 4 bits of exponent and 4 of fraction
	codeBit   = 15                      // the lowest bit of a code in t
	unclear   = 1<<15 - 1<<3            // the bits of t that are 0 up to 2·lineMargin above a code
	lineBias  = (127-16)<<23 | 0x02<<15 // 0x1.02p-16
)

// decodeVBMI looks codes up by permutations of bytes, with the map in registers.
func decodeVBMI(name, doc, param string, load func(m reg.Register) vec.Planes, store func(s vec.Set, x reg.Register, to Mem)) {
	s := vec.AVX512
	name += "VBMI"
	TEXT(name, NOSPLIT, "func(x *float32, codes *uint8, m *"+param+", absmax *float32, blocks, block int)")
	Pragma("noescape")
	Doc(name + " " + doc)
	planes := load(Load(Param("m"), GP64()))
	order := vec.Transposed()
	x, codes := vec.Point("x", 4), vec.Point("codes", 1)
	absmax, blocks := vec.Point("absmax", 4), Load(Param("blocks"), GP64())
	n := GP64()
	vec.Loop("blocks", blocks, 1, []vec.Pointer{absmax}, func() {
		a := s.Register()
		VBROADCASTSS(absmax.At(0), a)
		Load(Param("block"), n)
		vec.Loop("loop", n, group, []vec.Pointer{x, codes}, func() {
			for i, v := range planes.Lookup(codes.At(0), order) {
				VMULPS(a, v, v)
				store(s, v, x.At(i*s.Lanes))
			}
		})
	})
	vec.End()
}

// planesAt returns planes in registers.
func planesAt(m reg.Register) (p vec.Planes) {
	p = vec.PlanesAt(Mem{Base: m})
	for i := range p {
		for j, at := range p[i] {
			r := ZMM()
			VMOVDQU64(at, r)
			p[i][j] = r
		}
	}
	return p
}

// loadPlanes returns the bytes of 256 float32 in registers.
func loadPlanes(m reg.Register) (p vec.Planes) {
	of := vec.Permutation("lowest", 1, func(i int) int { return i % 32 * 4 }) // byte 0 of 32 float32, twice
	one := ZMM()
	word := GP32()
	MOVL(U32(0x01010101), word)
	VPBROADCASTD(word, one)
	for plane := range p {
		for quarter := range p[plane] {
			var halves [2]reg.VecVirtual
			for h := range halves {
				at := Mem{Base: m, Disp: 256*quarter + 128*h}
				halves[h] = ZMM()
				first := ZMM()
				VMOVDQU64(at, first)
				VMOVDQA64(of, halves[h])
				VPERMI2B(at.Offset(64), first, halves[h])
			}
			VSHUFI64X2(Imm(0x44), halves[1], halves[0], halves[0])
			p[plane][quarter] = halves[0]
		}
		VPADDB(one, of, of)
	}
	return p
}

// encodeVBMI finds codes as blockq.Lines says, and looks for the codes of elements next to a limit one by one.
// Without negative elements there is less to do.
func encodeVBMI(name string, negative bool) {
	s := vec.AVX512
	TEXT(name, NOSPLIT, "func(codes *uint8, x *float32, n int, absmax, scaled float32, cells *uint32, lines *byte)")
	Pragma("noescape")
	if negative {
		Doc(name + " writes the codes of x/absmax where Encoder.Quick is ok and the encoder has lines.")
	} else {
		Doc(name + " is encodeVBMI for elements from 0 on.")
	}
	codes, x, n := vec.Point("codes", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	lines := Load(Param("lines"), GP64())
	field := func(off int) Mem { return Mem{Base: lines, Disp: off} }

	scaled, bias, magnitude, nothing := s.Broadcast(Param("scaled")), s.Constant(lineBias), s.Constant(0x7fffffff), s.Zero()
	var keys vec.Bytes
	for i, at := range vec.BytesAt(field(offKey)) {
		r := s.Register()
		VMOVDQU64(at, r)
		keys[i] = r
	}
	slope, offset, zero, keep := s.Register(), s.Register(), s.Register(), s.Register()
	VMOVUPS(field(offSlope), slope)
	VMOVUPS(field(offOffset), offset)
	VPBROADCASTB(field(offZero), zero)
	VPBROADCASTB(field(offKeep), keep)
	bucketAt, codeAt, clear := fieldOfLanes(bucketBit), fieldOfLanes(codeBit), s.Constant(unclear)
	natural := vec.Permutation("natural", 1, func(i int) int { return i%16*4 + i/16 })
	var only [4]reg.Register // the bytes k of lanes
	only[1], only[2], only[3] = byteMask(0x2222222222222222), byteMask(0xaaaaaaaa), byteMask(0x8888888888888888)
	// gather returns a field of four registers, byte k of a lane from register k.
	gather := func(from [4]reg.VecVirtual, field reg.VecVirtual) reg.VecVirtual {
		var fields [4]reg.VecVirtual
		for k := range from {
			fields[k] = s.Register()
			VPMULTISHIFTQB(from[k], field, fields[k])
		}
		VMOVDQU8(fields[1], only[1], fields[0])
		VMOVDQU8(fields[3], only[3], fields[2])
		VMOVDQU16(fields[2], only[2], fields[0])
		return fields[0]
	}

	var left reg.Register
	vec.Loop("loop", n, group, []vec.Pointer{codes, x}, func() {
		at := func(k int) Mem { return x.At(k * s.Lanes) }
		var below reg.Register
		if negative {
			below = maskOfGroup(func(k int, to reg.Register) { VCMPPS(Imm(greater), at(k), nothing, to) })
		}
		var y [4]reg.VecVirtual
		for k := range y {
			PREFETCHT0(at(k).Offset(4 * ahead))
			y[k] = s.Register()
			if negative {
				VPANDD(at(k), magnitude, y[k])
				VFMADD213PS(bias, scaled, y[k])
			} else {
				VMOVAPS(bias, y[k])
				VFMADD231PS(at(k), scaled, y[k])
			}
		}
		buckets := gather(y, bucketAt)
		number := keys.Lookup(buckets, vec.High(buckets))
		var t [4]reg.VecVirtual
		near := maskOfGroup(func(k int, to reg.Register) {
			slopes, of := s.Register(), number
			t[k] = s.Register()
			if k > 0 {
				of = s.Register()
				VPSRLD(Imm(uint64(8*k)), number, of)
			}
			VPERMPS(slope, of, slopes)
			VPERMPS(offset, of, t[k])
			VFMADD231PS(slopes, y[k], t[k])
			VPTESTNMD(clear, t[k], to)
		})
		found := gather(t, codeAt)
		VPERMB(found, natural, found)
		code := s.Register()
		if negative {
			VPMAXUB(keep, found, below, found)
			VPADDB(zero, found, code)
			VPSUBUSB(found, zero, below, code)
		} else {
			VPADDB(zero, found, code)
		}
		VMOVDQU64(code, codes.At(0))
		KORTESTQ(near, near)
		JNE(LabelRef("near"))
		Label("done")

		left = near
	})
	vec.End()
	Label("near")
	oneByOne(codes, x, left)
	JMP(LabelRef("done"))
}

// oneByOne writes the codes of the elements in a mask of a group as Encoder.Code finds them.
func oneByOne(codes, x vec.Pointer, mask reg.Register) {
	left, i, cell, high, bits := GP64(), GP64(), GP32(), GP32(), GP32()
	absmax, q, none := vec.AVX512.Broadcast(Param("absmax")).AsX(), XMM(), vec.AVX512.Zero().AsX()
	cells := Load(Param("cells"), GP64())
	KMOVQ(mask, left)
	Label("one")
	TZCNTQ(left, i)
	VADDSS(vec.Indexed(x, i), none, q)
	VDIVSS(absmax, q, q)
	VMOVD(q, bits)
	MOVL(bits, cell)
	SHRL(Imm(16), cell)
	MOVL(Mem{Base: cells, Index: cell.As64(), Scale: 4}, cell)
	MOVWLZX(bits.As16(), bits)
	MOVL(cell, high)
	SHRL(Imm(16), high)
	CMPL(bits, high)
	JLS(LabelRef("low"))
	SHRL(Imm(8), cell)
	Label("low")
	MOVB(cell.As8(), vec.Indexed(codes, i))
	BLSRQ(left, left)
	JNE(LabelRef("one"))
}

// maskOfGroup joins the masks of the four registers of a group.
func maskOfGroup(of func(k int, to reg.Register)) reg.Register {
	var pairs [2]reg.Register
	for i := range pairs {
		low, high := K(), K()
		of(2*i, low)
		of(2*i+1, high)
		KUNPCKWD(low, high, low)
		pairs[i] = low
	}
	KUNPCKDQ(pairs[0], pairs[1], pairs[0])
	return pairs[0]
}

// fieldOfLanes returns, for VPMULTISHIFTQB, the 8 bits from one on of each 32-bit lane, four times.
func fieldOfLanes(bit int) reg.VecVirtual {
	const every = 0x01010101
	word, r := GP64(), ZMM()
	MOVQ(U64(uint64(bit)*every|uint64(bit+32)*every<<32), word)
	VPBROADCASTQ(word, r)
	return r
}

// byteMask returns a mask.
func byteMask(bits uint64) reg.Register {
	word, r := GP64(), K()
	MOVQ(U64(bits), word)
	KMOVQ(word, r)
	return r
}
