package neon

import (
	"maps"
	"testing"
)

// The codes are what GNU as 2.40 makes of the texts.
var encodings = []struct {
	instruction Instruction
	word        uint32
	text        string
}{
	{FADD(1, 18, 31), 0x4e3fd641, "fadd v1.4s, v18.4s, v31.4s"},
	{FSUB(1, 18, 31), 0x4ebfd641, "fsub v1.4s, v18.4s, v31.4s"},
	{FMUL(1, 18, 31), 0x6e3fde41, "fmul v1.4s, v18.4s, v31.4s"},
	{FDIV(1, 18, 31), 0x6e3ffe41, "fdiv v1.4s, v18.4s, v31.4s"},
	{FMLA(1, 18, 31), 0x4e3fce41, "fmla v1.4s, v18.4s, v31.4s"},
	{FMLS(1, 18, 31), 0x4ebfce41, "fmls v1.4s, v18.4s, v31.4s"},
	{FMAX(1, 18, 31), 0x4e3ff641, "fmax v1.4s, v18.4s, v31.4s"},
	{FMIN(1, 18, 31), 0x4ebff641, "fmin v1.4s, v18.4s, v31.4s"},
	{FMAXNM(1, 18, 31), 0x4e3fc641, "fmaxnm v1.4s, v18.4s, v31.4s"},
	{FSQRT(1, 18), 0x6ea1fa41, "fsqrt v1.4s, v18.4s"},
	{FABS(1, 18), 0x4ea0fa41, "fabs v1.4s, v18.4s"},
	{FNEG(1, 18), 0x6ea0fa41, "fneg v1.4s, v18.4s"},
	{FRINTN(1, 18), 0x4e218a41, "frintn v1.4s, v18.4s"},
	{FCVTNS(1, 18), 0x4e21aa41, "fcvtns v1.4s, v18.4s"},
	{FMLAElement(1, 18, 31), 0x4f9f1241, "fmla v1.4s, v18.4s, v31.s[0]"},
	{FCMEQ(1, 18, 31), 0x4e3fe641, "fcmeq v1.4s, v18.4s, v31.4s"},
	{FCMGE(1, 18, 31), 0x6e3fe641, "fcmge v1.4s, v18.4s, v31.4s"},
	{FCMGT(1, 18, 31), 0x6ebfe641, "fcmgt v1.4s, v18.4s, v31.4s"},
	{CMHS(1, 18, 31), 0x6ebf3e41, "cmhs v1.4s, v18.4s, v31.4s"},
	{ADD(1, 18, 31), 0x4ebf8641, "add v1.4s, v18.4s, v31.4s"},
	{SUB(1, 18, 31), 0x6ebf8641, "sub v1.4s, v18.4s, v31.4s"},
	{UMAX(1, 18, 31), 0x6ebf6641, "umax v1.4s, v18.4s, v31.4s"},
	{UMIN(1, 18, 31), 0x6ebf6e41, "umin v1.4s, v18.4s, v31.4s"},
	{USHL(1, 18, 31), 0x6ebf4641, "ushl v1.4s, v18.4s, v31.4s"},
	{UMAXV(1, 18), 0x6eb0aa41, "umaxv s1, v18.4s"},
	{SHL(1, 18, 23), 0x4f375641, "shl v1.4s, v18.4s, #23"},
	{USHR(1, 18, 16), 0x6f300641, "ushr v1.4s, v18.4s, #16"},
	{SSHR(1, 18, 1), 0x4f3f0641, "sshr v1.4s, v18.4s, #1"},
	{AND(1, 18, 31), 0x4e3f1e41, "and v1.16b, v18.16b, v31.16b"},
	{ORR(1, 18, 31), 0x4ebf1e41, "orr v1.16b, v18.16b, v31.16b"},
	{EOR(1, 18, 31), 0x6e3f1e41, "eor v1.16b, v18.16b, v31.16b"},
	{BIC(1, 18, 31), 0x4e7f1e41, "bic v1.16b, v18.16b, v31.16b"},
	{BSL(1, 18, 31), 0x6e7f1e41, "bsl v1.16b, v18.16b, v31.16b"},
	{MOV(1, 18), 0x4eb21e41, "mov v1.16b, v18.16b"},
	{DUP(1, 18), 0x4e040641, "dup v1.4s, v18.s[0]"},
	{DUPGeneral(1, 25), 0x4e040f21, "dup v1.4s, w25"},
	{TRN1(1, 18, 31), 0x4e9f2a41, "trn1 v1.4s, v18.4s, v31.4s"},
	{TRN2(1, 18, 31), 0x4e9f6a41, "trn2 v1.4s, v18.4s, v31.4s"},
	{TRN1x2D(1, 18, 31), 0x4edf2a41, "trn1 v1.2d, v18.2d, v31.2d"},
	{TRN2x2D(1, 18, 31), 0x4edf6a41, "trn2 v1.2d, v18.2d, v31.2d"},
	{UZP1(1, 18, 31), 0x4e9f1a41, "uzp1 v1.4s, v18.4s, v31.4s"},
	{UZP2(1, 18, 31), 0x4e9f5a41, "uzp2 v1.4s, v18.4s, v31.4s"},
	{ZIP1(1, 18, 31), 0x4e9f3a41, "zip1 v1.4s, v18.4s, v31.4s"},
	{ZIP2(1, 18, 31), 0x4e9f7a41, "zip2 v1.4s, v18.4s, v31.4s"},
	{FADDP(1, 18, 31), 0x6e3fd641, "faddp v1.4s, v18.4s, v31.4s"},
	{FMAXNMP(1, 18, 31), 0x6e3fc641, "fmaxnmp v1.4s, v18.4s, v31.4s"},
	{FCVTL(1, 18), 0x0e217a41, "fcvtl v1.4s, v18.4h"},
	{FCVTN(1, 18), 0x0e216a41, "fcvtn v1.4h, v18.4s"},
	{UXTL(1, 18), 0x2f10a641, "uxtl v1.4s, v18.4h"},
	{SHLL(1, 18), 0x2e613a41, "shll v1.4s, v18.4h, #16"},
	{SHRN(1, 18), 0x0f108641, "shrn v1.4h, v18.4s, #16"},
	{FMLAx2D(1, 18, 31), 0x4e7fce41, "fmla v1.2d, v18.2d, v31.2d"},
	{FCVTLx2D(1, 18), 0x0e617a41, "fcvtl v1.2d, v18.2s"},
	{FCVTL2x2D(1, 18), 0x4e617a41, "fcvtl2 v1.2d, v18.4s"},
	{LDRH(1, 21), 0x7d4002a1, "ldr h1, [x21]"},
	{STRH(1, 21), 0x7d0002a1, "str h1, [x21]"},
	{STNP(1, 18, 21, -64), 0xac3e4aa1, "stnp q1, q18, [x21, #-64]"},
}

