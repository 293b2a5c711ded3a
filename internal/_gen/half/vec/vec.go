// Package vec has what the generators of loops over vectors share: the two
// instruction sets, the parallel pointers of a loop, and the element types.
package vec

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Set is a vector instruction set.
type Set struct {
	Name     string
	Lanes    int // float32 values of a register
	Register func() reg.VecVirtual
}

// Sets are those that kernels are generated for.
var (
	AVX2   = Set{"AVX2", 8, YMM}
	AVX512 = Set{"AVX512", 16, ZMM}
	Sets   = []Set{AVX2, AVX512}
)

// Bytes returns the size of a register.
func (s Set) Bytes() int { return 4 * s.Lanes }

// Wide reports whether s is AVX-512.
func (s Set) Wide() bool { return s.Lanes == 16 }

// Func begins a function whose pointers do not escape, with the lines of its comment.
func Func(name, signature string, doc ...string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	if len(doc) > 0 {
		Doc(doc...)
	}
}

// Fence makes the function fence.
func Fence(doc string) {
	TEXT("fence", NOSPLIT, "func()")
	Doc("fence " + doc)
	SFENCE()
	RET()
}

// Broadcast returns a float32 parameter in every lane.
func (s Set) Broadcast(param gotypes.Component) reg.VecVirtual {
	basic, err := param.Resolve()
	if err != nil {
		panic(err)
	}
	r := s.Register()
	VBROADCASTSS(basic.Addr, r)
	return r
}

// Constant returns 32 bits in every lane.
func (s Set) Constant(bits uint32) reg.VecVirtual {
	word, r := GP32(), s.Register()
	MOVL(U32(bits), word)
	if s.Wide() {
		VPBROADCASTD(word, r)
	} else {
		x := XMM()
		VMOVD(word, x)
		VPBROADCASTD(x, r)
	}
	return r
}

// Zero returns a register of zeros.
func (s Set) Zero() reg.VecVirtual {
	r := s.Register()
	if s.Wide() {
		VPXORD(r, r, r)
	} else {
		VXORPS(r, r, r)
	}
	return r
}

// And returns a & b.
func (s Set) And(a, b reg.VecVirtual) reg.VecVirtual {
	r := s.Register()
	if s.Wide() {
		VPANDD(a, b, r)
	} else {
		VPAND(a, b, r)
	}
	return r
}

// Or sets b to a | b.
func (s Set) Or(a, b reg.VecVirtual) {
	if s.Wide() {
		VPORD(a, b, b)
	} else {
		VPOR(a, b, b)
	}
}

// Gather returns the 32 bits at base + 4·index.
func (s Set) Gather(base Mem, index reg.VecVirtual) reg.VecVirtual {
	to := s.Zero()
	base.Index, base.Scale = index, 4
	if s.Wide() {
		all := K() // of K0, so that it does not wait for the gather before
		KXNORW(reg.K0, reg.K0, all)
		VPGATHERDD(base, all, to)
	} else {
		all := YMM()
		VPCMPEQD(all, all, all)
		VPGATHERDD(all, base, to)
	}
	return to
}

// Lookup returns the values that bytes stand for in a table of float32. Processors that have AVX2 alone load them one
// by one faster than they gather them.
func (s Set) Lookup(table reg.Register, codes Mem) reg.VecVirtual {
	if !s.Wide() {
		return lookupOnes(table, codes)
	}
	index := s.Register()
	VPMOVZXBD(codes, index)
	return s.Gather(Mem{Base: table}, index)
}

// lookupOnes returns the values that 8 bytes stand for in a table of float32.
func lookupOnes(table reg.Register, codes Mem) reg.VecVirtual {
	value, high, index := YMM(), XMM(), GP32()
	for half, to := range []reg.Register{value.AsX(), high} {
		for i := range 4 {
			MOVBLZX(codes.Offset(4*half+i), index)
			from := Mem{Base: table, Index: index.As64(), Scale: 4}
			if i == 0 {
				VMOVSS(from, to)
			} else {
				VINSERTPS(Imm(uint64(16*i)), from, to, to)
			}
		}
	}
	VINSERTF128(Imm(1), high, value, value)
	return value
}

