// Package avx512bf16 encodes the instructions of AVX512_BF16 that avo and the
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
func VDPBF16PS(x, y, dst reg.VecPhysical) { encode("VDPBF16PS", 2, 0x52, x, y, dst) }

// VCVTNE2PS2BF16 rounds the float32 of low and of high to the lower and the upper half of
// dst, under the rules of VDPBF16PS. The encoding is EVEX.512.F2.0F38.W0 72 /r.
func VCVTNE2PS2BF16(low, high, dst reg.VecPhysical) {
	encode("VCVTNE2PS2BF16", 3, 0x72, low, high, dst)
}

// encode writes an instruction of map 0F38, of 512 bits without a mask. prefix is 2 for F3 and 3 for F2.
func encode(name string, prefix, opcode uint8, x, y, dst reg.VecPhysical) {
	d, v, m := uint8(dst.ID().Index()), uint8(y.ID().Index()), uint8(x.ID().Index())
	code := bytes(prefix, opcode, m, v, d)
	Comment(fmt.Sprintf("%s Z%d, Z%d, Z%d", name, m, v, d))
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []operand.Op{operand.U32(binary.LittleEndian.Uint32(code[:]))}})
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []operand.Op{operand.U16(binary.LittleEndian.Uint16(code[4:]))}})
}
