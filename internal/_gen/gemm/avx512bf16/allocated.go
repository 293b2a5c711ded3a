package avx512bf16

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Convert is VCVTNE2PS2BF16 for registers that avo allocates: the bytes are made when it prints them.
func Convert(low, high, dst reg.Register) {
	first := &ir.Instruction{Opcode: "LONG", Inputs: []operand.Op{low, high}, Outputs: []operand.Op{dst}}
	first.Operands = []operand.Op{code{operand.U32(0), first, 0x72, 3, false}}
	Comment("VCVTNE2PS2BF16")
	Instruction(first)
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []operand.Op{code{operand.U16(0), first, 0x72, 3, true}}})
}

// code is half of the bytes of an instruction with three registers.
type code struct {
	operand.Constant // for avo
	of               *ir.Instruction
	opcode, prefix   uint8
	second           bool
}

// Asm returns the bytes, once the registers of the instruction are physical ones.
func (c code) Asm() string {
	number := func(o operand.Op) uint8 { return uint8(o.(reg.Register).(reg.Physical).ID().Index()) }
	b := bytes(c.prefix, c.opcode, number(c.of.Inputs[0]), number(c.of.Inputs[1]), number(c.of.Outputs[0]))
	if c.second {
		return fmt.Sprintf("$%#04x", binary.LittleEndian.Uint16(b[4:]))
	}
	return fmt.Sprintf("$%#08x", binary.LittleEndian.Uint32(b[:]))
}

// bytes returns EVEX.512 of map 0F38 and W0 with the registers m (in the ModRM byte), v and d.
func bytes(prefix, opcode, m, v, d uint8) [6]uint8 {
	not := func(bit, shift uint8) uint8 { return (^bit & 1) << shift }
	return [6]uint8{
		0x62,
		not(d>>3, 7) | not(m>>4, 6) | not(m>>3, 5) | not(d>>4, 4) | 2, // R X B R', map 0F38
		(^v&15)<<3 | 1<<2 | prefix,                                    // W0, v
		2<<5 | not(v>>4, 3),                                           // 512 bits, v', no mask
		opcode,
		3<<6 | (d&7)<<3 | m&7,
	}
}
