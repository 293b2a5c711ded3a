package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// step is the bytes that a turn reads or writes.
const step = 512

// stream generates the loop over memory. What it does with each vector is in a list of turns, whose branches the
// processor foresees.
func (t tier) stream() {
	name := "stream" + t.name
	vec.Func(name, "func(p *byte, n, apart, parts, ahead int, turns *int, count int)")
	Doc(name+" goes through parts of memory that begin apart bytes after one another, from p on, in steps of",
		fmt.Sprintf("%d bytes up to n bytes. A turn of a step is two numbers: what it does, and how far from the part", step),
		"the memory for it is. Memory that is ahead of what is read is fetched, unless ahead is 0, and need not exist.",
		"A single turn reads from the beginning of the part.")
	p, n := Load(Param("p"), GP64()), Load(Param("n"), GP64())
	apart, parts, ahead := Load(Param("apart"), GP64()), Load(Param("parts"), GP64()), Load(Param("ahead"), GP64())
	turns, count := Load(Param("turns"), GP64()), Load(Param("count"), GP64())
	base, part, turn, left, at, fence := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	values := make([]reg.VecVirtual, step/t.width)
	for i := range values {
		values[i] = t.register()
		t.zero(values[i])
	}
	each := func(do func(value reg.VecVirtual, place Mem)) {
		for i, v := range values {
			do(v, Mem{Base: at, Disp: i * t.width})
		}
	}
	read := func(v reg.VecVirtual, place Mem) { VMOVUPS(place, v) }

	XORQ(fence, fence)
	CMPQ(count, Imm(1))
	JNE(LabelRef("steps"))
	CMPQ(parts, Imm(1))
	JNE(LabelRef("steps"))
	MOVQ(p, at)
	Label("alone") // one vector that is read, by the shortest loop
	each(read)
	ADDQ(U32(step), at)
	SUBQ(U32(step), n)
	JNZ(LabelRef("alone"))
	JMP(LabelRef("end"))

	Label("steps")
	MOVQ(p, base)
	MOVQ(parts, part)
	Label("parts")
	MOVQ(turns, turn)
	MOVQ(count, left)
	Label("turns")
	MOVQ(Mem{Base: turn, Disp: 8}, at)
	ADDQ(base, at)
	CMPQ(Mem{Base: turn}, Imm(1))
	JEQ(LabelRef("write"))
	JGT(LabelRef("around"))
	each(read)
	TESTQ(ahead, ahead)
	JZ(LabelRef("next"))
	for line := 0; line < step; line += 64 {
		PREFETCHT0(Mem{Base: at, Index: ahead, Scale: 1, Disp: line})
	}
	JMP(LabelRef("next"))
	Label("write")
	each(func(v reg.VecVirtual, place Mem) { VMOVUPS(v, place) })
	JMP(LabelRef("next"))
	Label("around")
	MOVQ(U32(1), fence)
	each(func(v reg.VecVirtual, place Mem) { VMOVNTPS(v, place) })
	Label("next")
	ADDQ(Imm(16), turn)
	DECQ(left)
	JNZ(LabelRef("turns"))
	ADDQ(apart, base)
	DECQ(part)
	JNZ(LabelRef("parts"))
	ADDQ(U32(step), p)
	SUBQ(U32(step), n)
	JNZ(LabelRef("steps"))
	Label("end")
	VZEROUPPER()
	TESTQ(fence, fence)
	JZ(LabelRef("done"))
	SFENCE()
	Label("done")
	RET()
}
