package neon

import "fmt"

// Instruction is a vector instruction: its code, and its text as Arm writes it.
// All encodings are from the Arm Architecture Reference Manual for A-profile,
// section C7.2.
type Instruction struct {
	Word uint32
	Text string
}

// V is a vector register. It has four float32 or 32-bit lanes where a function
// here does not say otherwise.
type V uint8

// three is an instruction on three registers of one arrangement.
func three(name, arrangement string, code uint32, d, n, m V) Instruction {
	return Instruction{
		code | uint32(m)<<16 | uint32(n)<<5 | uint32(d),
		fmt.Sprintf("%s v%d.%s, v%d.%s, v%d.%s", name, d, arrangement, n, arrangement, m, arrangement),
	}
}

// two is an instruction on two registers.
func two(name, to, from string, code uint32, d, n V) Instruction {
	return Instruction{
		code | uint32(n)<<5 | uint32(d),
		fmt.Sprintf("%s v%d.%s, v%d.%s", name, d, to, n, from),
	}
}

// shift is two with an immediate, whose field has the given value.
func shift(name, to, from string, code uint32, d, n V, bits, field int) Instruction {
	i := two(name, to, from, code|uint32(field)<<16, d, n)
	return Instruction{i.Word, fmt.Sprintf("%s, #%d", i.Text, bits)}
}

// Arithmetic on float32. The sums of FMLA and FMLS, d ± n·m, are rounded once.
// The MAX and MIN without NM are NaN if an operand is.

func FADD(d, n, m V) Instruction   { return three("fadd", "4s", 0x4e20d400, d, n, m) }
func FSUB(d, n, m V) Instruction   { return three("fsub", "4s", 0x4ea0d400, d, n, m) }
func FMUL(d, n, m V) Instruction   { return three("fmul", "4s", 0x6e20dc00, d, n, m) }
func FDIV(d, n, m V) Instruction   { return three("fdiv", "4s", 0x6e20fc00, d, n, m) }
func FMLA(d, n, m V) Instruction   { return three("fmla", "4s", 0x4e20cc00, d, n, m) }
func FMLS(d, n, m V) Instruction   { return three("fmls", "4s", 0x4ea0cc00, d, n, m) }
func FMAX(d, n, m V) Instruction   { return three("fmax", "4s", 0x4e20f400, d, n, m) }
func FMIN(d, n, m V) Instruction   { return three("fmin", "4s", 0x4ea0f400, d, n, m) }
func FMAXNM(d, n, m V) Instruction { return three("fmaxnm", "4s", 0x4e20c400, d, n, m) }
func FSQRT(d, n V) Instruction     { return two("fsqrt", "4s", "4s", 0x6ea1f800, d, n) }
func FABS(d, n V) Instruction      { return two("fabs", "4s", "4s", 0x4ea0f800, d, n) }
func FNEG(d, n V) Instruction      { return two("fneg", "4s", "4s", 0x6ea0f800, d, n) }

// FRINTN rounds to an integer, ties to even.
func FRINTN(d, n V) Instruction { return two("frintn", "4s", "4s", 0x4e218800, d, n) }

// FCVTNS converts to signed 32-bit integers, rounding as FRINTN.
func FCVTNS(d, n V) Instruction { return two("fcvtns", "4s", "4s", 0x4e21a800, d, n) }

// FMLAElement is d += n·m[0].
func FMLAElement(d, n, m V) Instruction {
	return Instruction{three("", "", 0x4f801000, d, n, m).Word, fmt.Sprintf("fmla v%d.4s, v%d.4s, v%d.s[0]", d, n, m)}
}

// Comparisons set all bits of a lane where they hold, and none elsewhere. CMHS
// is n >= m on unsigned integers.

func FCMEQ(d, n, m V) Instruction { return three("fcmeq", "4s", 0x4e20e400, d, n, m) }
func FCMGE(d, n, m V) Instruction { return three("fcmge", "4s", 0x6e20e400, d, n, m) }
func FCMGT(d, n, m V) Instruction { return three("fcmgt", "4s", 0x6ea0e400, d, n, m) }
func CMHS(d, n, m V) Instruction  { return three("cmhs", "4s", 0x6ea03c00, d, n, m) }

// Arithmetic on 32-bit integers. UMAXV is the largest of all lanes, in lane 0.

func ADD(d, n, m V) Instruction  { return three("add", "4s", 0x4ea08400, d, n, m) }
func SUB(d, n, m V) Instruction  { return three("sub", "4s", 0x6ea08400, d, n, m) }
func UMAX(d, n, m V) Instruction { return three("umax", "4s", 0x6ea06400, d, n, m) }
func UMIN(d, n, m V) Instruction { return three("umin", "4s", 0x6ea06c00, d, n, m) }
func UMAXV(d, n V) Instruction {
	i := two("umaxv", "4s", "4s", 0x6eb0a800, d, n)
	return Instruction{i.Word, fmt.Sprintf("umaxv s%d, v%d.4s", d, n)}
}

// USHL shifts left by the signed lowest byte of each lane of m: right for a
// negative one. What is shifted by 32 or more is 0.
func USHL(d, n, m V) Instruction { return three("ushl", "4s", 0x6ea04400, d, n, m) }

func SHL(d, n V, bits int) Instruction {
	return shift("shl", "4s", "4s", 0x4f005400, d, n, bits, 32+bits)
}

func USHR(d, n V, bits int) Instruction {
	return shift("ushr", "4s", "4s", 0x6f000400, d, n, bits, 64-bits)
}