// Largest returns the largest of the lanes as unsigned integers. It overwrites
// x.
func (s Set) Largest(x reg.VecVirtual) reg.Register {
	if s.Wide() {
		half := YMM()
		VEXTRACTI64X4(Imm(1), x, half)
		VPMAXUD(half, x.AsY(), x.AsY())
	}
	other, most := XMM(), GP32()
	if s.Wide() { // x may be one of the registers that only AVX-512 has
		VEXTRACTI32X4(Imm(1), x.AsY(), other)
	} else {
		VEXTRACTI128(Imm(1), x.AsY(), other)
	}
	VPMAXUD(other, x.AsX(), x.AsX())
	for _, swap := range []uint64{0x4e, 0xb1} { // pairs of lanes, then lanes
		VPSHUFD(Imm(swap), x.AsX(), other)
		VPMAXUD(other, x.AsX(), x.AsX())
	}
	VMOVD(x.AsX(), most)
	return most
}

// Total adds the lanes of x, of 8 or 16 floats: halves to halves. It does not change x. Of 16 it has instructions that take registers
// which only AVX-512 has.
func Total(x reg.VecVirtual) reg.VecVirtual {
	sum, other := XMM(), XMM()
	if x.Size() == 64 {
		half := YMM()
		VEXTRACTF64X4(Imm(1), x, half)
		VADDPS(half, x.AsY(), half)
		VEXTRACTF32X4(Imm(1), half, sum)
		x = half
	} else {
		VEXTRACTF128(Imm(1), x.AsY(), sum)
	}
	VADDPS(sum, x.AsX(), sum)
	VMOVHLPS(sum, sum, other)
	VADDPS(other, sum, sum)
	VMOVSHDUP(sum, other)
	VADDSS(other, sum, sum)
	return sum
}

// Pointer is a pointer parameter that goes through a vector.
type Pointer struct {
	reg  reg.Register
	size int // of an element
}

// Point loads a pointer parameter to elements of size bytes.
func Point(param string, size int) Pointer { return Pointer{Load(Param(param), GP64()), size} }

// At returns the operand i elements on.
func (p Pointer) At(i int) Mem { return Mem{Base: p.reg, Disp: i * p.size} }

// Indexed returns the operand i elements on.
func Indexed(p Pointer, i reg.Register) Mem {
	return Mem{Base: p.reg, Index: i, Scale: uint8(p.size)}
}

// Advance adds n elements.
func (p Pointer) Advance(n int) { ADDQ(I32(int32(n*p.size)), p.reg) }

// Skip advances it by as many elements as a parameter says.
func (p Pointer) Skip(param string) {
	n := Load(Param(param), GP64())
	LEAQ(Mem{Base: p.reg, Index: n, Scale: uint8(p.size)}, p.reg)
}

// ParamAddr returns where a parameter is in memory, which a loop may count down.
func ParamAddr(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// Loop repeats body for step elements while n, which it counts down, has as
// many left, and moves the pointers along.
func Loop(label string, n reg.Register, step int, pointers []Pointer, body func()) {
	Label(label)
	CMPQ(n, I32(int32(step)))
	JLT(LabelRef(label + "End"))
	body()
	for _, p := range pointers {
		p.Advance(step)
	}
	SUBQ(I32(int32(step)), n)
	JMP(LabelRef(label))
	Label(label + "End")
}

// A block is four quarters, which a loop goes through together: a core fetches
// four pages at a time faster than one after the other.
const (
	Quarters = 4
	Quarter  = 2048 // elements
)

// Blocks repeats body for width elements from at on, in each quarter q, and end
// after every block, while n, which it counts down, has whole blocks left. It
// moves the pointers along.
func Blocks(n reg.Register, width int, pointers []Pointer, body func(q, at int), end func()) {
	Loop("block", n, Quarters*Quarter, pointers, func() {
		left := GP64()
		MOVQ(U32(Quarter), left)
		Loop("quarter", left, width, pointers, func() {
			for q := range Quarters {
				body(q, q*Quarter)
			}
		})
		end()
		for _, p := range pointers {
			p.Advance(-Quarter)
		}
	})
}

// End ends a function.
func End() {
	VZEROUPPER()
	RET()
}
