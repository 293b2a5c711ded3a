package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What ptxas makes of x/y, of 1/y, of x/c for a parameter c, and of √x.
var expansions = map[string]string{
	"quotient": `
		MUFU.RCP R16, R40
		FCHK P1, R25, R40
		FFMA R17, -R40, R16, 1
		FFMA R16, R16, R17, R16
		FFMA R17, R25, R16, RZ
		FFMA R18, -R40, R17, R25
		FFMA R17, R16, R18, R17
		FFMA R18, -R40, R17, R25
		FFMA R16, R16, R18, R17
		@!P1 BRA ` + "`(.L_done)" + `
		CALL.REL.NOINC ` + "`($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)" + `
	.L_done:
		EXIT
	$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath:
		FFMA.RP R3, R4, R5, R6
		RET.REL.NODEC R22 ` + "`(toy)",
	"reciprocal": `
		MUFU.RCP R15, R14
		FFMA R4, R14, R15, -1
		FADD.FTZ R4, -R4, -RZ
		FFMA R15, R15, R4, R15
		EXIT`,
	"quotient by a parameter": `
		MUFU.RCP R5, c[0x0][0x180]
		MOV R14, c[0x0][0x180]
		FFMA R6, R5, -R14, 1
		FFMA R6, R5, R6, R5
		FFMA R7, R20, R6, RZ
		FFMA R8, R7, -c[0x0][0x180], R20
		FFMA R7, R6, R8, R7
		EXIT`,
	"root": `
		MUFU.RSQ R16, R17
		@!P1 BRA ` + "`(.L_fast)" + `
		IMAD.MOV.U32 R16, RZ, RZ, R17
		BRA ` + "`(.L_done)" + `
	.L_fast:
		FMUL.FTZ R24, R17, R16
		FMUL.FTZ R16, R16, 0.5
		FFMA R17, -R24, R24, R17
		FFMA R24, R17, R16, R24
	.L_done:
		EXIT`,
	"one operation": `
		FFMA R4, R5, 1.84467440737095516160e+19, RZ
		FFMA R4, R4, 1, R5
		HFMA2.MMA R6, -RZ, RZ, 0, 0
		EXIT`,
}

func TestFused(t *testing.T) {
	for name, lines := range expansions {
		single, double := function(t, lines).Fused()
		require.Empty(t, single, name)
		require.Empty(t, double, name)
	}
	const start = "MUFU.RCP R16, R40\nFFMA R17, -R40, R16, 1\nFFMA R16, R16, R17, R16\n"
	for name, test := range map[string]struct {
		lines string
		n     int
	}{
		"a·b + c":                   {"FFMA R4, R5, R6, R7\nEXIT", 1},
		"a·b − 1":                   {"FFMA R4, R5, R6, -1\nEXIT", 1},
		"a·k + b":                   {"FFMA R4, R5, 0.5, R7\nEXIT", 1},
		"(x/y)·a + b":               {start + "FFMA R4, R16, R5, R7\nEXIT", 1},
		"(x/y)·(x/y) + a":           {start + "FFMA R4, R16, R16, R7\nEXIT", 1},
		"of another quotient":       {start + "MUFU.RCP R20, R41\nFFMA R4, R16, R20, R16\nEXIT", 1},
		"the operand was replaced":  {"MUFU.RCP R16, R40\nFADD R40, R40, R5\nFFMA R17, -R40, R16, R5\nEXIT", 1},
		"the quotient was replaced": {start + "FADD R16, R40, R5\nFFMA R17, R16, R40, R5\nEXIT", 1},
		"two halves":                {"FFMA2 R4, R6, R8, R10\nEXIT", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := function(t, test.lines)
			single, _ := f.Fused()
			require.Len(t, single, test.n, name)
			require.Len(t, f.CheckFused(Text{}), 1, name)
			require.Empty(t, f.CheckFused(Text{Fused: 1}), name)
		})
	}
	f := function(t, "FFMA R4, R5, R6, R7\nFFMA R4, R5, R6, R7\nEXIT")
	require.Contains(t, f.CheckFused(Text{Fused: 1})[0], "2 FFMA, the source has 1")
	f.Name = "attention_delta_f32"
	require.Empty(t, f.CheckFused(Text{Fused: 1}), "a loop that is repeated")
	require.Len(t, f.CheckFused(Text{}), 1)
	f = function(t, "DFMA R4, R6, R8, R10\nEXIT")
	require.Contains(t, f.CheckFused(Text{})[0], "1 DFMA, the source has 0")
	require.Empty(t, f.CheckFused(Text{Double: 1}))
}

const portable = `.version 8.0
.visible .entry quant8_toy(
	ld.global.nc.v4.u32 	{%r1, %r2, %r3, %r4}, [%rd1];
	ld.global.v4.u16 	{%rs1, %rs2, %rs3, %rs4}, [%rd1];
	mul.rn.f32 	%f1, %f2, %f3;
	fma.rn.f64 	%fd1, %fd2, %fd2, %fd3;
	st.global.v2.u64 	[%rd1], {%rd2, %rd3};
}
.visible .entry toy_copy(
	cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;
	fma.rn.f32 	%f1, %f2, %f3, %f4;
	add.f32 	%f1, %f2, %f3;
}
`

func TestText(t *testing.T) {
	all := map[string]Text{}
	ReadText(portable, all)
	require.Equal(t, map[string]Text{
		"quant8_toy": {Double: 1, Loads: 1, Stores: 1},
		"toy_copy":   {Fused: 1, Moves: 1, Loose: 1},
	}, all)
	require.Empty(t, CheckText("quant8_toy", all["quant8_toy"]))
	require.Contains(t, CheckText("toy_copy", all["toy_copy"])[0], "may be joined")
	require.Contains(t, CheckText("quant8_toy", Text{Fused: 1})[0], "the CPU's bits")
	require.Empty(t, CheckText("attention_delta_f32", Text{Fused: 1}))
}
