package main

import (
	"fmt"

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

// codesAhead is how far codes are fetched.
const codesAhead = 2048

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
	vec.Func(name, "func(x *float32, codes *uint8, m *"+param+", absmax *float32, blocks, block int)", name+" "+doc)
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
			PREFETCHT0(codes.At(codesAhead))
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
	vec.Func(name, "func(codes *uint8, x *float32, n int, absmax, scaled float32, cells *uint32, lines *byte)")
	if negative {
		Doc(name + " writes the codes of x/absmax where Encoder.Quick is ok and the encoder has lines.")
	} else {
		Doc(name + " is encodeVBMI for elements from 0 on.")
	}
	e := newEncoder(negative)
	n := Load(Param("n"), GP64())
	pair := func() { e.groups("pair", 2) }
	single := func() { e.groups("single", 1) }
	vec.Loop("loop", n, 2*group, []vec.Pointer{e.codes, e.x}, pair)
	vec.Loop("rest", n, group, []vec.Pointer{e.codes, e.x}, single)
	vec.End()
	for _, slow := range e.slow {
		slow()
	}
}

// encoder has the constants of encodeVBMI in registers.
type encoder struct {
	vec.Set
	negative                           bool
	codes, x                           vec.Pointer
	scaled, bias, magnitude, nothing   reg.VecVirtual
	keys                               vec.Bytes
	slope, offset, zero, keep          reg.VecVirtual
	bucketAt, codeAt, unclear, natural reg.VecVirtual
	odd, third, upper                  reg.Register // masks of bytes 1 of lanes, of bytes 3, and of words 1
	slow                               []func()     // what is emitted after the function
}

func newEncoder(negative bool) *encoder {
	s := vec.AVX512
	e := &encoder{Set: s, negative: negative, codes: vec.Point("codes", 1), x: vec.Point("x", 4)}
	lines := Load(Param("lines"), GP64())
	field := func(off int) Mem { return Mem{Base: lines, Disp: off} }
	e.scaled, e.bias = s.Broadcast(Param("scaled")), s.Constant(lineBias)
	for i, at := range vec.BytesAt(field(offKey)) {
		r := s.Register()
		VMOVDQU64(at, r)
		e.keys[i] = r
	}
	e.slope, e.offset, e.zero = s.Register(), s.Register(), s.Register()
	VMOVUPS(field(offSlope), e.slope)
	VMOVUPS(field(offOffset), e.offset)
	VPBROADCASTB(field(offZero), e.zero)
	if negative {
		e.magnitude, e.nothing, e.keep = s.Constant(0x7fffffff), s.Zero(), s.Register()
		VPBROADCASTB(field(offKeep), e.keep)
	}
	e.bucketAt, e.codeAt, e.unclear = fieldOfLanes(bucketBit), fieldOfLanes(codeBit), s.Constant(unclear)
	e.natural = vec.Permutation("natural", 1, func(i int) int { return i%16*4 + i/16 })
	e.odd, e.third, e.upper = mask(0x2222222222222222), mask(0x8888888888888888), mask(0xaaaaaaaa)
	return e
}

