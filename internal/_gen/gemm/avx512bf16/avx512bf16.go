// Package avx512bf16 encodes the instruction of AVX512_BF16 that avo and the
// assembler lack.
package avx512bf16

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// VDPBF16PS adds to each float32 of dst the products of the two pairs of
// bfloat16 that stand in its place in x and y. The registers are 512 bits wide
// and physical, for bytes take no part in avo's allocation of registers. The
// encoding is EVEX.512.F3.0F38.W0 52 /r of Intel's manual, volume 2.
func VDPBF16PS(x, y, dst reg.VecPhysical) {
	d, v, m := uint8(dst.ID().Index()), uint8(y.ID().Index()), uint8(x.ID().Index())
	not := func(bit, shift uint8) uint8 { return (^bit & 1) << shift }
	code := []uint8{
		0x62,
		not(d>>3, 7) | not(m>>4, 6) | not(m>>3, 5) | not(d>>4, 4) | 2, // R X B R', map 0F38
		(^v&15)<<3 | 1<<2 | 2, // W0, v, prefix F3
		2<<5 | not(v>>4, 3),   // 512 bits, v', no mask
		0x52,
		3<<6 | (d&7)<<3 | m&7,
	}
	Comment(fmt.Sprintf("VDPBF16PS Z%d, Z%d, Z%d", m, v, d))
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []operand.Op{operand.U32(binary.LittleEndian.Uint32(code))}})
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []operand.Op{operand.U16(binary.LittleEndian.Uint16(code[4:]))}})
}
