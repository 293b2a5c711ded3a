package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// mix is how many vectors of one size a loop reads and writes at the same time.
type mix struct {
	in, out int
	stores  stores
}

// stores say where the vectors that are written lie, and how they are.
type stores string

const (
	fresh   stores = ""        // beside those that are read
	around  stores = "Around"  // the same, around the caches
	inPlace stores = "InPlace" // they are the first of those that are read
)

var mixes = []mix{
	{1, 0, fresh},
	{1, 1, fresh}, {2, 1, fresh}, {4, 1, fresh}, {1, 2, fresh}, {1, 4, fresh}, {3, 2, fresh},
	{1, 1, around}, {2, 1, around}, {4, 1, around}, {1, 2, around}, {1, 4, around}, {3, 2, around},
	{1, 1, inPlace}, {2, 1, inPlace}, {3, 1, inPlace}, {4, 3, inPlace},
}

// The processor fetches ahead within pages of 4 KiB only, so that a stream waits at the beginning of
// each. Loops on several parts of each vector have more to do meanwhile, and ask for the next page themselves.
const (
	step  = 256 // bytes of each part at a time
	ahead = 4096
)

// stream generates a loop over memory.
func (t tier) stream(m mix, parts int) {
	name := fmt.Sprintf("stream%dto%d%sBy%d%s", m.in, m.out, m.stores, parts, t.name)
	TEXT(name, NOSPLIT, "func(p *byte, n, apart, vector int)")
	Pragma("noescape")
	Doc(name+" goes through vectors that begin vector bytes after one another. Parts of them are",
		fmt.Sprintf("apart bytes after one another, and have n bytes, a positive multiple of %d.", step))
	n, apart, vector := Load(Param("n"), GP64()), Load(Param("apart"), GP64()), Load(Param("vector"), GP64())
	three := GP64()
	LEAQ(Mem{Base: vector, Index: vector, Scale: 2}, three)
	at := make([]reg.GPVirtual, parts)
	for i := range at {
		at[i] = GP64()
		if i == 0 {
			Load(Param("p"), at[0])
		} else {
			LEAQ(Mem{Base: at[i-1], Index: apart, Scale: 1}, at[i])
		}
	}
	place := func(base reg.Register, v, disp int) Mem {
		switch v {
		case 0:
			return Mem{Base: base, Disp: disp}
		case 3:
			return Mem{Base: base, Index: three, Scale: 1, Disp: disp}
		}
		return Mem{Base: base, Index: vector, Scale: uint8(v), Disp: disp}
	}

	Label("loop")
	for _, base := range at {
		for line := 0; line < step; line += 64 {
			t.line(m, parts > 1, func(v, disp int) Mem { return place(base, v, line+disp) })
		}
		ADDQ(U32(step), base)
	}
	SUBQ(U32(step), n)
	JNZ(LabelRef("loop"))
	if m.stores == around {
		SFENCE()
	}
	VZEROUPPER()
	RET()
}

// near is how far ahead lines asks for memory, in the second-level cache.
const near = 2048

// lines generates a loop in place that goes on with the next vector after each step. That keeps memory busy where
// the first-level cache cannot hold lines of all vectors together.
func (t tier) lines(m mix) {
	name := fmt.Sprintf("stream%dto%d%sByLines%s", m.in, m.out, m.stores, t.name)
	TEXT(name, NOSPLIT, "func(p *byte, n, apart, vector int)")
	Pragma("noescape")
	Doc(name+" goes through vectors that begin vector bytes after one another and",
		fmt.Sprintf("have n bytes, a positive multiple of %d.", step))
	n, vector, first := Load(Param("n"), GP64()), Load(Param("vector"), GP64()), Load(Param("p"), GP64())
	at := GP64()
	Label("loop")
	MOVQ(first, at)
	for v := range m.in {
		var values []reg.VecVirtual
		for disp := 0; disp < step; disp += t.width {
			if disp%64 == 0 {
				PREFETCHT1(Mem{Base: at, Disp: near + disp}) // which need not exist
			}
			r := t.register()
			VMOVUPS(Mem{Base: at, Disp: disp}, r)
			values = append(values, r)
		}
		for i, r := range values {
			if v < m.out {
				VMOVUPS(r, Mem{Base: at, Disp: i * t.width})
			}
		}
		ADDQ(vector, at)
	}
	ADDQ(U32(step), first)
	SUBQ(U32(step), n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// line reads and writes a cache line of each vector. Vector in+i of those beside gets what vector i holds.
func (t tier) line(m mix, fetch bool, place func(v, disp int) Mem) {
	values := make([][]reg.VecVirtual, m.in)
	for v := range values {
		for disp := 0; disp < 64; disp += t.width {
			r := t.register()
			VMOVUPS(place(v, disp), r)
			values[v] = append(values[v], r)
		}
		if fetch {
			PREFETCHT0(place(v, ahead)) // which need not exist
		}
	}
	for v := range m.out {
		to := v
		if m.stores != inPlace {
			to += m.in
		}
		for i, r := range values[v%m.in] {
			if m.stores == around {
				VMOVNTPS(r, place(to, i*t.width))
			} else {
				VMOVUPS(r, place(to, i*t.width))
			}
		}
	}
}
