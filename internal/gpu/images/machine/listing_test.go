package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// function returns the kernel of a listing with these lines: labels, and instructions without their
// addresses and ends.
func function(t *testing.T, lines string) *Function {
	t.Helper()
	var b strings.Builder
	b.WriteString("\t.section\t.text.toy,\"ax\",@progbits\n        .global         toy\ntoy:\n.text.toy:\n")
	at := 0
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasSuffix(line, ":"):
			b.WriteString(line + "\n")
		default:
			guard, rest := "", line
			if strings.HasPrefix(line, "@") {
				guard, rest, _ = strings.Cut(line, " ")
			}
			fmt.Fprintf(&b, "        /*%04x*/ %10s        %s ;\n", at, guard, rest)
			at += 16
		}
	}
	all, err := Parse(b.String())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "toy", all[0].Name)
	return all[0]
}

// Lines as nvdisasm prints them.
const listed = `	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"

//--------------------- .text.toy      --------------------------
	.section	.text.toy,"ax",@progbits
        .type           toy,@function
        .size           toy,(.L_x_9 - toy)
toy:
.text.toy:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   IMAD.WIDE R2, R5.reuse, 0x4, R2 ;
.L_x_1:
        /*0020*/              @!P0 BRA ` + "`(.L_x_2)" + ` ;
        /*0030*/                   MUFU.RSQ R12, -QNAN  ;
        /*0040*/                   CALL.REL.NOINC ` + "`($__internal_0_$__cuda_sm20_div_u64)" + ` ;
        /*0050*/                   BRA ` + "`(.L_x_1)" + `;
.L_x_2:
        /*0060*/                   STG.E.128 desc[UR4][R2.64+0x10], R4 ;
        /*0070*/                   EXIT ;
$__internal_0_$__cuda_sm20_div_u64:
        /*0080*/                   RET.REL.NODEC R22 ` + "`(toy)" + ` ;
.L_x_9:
`

func TestParse(t *testing.T) {
	all, err := Parse(listed)
	require.NoError(t, err)
	require.Len(t, all, 1)
	f := all[0]
	require.Len(t, f.Code, 9)
	require.Equal(t, Instruction{At: 0x10, Op: "IMAD.WIDE", Args: []string{"R2", "R5", "0x4", "R2"}}, f.Code[1])
	require.Equal(t, "@!P0", f.Code[2].Guard)
	require.Equal(t, "__internal_0_$__cuda_sm20_div_u64", f.Code[8].Part)
	require.Equal(t, [][]int{{1}, {2}, {6, 3}, {4}, {8, 5}, {2}, {7}, nil, nil}, f.next)
	require.Equal(t, []int{2, 3, 4, 5, 6, 7, 8}, f.reached(4))

	for name, text := range map[string]string{
		"a kernel's":   "        /*0000*/                   EXIT ;\n",
		"instruction":  strings.Replace(listed, "EXIT ;", "?? ;", 1),
		"label":        strings.Replace(listed, ".L_x_2:", ".L_x_3:", 1),
		"its labels":   strings.Replace(listed, "$__internal_0_$__cuda_sm20_div_u64:", "", 1),
		"big function": ".text.toy:\n" + strings.Repeat("        /*0000*/                   NOP ;\n", maxCode+1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(text)
			require.Error(t, err, name)
		})
	}
}

func TestRegisters(t *testing.T) {
	for _, test := range []struct {
		line     string
		first, n int
		highest  int
	}{
		{"IMAD.WIDE R2, R5, 0x4, R8", 2, 2, 8},
		{"LDG.E.128 R4, desc[UR4][R2.64]", 4, 4, 7},
		{"LDS.64 R4, [R30+UR5]", 4, 2, 30},
		{"STG.E.128 desc[UR4][R2.64+0x10], R4", 0, 0, 4},
		{"SHFL.BFLY PT, R5, R2, 0x2, 0x1f", 5, 1, 5},
		{"LOP3.LUT P0, RZ, R3, 0x1f, RZ, 0xc0, !PT", 0, 0, 3},
		{"ISETP.NE.AND P0, PT, R9, UR24, PT", 0, 0, 9},
		{"R2UR UR21, R2", 0, 0, 2},
		{"CS2R R50, SRZ", 50, 2, 51},
		{"HGMMA.64x128x16.F32.BF16 R24, R216, gdesc[UR20].tnspB, R24", 24, 64, 216},
		{"HGMMA.64x256x16.F32 R24, gdesc[UR20], RZ, !UPT", 24, 128, 151},
		{"F2FP.BF16.F32.PACK_AB R178, R181, |R180|", 178, 1, 181},
		{"IADD3 R4, P0, R2, UR4, RZ", 4, 1, 4},
		{"BAR.SYNC.DEFER_BLOCKING R4, 0x100", 0, 0, 4},
		{"UMOV UR8, 0x400", 0, 0, -1},
	} {
		c := function(t, test.line).Code[0]
		first, n := c.writes()
		require.Equal(t, [2]int{test.first, test.n}, [2]int{first, n}, test.line)
		require.Equal(t, test.highest, c.highest(), test.line)
	}
}
