package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// Immediates of the instructions used.
const (
	nearest   = operand.U8(8)  // VROUNDPS, VRNDSCALEPS: to an integer, ties to even
	notBelow  = operand.U8(21) // VCMPPS: not less than, true for NaN
	notAbove  = operand.U8(26) // VCMPPS: not greater than, true for NaN
	notReach  = operand.U8(25) // VCMPPS: not greater than or equal to, true for NaN
	greater   = operand.U8(30) // VCMPPS: greater than, false for NaN
	noLess    = operand.U8(5)  // VPCMPUD: not less than
	orderOf1  = operand.U8(1)  // VSHUFF32X4 and friends: the upper half first
	swapPairs = operand.U8(0xb1)
)

// function is a row loop under construction.
type function struct {
	wide bool                     // AVX-512
	ptr  map[string]reg.GPVirtual // the slices
	at   reg.GPVirtual            // bytes done
	left reg.GPVirtual            // elements left
	tail bool                     // the body under construction is masked
	k    reg.OpmaskVirtual        // the mask, AVX-512
	mask reg.VecVirtual           // the mask, AVX2
}

// begin starts func name(slices ... []float32, scalars ... float32) results.
func begin(wide bool, name, doc, signature string, slices ...string) *function {
	set := "AVX2"
	if wide {
		set = "AVX512"
	}
	return beginSet(set, name, doc, signature, slices...)
}

// beginSet is begin for an instruction set.
func beginSet(set, name, doc, signature string, slices ...string) *function {
	f := &function{wide: set != "AVX2", ptr: map[string]reg.GPVirtual{}}
	vec.Func(name+set, signature, name+set+" "+doc)
	for _, s := range slices {
		f.ptr[s] = GP64()
		Load(Param(s).Base(), f.ptr[s])
	}
	f.left = GP64()
	Load(Param(slices[0]).Len(), f.left)
	f.at = GP64()
	XORQ(f.at, f.at)
	return f
}

func (f *function) end() {
	VZEROUPPER()
	RET()
}

// width is the bytes of a vector, lanes its elements.
func (f *function) width() int {
	if f.wide {
		return 64
	}
	return 32
}

func (f *function) lanes() int { return f.width() / 4 }

func (f *function) vec() reg.VecVirtual {
	if f.wide {
		return ZMM()
	}
	return YMM()
}

func (f *function) zero() reg.VecVirtual {
	v := f.vec()
	f.xor(v, v, v)
	return v
}

func (f *function) xor(a, b, dst reg.VecVirtual) {
	if f.wide {
		VPXORD(a, b, dst)
	} else {
		VXORPS(a, b, dst)
	}
}

// loop emits the three loops of body, which gets the number of a vector within
// its group.
func (f *function) loop(group int, body func(u int)) {
	lanes := f.lanes()
	if group > 1 {
		f.vectors("group", group*lanes, "vectors", func() {
			for u := range group {
				body(u)
			}
		})
	}
	f.vectors("vectors", lanes, "tail", func() { body(0) })
	Label("tail")
	TESTQ(f.left, f.left)
	JZ(operand.LabelRef("done"))
	f.tail = true
	f.setMask()
	body(0)
	f.tail = false
	Label("done")
}

// vectors emits a loop over n elements at a time.
func (f *function) vectors(label string, n int, next string, body func()) {
	Label(label)
	CMPQ(f.left, operand.U32(n))
	JLT(operand.LabelRef(next))
	body()
	ADDQ(operand.U32(4*n), f.at)
	SUBQ(operand.U32(n), f.left)
	JMP(operand.LabelRef(label))
}

// setMask selects the lanes that are left.
func (f *function) setMask() {
	if f.wide {
		f.k = K()
		bits := GP32()
		MOVL(operand.U32(0xffff), bits)
		BZHIL(f.left.As32(), bits, bits)
		KMOVW(bits, f.k)
		return
	}
	f.mask = YMM()
	table, back := GP64(), GP64()
	LEAQ(symbol("laneMasks", append(slices.Repeat([]uint32{math.MaxUint32}, 8), make([]uint32, 8)...)...), table)
	MOVQ(f.left, back)
	NEGQ(back)
	VMOVDQU(operand.Mem{Base: table, Index: back, Scale: 4, Disp: 32}, f.mask)
}

// address of vector u of a slice.
func (f *function) address(slice string, u int) operand.Mem {
	return operand.Mem{Base: f.ptr[slice], Index: f.at, Scale: 1, Disp: u * f.width()}
}

// ahead is how many bytes before their use data are fetched, which need not
// exist.
const ahead = 2048

