package vec

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Divisor is what AVX-512 encodes values divided by an absmax with: blockq.Quick.
type Divisor struct {
	Absmax, Inverse, Rest reg.VecVirtual
	Cells                 reg.Register
}

// Encode writes the codes of a vector, which it overwrites.
func (d Divisor) Encode(x reg.VecVirtual, to Mem) {
	q := ZMM()
	VMULPS(d.Rest, x, q)
	VFMADD231PS(d.Inverse, x, q)
	VFNMADD231PS(d.Absmax, q, x)
	VFMADD231PS(d.Inverse, x, q)
	VPMOVDB(FromCell(d.Cells, q), to)
}

// FromCell returns the codes of 16 quotients, in the lowest bytes of lanes,
// from the table of a blockq.Encoder. The upper half of a cell is compared with
// the lower one of a quotient when that is moved up.
func FromCell(cells reg.Register, q reg.VecVirtual) reg.VecVirtual {
	const notLessOrEqual = 6
	index, low, above := ZMM(), ZMM(), K()
	VPSRLD(Imm(16), q, index)
	cell := AVX512.Gather(Mem{Base: cells}, index)
	VPSLLD(Imm(16), q, low)
	VPCMPUD(Imm(notLessOrEqual), cell, low, above)
	VPSRLD(Imm(8), cell, above, cell)
	return cell
}
