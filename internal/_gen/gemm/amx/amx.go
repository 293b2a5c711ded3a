// Package amx encodes the instructions of AMX that avo and the assembler lack,
// after Intel's manual, volume 2. Their bytes take no part in avo's allocation of
// registers: use physical ones around them. Memory operands are a base, whose
// number is below 8, and RCX, which holds the distance between rows in bytes.
package amx

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Tile is one of 8 tile registers.
type Tile uint8

// The mandatory prefixes, as VEX encodes them.
const (
	none = iota
	p66
	pF3
	pF2
)

// LDTILECFG configures the tiles by the 64 bytes at base.
func LDTILECFG(base reg.GPPhysical) {
	emit(fmt.Sprintf("LDTILECFG (%s)", base.Asm()), none, 0, 0x49, number(base))
}

// TILERELEASE gives the tiles back, so that a change of threads need not save
// them.
func TILERELEASE() { emit("TILERELEASE", none, 0, 0x49, 0xc0) }

// TILEZERO sets a tile to 0.
func TILEZERO(t Tile) { emit(fmt.Sprintf("TILEZERO TMM%d", t), pF2, 0, 0x49, 0xc0|byte(t)<<3) }

// TILELOADD loads a tile whose first row stands disp bytes after base.
func TILELOADD(base reg.GPPhysical, disp int32, t Tile) {
	move(fmt.Sprintf("TILELOADD %d(%s)(CX*1), TMM%d", disp, base.Asm(), t), pF2, base, disp, t)
}

// TILESTORED stores a tile from disp bytes after base on.
func TILESTORED(t Tile, base reg.GPPhysical, disp int32) {
	move(fmt.Sprintf("TILESTORED TMM%d, %d(%s)(CX*1)", t, disp, base.Asm()), pF3, base, disp, t)
}

// TDPBF16PS adds to dst the product of a, 16 rows of 16 pairs of bfloat16, and b, in
// whose row p stand the pairs of rows 2p and 2p+1 of the operand.
func TDPBF16PS(a, b, dst Tile) {
	emit(fmt.Sprintf("TDPBF16PS TMM%d, TMM%d, TMM%d", b, a, dst), pF3, byte(b), 0x5c, 0xc0|byte(dst)<<3|byte(a))
}

func move(comment string, prefix byte, base reg.GPPhysical, disp int32, t Tile) {
	const (
		wide     = 0x80 // a displacement of 32 bits follows
		withSIB  = 4
		indexRCX = 1 << 3
	)
	code := []byte{wide | byte(t)<<3 | withSIB, indexRCX | number(base)}
	emit(comment, prefix, 0, 0x4b, binary.LittleEndian.AppendUint32(code, uint32(disp))...)
}

// number returns the number of a register.
func number(r reg.GPPhysical) byte {
	n := byte(r.ID().Index())
	if n >= 8 {
		panic("amx: base is not one of the first 8 registers")
	}
	return n
}

// emit writes an instruction of VEX.128 map 0F38 W0, with the second source v.
func emit(comment string, prefix, v, opcode byte, rest ...byte) {
	code := append([]byte{0xc4, 0xe2, (^v&15)<<3 | prefix, opcode}, rest...)
	Comment(comment)
	piece := func(name string, op operand.Op) {
		Instruction(&ir.Instruction{Opcode: name, Operands: []operand.Op{op}})
	}
	for len(code) >= 4 {
		piece("LONG", operand.U32(binary.LittleEndian.Uint32(code)))
		code = code[4:]
	}
	for _, b := range code {
		piece("BYTE", operand.U8(b))
	}
}