func TestEncodings(t *testing.T) {
	for _, e := range encodings {
		if e.instruction.Word != e.word {
			t.Errorf("%s: %08x, want %08x", e.text, e.instruction.Word, e.word)
		}
		if e.instruction.Text != e.text {
			t.Errorf("text is %q, want %q", e.instruction.Text, e.text)
		}
	}
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		signature string
		places    map[string]int
		size      int
	}{
		{"func()", map[string]int{}, 0},
		{"func(a *float32, x []snug.Float16, f float32, n int) float32",
			map[string]int{"a": 0, "x_base": 8, "x_len": 16, "f": 32, "n": 40, "ret": 48}, 52},
		{"func(f, g float32, limit uint32) (sums [32]float64)",
			map[string]int{"f": 0, "g": 4, "limit": 8, "sums": 16}, 272},
	} {
		places, size := layout(c.signature)
		if size != c.size || !maps.Equal(places, c.places) {
			t.Errorf("%s: %v, %d", c.signature, places, size)
		}
	}
}

func TestScopeFreesRegisters(t *testing.T) {
	f := NewFile().Func("f", "func()", "is a function.")
	first := f.V()
	for range 100 {
		f.Scope(func() { f.Vs(31) })
	}
	if second := f.V(); first != 0 || second != 1 {
		t.Errorf("registers %d and %d", first, second)
	}
	seen := map[R]bool{}
	for range 24 {
		seen[f.R()] = true
	}
	for _, r := range []R{16, 17, 18, 27, 28, 29, 30, 31} {
		if seen[r] {
			t.Errorf("%v is not free to use", r)
		}
	}
}