// groups encodes one or two groups, step by step: a core looks only a few dozen instructions ahead.
func (e *encoder) groups(name string, count int) {
	at := func(i, k int) Mem { return e.x.At(i*group + k*e.Lanes) }
	var y, t [2][4]reg.VecVirtual
	var number [2]reg.VecVirtual
	var near [2]reg.Register
	for i := range count {
		for k := range y[i] {
			y[i][k] = e.Register()
			if e.negative {
				PREFETCHT0(at(i, k).Offset(4 * ahead))
				VPANDD(at(i, k), e.magnitude, y[i][k])
				VFMADD213PS(e.bias, e.scaled, y[i][k])
			} else {
				VMOVAPS(e.bias, y[i][k])
				VFMADD231PS(at(i, k), e.scaled, y[i][k])
			}
		}
		number[i] = e.fields(y[i], e.bucketAt)
	}
	for i := range count {
		number[i] = e.keys.Lookup(number[i], vec.High(number[i]))
	}
	for i := range count {
		mask := maskOfGroup(func(k int, to reg.Register) {
			slopes, of := e.Register(), number[i]
			t[i][k] = e.Register()
			if k > 0 {
				of = e.Register()
				VPSRLD(Imm(uint64(8*k)), number[i], of)
			}
			VPERMPS(e.slope, of, slopes)
			VPERMPS(e.offset, of, t[i][k])
			VFMADD231PS(slopes, y[i][k], t[i][k])
			VPTESTNMD(e.unclear, t[i][k], to)
		})
		near[i] = GP64() // there are few registers of masks
		KMOVQ(mask, near[i])
	}
	for i := range count {
		found, code := e.fields(t[i], e.codeAt), e.Register()
		VPERMB(found, e.natural, found)
		if e.negative {
			below := maskOfGroup(func(k int, to reg.Register) { VCMPPS(Imm(greater), at(i, k), e.nothing, to) })
			VPMAXUB(e.keep, found, below, found)
			VPADDB(e.zero, found, code)
			VPSUBUSB(found, e.zero, below, code)
		} else {
			VPADDB(e.zero, found, code)
		}
		VMOVDQU64(code, e.codes.At(i*group))
	}
	for i := range count {
		e.ifNear(fmt.Sprint(name, i), i*group, near[i])
	}
}

// fields returns a field of four registers: byte k of a lane is of register k.
func (e *encoder) fields(from [4]reg.VecVirtual, field reg.VecVirtual) reg.VecVirtual {
	var f [4]reg.VecVirtual
	for k := range from {
		f[k] = e.Register()
		VPMULTISHIFTQB(from[k], field, f[k])
	}
	VMOVDQU8(f[1], e.odd, f[0])
	VMOVDQU8(f[3], e.third, f[2])
	VMOVDQU16(f[2], e.upper, f[0])
	return f[0]
}

// ifNear writes the codes of the elements in a mask of the group at off as Encoder.Code finds them.
func (e *encoder) ifNear(name string, off int, left reg.Register) {
	e.slow = append(e.slow, nearOnes(e.Set, e.codes, e.x, name, off, left, func() {}))
}

// nearOnes generates a jump to code that writes the codes of the elements in a mask, from element off on, as
// Encoder.Code finds them, and comes back. begin is what that code begins with. It returns what generates that code.
func nearOnes(s vec.Set, codes, x vec.Pointer, name string, off int, left reg.Register, begin func()) (slow func()) {
	near, done, one, low := name+"Near", name+"Done", name+"One", name+"Low"
	TESTQ(left, left)
	JNE(LabelRef(near))
	Label(done)
	return func() {
		i, cell, high, bits := GP64(), GP32(), GP32(), GP32()
		Label(near)
		begin()
		absmax, q, none := s.Broadcast(Param("absmax")).AsX(), XMM(), s.Zero().AsX()
		cells := Load(Param("cells"), GP64())
		Label(one)
		TZCNTQ(left, i)
		VADDSS(vec.Indexed(x, i).Offset(4*off), none, q)
		VDIVSS(absmax, q, q)
		VMOVD(q, bits)
		MOVL(bits, cell)
		SHRL(Imm(16), cell)
		MOVL(Mem{Base: cells, Index: cell.As64(), Scale: 4}, cell)
		MOVWLZX(bits.As16(), bits)
		MOVL(cell, high)
		SHRL(Imm(16), high)
		CMPL(bits, high)
		JLS(LabelRef(low))
		SHRL(Imm(8), cell)
		Label(low)
		MOVB(cell.As8(), vec.Indexed(codes, i).Offset(off))
		BLSRQ(left, left)
		JNE(LabelRef(one))
		JMP(LabelRef(done))
	}
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

// mask returns a mask of these bits.
func mask(bits uint64) reg.Register {
	word, r := GP64(), K()
	MOVQ(U64(bits), word)
	KMOVQ(word, r)
	return r
}
