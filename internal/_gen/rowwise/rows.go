package main

import (
	"fmt"
	"math"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// More immediates.
const (
	above   = operand.U8(6) // VPCMPUW: greater
	differs = operand.U8(4) // VPCMPUW: not equal

	subnormal = operand.U8(0x20) // VFPCLASSPS
)

// rows is a function over rows of float32 or, with AVX-512, of bfloat16. It
// works on units of two vectors of float32. A unit of bfloat16 is 64 bytes, and
// its vectors are the elements of even and of odd number, since one instruction
// makes either a float32: a shift or a mask. In order they are the first and the
// second half instead, for functions with float32 operands that others read.
//
// A float32 operand of a function over bfloat16 has the order of its vectors,
// also in memory: the even elements of a unit before the odd ones, and likewise
// in the last one, which may have fewer.
type rows struct {
	*function
	bf16     bool
	converts bool // with the processor's instruction
	inOrder  bool
	floats   map[string]bool // slices of float32
	n        reg.GPVirtual   // elements
	second   reg.GPVirtual   // the second vector's first element, in the tail
	masks    [2]reg.Register // of the vectors in the tail
	words    reg.OpmaskVirtual
	pack     *packing
	streams  reg.GPVirtual // not 0 to store around the caches, nil for never
	grouped  int           // units that the loop under construction does together
	labels   int
}

// unit is two vectors.
type unit [2]reg.VecVirtual

// kind is an element type and an instruction set: AVX2, AVX-512, or AVX-512 with its conversion to bfloat16.
type kind struct{ wide, bf16, converts bool }

var kinds = []kind{{false, false, false}, {true, false, false}, {true, true, false}, {true, true, true}}

// suffix tells the functions of a kind from those of others.
func (k kind) suffix() string {
	if k.bf16 {
		return "BF16" + k.set()
	}
	return k.set()
}

func (k kind) set() string {
	switch {
	case k.converts:
		return "AVX512BF16"
	case k.wide:
		return "AVX512"
	}
	return "AVX2"
}

// beginRows starts a function. T in the signature is the element type. Slices
// named in floats are float32 in any case.
func beginRows(k kind, name, signature string, floats []string, order ...string) *rows {
	base, element := name, "float32"
	if k.bf16 {
		base, element = name+"BF16", "uint16"
	}
	r := &rows{bf16: k.bf16, converts: k.converts, floats: map[string]bool{}}
	for _, s := range floats {
		r.floats[s] = true
	}
	r.function = beginSet(k.set(), base, "is "+name+", on vectors.", replaceType(signature, element), order...)
	r.n = r.left
	r.left = GP64()
	return r
}

// streamed reads the parameter stream. Stores around the caches need dst to be
// aligned.
func (r *rows) streamed(dsts ...string) {
	r.streams = GP64()
	flag := Load(Param("stream"), GP8())
	MOVBLZX(flag, r.streams.As32())
	zero := GP64()
	XORL(zero.As32(), zero.As32())
	for _, dst := range dsts {
		TESTQ(operand.U32(63), r.ptr[dst])
		CMOVQNE(zero, r.streams)
	}
}

func (r *rows) unitLen() int { return 2 * r.lanes() }

// pass emits a loop over all units: groups of several, single ones, and the rest
// under masks.
func (r *rows) pass(name string, group int, body func(u int)) {
	next := func(s string) string { return name + s }
	XORL(r.at.As32(), r.at.As32())
	MOVQ(r.n, r.left)
	if group > 1 {
		r.units(next("Group"), group, next("Unit"), body)
	}
	r.units(next("Unit"), 1, next("Tail"), body)
	Label(next("Tail"))
	TESTQ(r.left, r.left)
	JZ(operand.LabelRef(next("Done")))
	r.tail = true
	r.setMasks()
	body(0)
	r.tail = false
	Label(next("Done"))
}

// together is pass for a body that gets the numbers of all units that it does.
func (r *rows) together(name string, group int, body func(us []int)) {
	var us []int
	r.pass(name, group, func(u int) {
		if us = append(us, u); r.tail || len(us) == r.grouped {
			body(us)
			us = nil
		}
	})
}

func (r *rows) units(label string, group int, next string, body func(u int)) {
	n := operand.U32(group * r.unitLen())
	Label(label)
	CMPQ(r.left, n)
	JLT(operand.LabelRef(next))
	r.grouped = group
	for u := range group {
		body(u)
	}
	ADDQ(n, r.at)
	SUBQ(n, r.left)
	JMP(operand.LabelRef(label))
}

// setMasks selects the elements that are left, fewer than a unit.
func (r *rows) setMasks() {
	first, second := GP64(), GP64()
	if r.bf16 && !r.inOrder {
		MOVQ(r.left, second)
		SHRQ(operand.U8(1), second)
		MOVQ(r.left, first)
		SUBQ(second, first)
	} else {
		lanes, none := GP64(), GP64()
		MOVL(operand.U32(r.lanes()), lanes.As32())
		XORL(none.As32(), none.As32())
		MOVQ(r.left, first)
		CMPQ(first, lanes)
		CMOVQGT(lanes, first)
		MOVQ(r.left, second)
		SUBQ(lanes, second)
		CMOVQLT(none, second)
	}
	r.second = GP64()
	LEAQ(operand.Mem{Base: r.at, Index: first, Scale: 1}, r.second)
	for i, n := range []reg.GPVirtual{first, second} {
		if r.wide {
			r.masks[i] = bits(n)
		} else {
			r.masks[i] = laneMask(n)
		}
	}
	if r.bf16 {
		r.words = bits(r.left)
	}
}

// bits returns a mask of the lower n < 32 bits.
func bits(n reg.GPVirtual) reg.OpmaskVirtual {
	b, k := GP32(), K()
	MOVL(operand.U32(math.MaxUint32), b)
	BZHIL(n.As32(), b, b)
	KMOVD(b, k)
	return k
}

// laneMask selects the lower n lanes of AVX2.
func laneMask(n reg.GPVirtual) reg.VecVirtual {
	mask, table, back := YMM(), GP64(), GP64()
	LEAQ(symbol("laneMasks", append(slices.Repeat([]uint32{math.MaxUint32}, 8), make([]uint32, 8)...)...), table)
	MOVQ(n, back)
	NEGQ(back)
	VMOVDQU(operand.Mem{Base: table, Index: back, Scale: 4, Disp: 32}, mask)
	return mask
}

func (r *rows) half(slice string) bool { return r.bf16 && !r.floats[slice] }

// place is the address of vector v of unit u of a float32 slice, or of unit u of
// a bfloat16 one.
func (r *rows) place(slice string, u, v int) operand.Mem {
	if r.half(slice) {
		return operand.Mem{Base: r.ptr[slice], Index: r.at, Scale: 2, Disp: 64 * u}
	}
	if r.tail && v == 1 {
		return operand.Mem{Base: r.ptr[slice], Index: r.second, Scale: 4}
	}
	return operand.Mem{Base: r.ptr[slice], Index: r.at, Scale: 4, Disp: (2*u + v) * r.width()}
}

// get reads unit u of a slice. Elements beyond its end are zero.
func (r *rows) get(slice string, u int) unit {
	x := unit{r.vec(), r.vec()}
	if r.half(slice) {
		r.widen(slice, u, x)
		return x
	}
	for v := range x {
		from := r.place(slice, u, v)
		switch {
		case !r.tail:
			VMOVUPS(from, x[v])
		case r.wide:
			VMOVUPS_Z(from, r.masks[v], x[v])
		default:
			VMASKMOVPS(from, r.masks[v], x[v])
		}
	}
	return x
}

// gets, fetches and puts do several units.
func (r *rows) gets(slice string, us []int) (x vectors) {
	for _, u := range us {
		v := r.get(slice, u)
		x = append(x, v[:]...)
	}
	return x
}

func (r *rows) fetches(slice string, us []int) (x vectors) {
	for _, u := range us {
		v := r.fetch(slice, u)
		x = append(x, v[:]...)
	}
	return x
}

func (r *rows) puts(x vectors, slice string, us []int) {
	for i, u := range us {
		r.put(unit(x[2*i:]), slice, u)
	}
}

// page is how many bytes before their use data are fetched from memory: a page, since the processor itself fetches ahead
// within pages only.
const page = 4096

// fetch reads unit u of a slice that comes from memory, and fetches what comes
// a while later.
func (r *rows) fetch(slice string, u int) unit {
	x := r.get(slice, u)
	r.prefetch(slice, u, page)
	return x
}

// prefetch fetches what lies some bytes after unit u, by lines of 64 bytes.
func (r *rows) prefetch(slice string, u, bytes int) {
	if r.tail {
		return
	}
	at := r.place(slice, u, 0)
	at.Disp += bytes
	PREFETCHT1(at)
	if r.wide && !r.half(slice) {
		at.Disp += 64
		PREFETCHT1(at)
	}
}

func (r *rows) widen(slice string, u int, x unit) {
	from := operand.Op(r.place(slice, u, 0))
	if r.inOrder {
		low, high := r.place(slice, u, 0), r.place(slice, u, 0)
		high.Disp += 32
		if r.tail {
			VPMOVZXWD_Z(low, r.masks[0], x[0])
			VPMOVZXWD_Z(high, r.masks[1], x[1])
		} else {
			VPMOVZXWD(low, x[0])
			VPMOVZXWD(high, x[1])
		}
		VPSLLD(operand.U8(16), x[0], x[0])
		VPSLLD(operand.U8(16), x[1], x[1])
		return
	}
	if r.tail {
		both := ZMM()
		VMOVDQU16_Z(from, r.words, both)
		from = both
	}
	VPSLLD(operand.U8(16), from, x[0])
	VPANDD(from, r.pack.upper, x[1])
}

// put writes unit u of a slice.
func (r *rows) put(x unit, slice string, u int) {
	if r.half(slice) {
		v := r.narrow(x)
		if r.tail {
			VMOVDQU16(v, r.words, r.place(slice, u, 0))
		} else {
			r.putWords(v, slice, u)
		}
		return
	}
	if r.tail {
		for v := range x {
			if r.wide {
				VMOVUPS(x[v], r.masks[v], r.place(slice, u, v))
			} else {
				VMASKMOVPS(x[v], r.masks[v], r.place(slice, u, v))
			}
		}
		return
	}
	each := func(move func(ops ...operand.Op)) func() {
		return func() {
			for v := range x {
				move(x[v], r.place(slice, u, v))
			}
		}
	}
	plain := each(func(ops ...operand.Op) { VMOVUPS(ops...) })
	if r.floats[slice] {
		plain()
		return
	}
	r.around(each(func(ops ...operand.Op) { VMOVNTPS(ops[0], ops[1]) }), plain)
}

// putWords writes unit u of a slice of bfloat16.
func (r *rows) putWords(v reg.VecVirtual, slice string, u int) {
	r.around(
		func() { VMOVNTDQ(v, r.place(slice, u, 0)) },
		func() { VMOVDQU16(v, r.place(slice, u, 0)) })
}

// around emits both ways of a store.
func (r *rows) around(stream, plain func()) {
	if r.streams == nil {
		plain()
		return
	}
	r.labels++
	cached, done := fmt.Sprintf("cached%d", r.labels), fmt.Sprintf("stored%d", r.labels)
	TESTL(r.streams.As32(), r.streams.As32())
	JZ(operand.LabelRef(cached))
	stream()
	JMP(operand.LabelRef(done))
	Label(cached)
	plain()
	Label(done)
}

// when emits body for a flag that is not 0.
func (r *rows) when(flag reg.GPVirtual, body func()) {
	r.labels++
	done := fmt.Sprintf("skip%d", r.labels)
	TESTL(flag.As32(), flag.As32())
	JZ(operand.LabelRef(done))
	body()
	Label(done)
}