func SSHR(d, n V, bits int) Instruction {
	return shift("sshr", "4s", "4s", 0x4f000400, d, n, bits, 64-bits)
}

// Operations on all 128 bits. BSL takes bits of n where those of d are set and
// of m elsewhere. BIC is n without the bits of m.

func AND(d, n, m V) Instruction { return three("and", "16b", 0x4e201c00, d, n, m) }
func ORR(d, n, m V) Instruction { return three("orr", "16b", 0x4ea01c00, d, n, m) }
func EOR(d, n, m V) Instruction { return three("eor", "16b", 0x6e201c00, d, n, m) }
func BIC(d, n, m V) Instruction { return three("bic", "16b", 0x4e601c00, d, n, m) }
func BSL(d, n, m V) Instruction { return three("bsl", "16b", 0x6e601c00, d, n, m) }

// MOV copies a register.
func MOV(d, n V) Instruction {
	return Instruction{ORR(d, n, n).Word, fmt.Sprintf("mov v%d.16b, v%d.16b", d, n)}
}

// DUP copies lane 0 to all.
func DUP(d, n V) Instruction {
	i := two("dup", "4s", "s[0]", 0x4e040400, d, n)
	return Instruction{i.Word, fmt.Sprintf("dup v%d.4s, v%d.s[0]", d, n)}
}

// DUPGeneral copies the lower word of a general register to all lanes.
func DUPGeneral(d V, n R) Instruction {
	return Instruction{0x4e040c00 | uint32(n)<<5 | uint32(d), fmt.Sprintf("dup v%d.4s, w%d", d, n)}
}

// Permutations. TRN1 and TRN2 pair the even and the odd lanes of n and m, UZP1
// and UZP2 line them up, ZIP1 and ZIP2 interleave the lower and the upper
// halves. Those with 2D have lanes of 64 bits.

func TRN1(d, n, m V) Instruction    { return three("trn1", "4s", 0x4e802800, d, n, m) }
func TRN2(d, n, m V) Instruction    { return three("trn2", "4s", 0x4e806800, d, n, m) }
func TRN1x2D(d, n, m V) Instruction { return three("trn1", "2d", 0x4ec02800, d, n, m) }
func TRN2x2D(d, n, m V) Instruction { return three("trn2", "2d", 0x4ec06800, d, n, m) }
func UZP1(d, n, m V) Instruction    { return three("uzp1", "4s", 0x4e801800, d, n, m) }
func UZP2(d, n, m V) Instruction    { return three("uzp2", "4s", 0x4e805800, d, n, m) }
func ZIP1(d, n, m V) Instruction    { return three("zip1", "4s", 0x4e803800, d, n, m) }
func ZIP2(d, n, m V) Instruction    { return three("zip2", "4s", 0x4e807800, d, n, m) }

// FADDP adds pairs of neighbours: those of n in the lower half of d, those of m
// in the upper. FMAXNMP takes the greater of them.

func FADDP(d, n, m V) Instruction   { return three("faddp", "4s", 0x6e20d400, d, n, m) }
func FMAXNMP(d, n, m V) Instruction { return three("fmaxnmp", "4s", 0x6e20c400, d, n, m) }

// Conversions of the lower four 16-bit lanes to and from four 32-bit lanes. FCVTL
// and FCVTN convert binary16, FCVTN to nearest even. SHLL and UXTL extend
// integers, SHLL to the upper halves; SHRN takes the upper halves.

func FCVTL(d, n V) Instruction { return two("fcvtl", "4s", "4h", 0x0e217800, d, n) }
func FCVTN(d, n V) Instruction { return two("fcvtn", "4h", "4s", 0x0e216800, d, n) }
func UXTL(d, n V) Instruction  { return two("uxtl", "4s", "4h", 0x2f10a400, d, n) }
func SHLL(d, n V) Instruction  { return shift("shll", "4s", "4h", 0x2e613800, d, n, 16, 0) }
func SHRN(d, n V) Instruction  { return shift("shrn", "4h", "4s", 0x0f008400, d, n, 16, 16) }

// On float64, two lanes. FCVTLx2D and FCVTL2x2D convert the lower and the upper
// two float32.

func FMLAx2D(d, n, m V) Instruction { return three("fmla", "2d", 0x4e60cc00, d, n, m) }
func FCVTLx2D(d, n V) Instruction   { return two("fcvtl", "2d", "2s", 0x0e617800, d, n) }
func FCVTL2x2D(d, n V) Instruction  { return two("fcvtl2", "2d", "4s", 0x4e617800, d, n) }

// Single 16-bit elements. Loading clears the other lanes.

func LDRH(d V, from R) Instruction {
	return Instruction{0x7d400000 | uint32(from)<<5 | uint32(d), fmt.Sprintf("ldr h%d, [x%d]", d, from)}
}

func STRH(d V, to R) Instruction {
	return Instruction{0x7d000000 | uint32(to)<<5 | uint32(d), fmt.Sprintf("str h%d, [x%d]", d, to)}
}

// STNP stores two registers and hints that they will not be read soon. The
// offset is in bytes, a multiple of 16 in [-1024, 1008].
func STNP(a, b V, to R, offset int) Instruction {
	return Instruction{
		0xac000000 | uint32(offset/16&0x7f)<<15 | uint32(b)<<10 | uint32(to)<<5 | uint32(a),
		fmt.Sprintf("stnp q%d, q%d, [x%d, #%d]", a, b, to, offset),
	}
}