// load reads vector u of a slice; lanes beyond its end are zero.
func (f *function) load(slice string, u int) reg.VecVirtual {
	v, from := f.vec(), f.address(slice, u)
	switch {
	case !f.tail:
		VMOVUPS(from, v)
		from.Disp += ahead
		PREFETCHT0(from)
	case f.wide:
		VMOVUPS_Z(from, f.k, v)
	default:
		VMASKMOVPS(from, f.mask, v)
	}
	return v
}

// store writes vector u of a slice.
func (f *function) store(v reg.VecVirtual, slice string, u int) {
	to := f.address(slice, u)
	switch {
	case !f.tail:
		VMOVUPS(v, to)
	case f.wide:
		VMOVUPS(v, f.k, to)
	default:
		VMASKMOVPS(v, f.mask, to)
	}
}

// keep zeroes the lanes of v beyond the end of the slices.
func (f *function) keep(v reg.VecVirtual) {
	switch {
	case !f.tail:
	case f.wide:
		VMOVAPS_Z(v, f.k, v)
	default:
		VANDPS(f.mask, v, v)
	}
}

// scalar broadcasts a float32 parameter.
func (f *function) scalar(name string) reg.VecVirtual {
	v := f.vec()
	VBROADCASTSS(parameter(name), v)
	return v
}

// constant returns x in every lane: a register with AVX-512, which has enough,
// and memory with AVX2.
func (f *function) constant(x float32) operand.Op {
	if !f.wide {
		return lanesOf(math.Float32bits(x))
	}
	v := ZMM()
	VBROADCASTSS(lanesOf(math.Float32bits(x)), v)
	return v
}

// register returns a constant in a register, for instructions whose order of
// operands decides what a NaN gives.
func (f *function) register(c operand.Op) reg.VecVirtual {
	if v, ok := c.(reg.VecVirtual); ok {
		return v
	}
	v := f.vec()
	VMOVUPS(c, v)
	return v
}

// atLeast and atMost clamp x to a constant; NaN stays NaN.
func (f *function) atLeast(x reg.VecVirtual, low operand.Op) reg.VecVirtual {
	v := f.vec()
	VMAXPS(x, f.register(low), v)
	return v
}

func (f *function) atMost(x reg.VecVirtual, high operand.Op) reg.VecVirtual {
	v := f.vec()
	VMINPS(x, f.register(high), v)
	return v
}

// symbols are the constants of the file.
var symbols = map[string]operand.Mem{}

// symbol returns a symbol of words.
func symbol(name string, words ...uint32) operand.Mem {
	m, ok := symbols[name]
	if !ok {
		m = GLOBL(name, attr.RODATA|attr.NOPTR)
		for i, w := range words {
			DATA(4*i, operand.U32(w))
		}
		symbols[name] = m
	}
	return m
}

// lanesOf returns a symbol of 8 equal words.
func lanesOf(bits uint32) operand.Mem {
	return symbol(fmt.Sprintf("lanes%08x", bits), slices.Repeat([]uint32{bits}, 8)...)
}

// accumulators returns n registers of zeros.
func (f *function) accumulators(n int) []reg.VecVirtual {
	acc := make([]reg.VecVirtual, n)
	for i := range acc {
		acc[i] = f.zero()
	}
	return acc
}

// combine reduces accumulators to one element, pairwise, with op(a, b, dst).
func (f *function) combine(acc []reg.VecVirtual, op func(ops ...operand.Op)) reg.Register {
	for ; len(acc) > 1; acc = acc[:len(acc)/2] {
		for i := range len(acc) / 2 {
			op(acc[i+len(acc)/2], acc[i], acc[i])
		}
	}
	v := acc[0]
	y, other := v.AsY(), YMM()
	if f.wide {
		VEXTRACTF64X4(orderOf1, v, other)
		op(other, y, y)
	}
	x, t := v.AsX(), XMM()
	VEXTRACTF128(orderOf1, y, t)
	op(t, x, x)
	VPERMILPS(operand.U8(0x4e), x, t)
	op(t, x, x)
	VPERMILPS(swapPairs, x, t)
	op(t, x, x)
	return x
}

// result returns sums of accumulators from the function.
func (f *function) result(accs ...[]reg.VecVirtual) {
	var sums []reg.Register
	for _, acc := range accs {
		sums = append(sums, f.combine(acc, VADDPS))
	}
	f.finish(sums...)
}

// finish stores the results and returns.
func (f *function) finish(results ...reg.Register) {
	VZEROUPPER()
	for i, r := range results {
		Store(r, ReturnIndex(i))
	}
	RET()
}
