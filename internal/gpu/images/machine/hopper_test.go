package machine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplits(t *testing.T) {
	all, err := Splits("#define HOPPER_ENTRIES(T)   \\\n    HOPPER_FORWARD(T, 64, 3, 128, 32, 160)  \\\n    HOPPER_BACKWARD_KEY(T, 256, 2, 64, 24, 240)\n")
	require.NoError(t, err)
	require.Len(t, all, 4)
	require.Equal(t, Split{Less: 32, More: 160, Groups: 3}, all["attention_forward_hopper64_bf16"])
	require.Equal(t, Split{Less: 24, More: 240, Groups: 2}, all["attention_backward_key_hopper256_f16"])
	_, err = Splits("#include \"hopper.h\"\n")
	require.Error(t, err)
}

const split = `
		IADD3 R4, R3, 0x1, RZ
		@!P0 BRA ` + "`(.L_copies)" + `
	.L_again:
		USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0
		@!P0 BRA ` + "`(.L_again)" + `
		FADD R236, R235, R3
		EXIT
	.L_copies:
		USETMAXREG.DEALLOC.CTAPOOL 0x18
		LDS.64 R22, [R4]
		EXIT
`

func TestSplit(t *testing.T) {
	k, s := Kernel{Name: "toy", Registers: 168, Threads: 384}, Split{Less: 24, More: 240, Groups: 2}
	require.Empty(t, function(t, split).CheckSplit(k, s))
	for _, test := range []struct{ name, old, new, want string }{
		{"no decrease", "USETMAXREG.DEALLOC.CTAPOOL 0x18", "NOP", "0 instructions that decrease"},
		{"no increase", "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0", "NOP", "0 instructions that increase"},
		{"another number", "0x18", "0x20", "want 24 registers"},
		{"a register that was given back", "LDS.64 R22", "LDS.64 R23", "a thread has 24 registers"},
		{"a register that nobody has", "FADD R236, R235", "FADD R236, R240", "a thread has 240 registers"},
		{"a register before the increase", "R4, R3, 0x1", "R168, R3, 0x1", "a thread has 168 registers"},
		{"one branch runs into the other", "FADD R236, R235, R3\n\t\tEXIT", "FADD R236, R235, R3", "another one comes after it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Contains(t, split, test.old)
			require.Contains(t, strings.Join(function(t, strings.Replace(split, test.old, test.new, 1)).CheckSplit(k, s), "\n"), test.want)
		})
	}
	require.Contains(t, strings.Join(function(t, split).CheckSplit(k, Split{Less: 40, More: 240, Groups: 2}), "\n"), "a block has 65536")
	k.Threads = 256
	require.Contains(t, strings.Join(function(t, split).CheckSplit(k, s), "\n"), "256 threads")
}

// Weights are packed, multiplied while the next scores are, and packed again.
const multiplied = `
	.L_next:
		F2FP.BF16.F32.PACK_AB R100, R91, R90
		F2FP.BF16.F32.PACK_AB R103, R93, R92
		WARPGROUP.ARRIVE
		HGMMA.64x64x16.F32.BF16 R56, gdesc[UR20], RZ, !UPT
		HGMMA.64x64x16.F32.BF16 R56, gdesc[UR24], R56, gsb0
		UIADD3 UR20, UR20, 0x2, URZ
		HGMMA.64x64x16.F32.BF16 R24, R100, gdesc[UR20].tnspB, R24, gsb0
		IADD3 R5, R5, 0x1, RZ
		WARPGROUP.DEPBAR.LE gsb0, 0x1
		FMUL R90, R56, R4
		WARPGROUP.DEPBAR.LE gsb0, 0x0
		FMUL R24, R24, R4
		@P0 BRA ` + "`(.L_next)" + `
		EXIT
`

func TestProducts(t *testing.T) {
	require.Empty(t, function(t, multiplied).CheckProducts())
	for _, test := range []struct{ name, old, new, want string }{
		{"a fragment is packed after the arrival", "WARPGROUP.ARRIVE", "WARPGROUP.ARRIVE\n F2FP.BF16.F32.PACK_AB R101, R93, R92", "R101 was written after the last arrival"},
		{"no arrival", "WARPGROUP.ARRIVE", "NOP", "was written after the last arrival"},
		{"a sum is scaled after it", "UIADD3 UR20, UR20, 0x2, URZ", "FMUL R55, R55, R4", "R55 was written after the last arrival"},
		{"a jump behind the arrival", "@P0 BRA `(.L_next)", "@P0 BRA `(.L_skip)\nBRA `(.L_next)\n.L_skip:\nHGMMA.64x64x16.F32.BF16 R24, R100, gdesc[UR20].tnspB, R24, gsb0", "R24 was written"},
		{"scores are read before they are there", "WARPGROUP.DEPBAR.LE gsb0, 0x1", "NOP", "R56 belongs to a product"},
		{"one group too few is waited for", "0x0\n\t\tFMUL R24", "0x1\n\t\tFMUL R24", "R24 belongs to a product"},
		{"a fragment is written too early", "IADD3 R5, R5", "F2FP.BF16.F32.PACK_AB R102, R5", "R102 is read by a product"},
		{"a subroutine", "UIADD3 UR20, UR20, 0x2, URZ", "CALL.REL.NOINC `(.L_next)", "was written after the last arrival"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Contains(t, multiplied, test.old)
			require.Contains(t, strings.Join(function(t, strings.Replace(multiplied, test.old, test.new, 1)).CheckProducts(), "\n"), test.want)
		})
	}
}

const copied = `
		ULDC.64 UR28, c[0x0][0x198]
		UIADD3 UR6, UP0, UR28, 0xb0, URZ
		UIADD3.X UR7, URZ, UR29, URZ, UP0, !UPT
	.L_next:
		UTMALDG.4D [UR8], [UR6]
		UIADD3 UR12, UP0, UR28, 0x30, URZ
		UIADD3.X UR11, URZ, UR29, URZ, UP0, !UPT
		UMOV UR10, UR12
		UTMALDG.4D [UR16], [UR10]
		@P0 BRA ` + "`(.L_next)" + `
		EXIT
`

func TestMaps(t *testing.T) {
	k := Kernel{Name: "toy", Params: []Param{{Offset: 0xb0, Size: 128}, {Offset: 0x30, Size: 128}, {Offset: 0x130, Size: 8}}}
	require.Empty(t, function(t, copied).CheckMaps(k))
	for _, test := range []struct{ name, old, new, want string }{
		{"on the stack", "ULDC.64 UR28, c[0x0][0x198]", "R2UR UR28, R1", "not addressed as a parameter"},
		{"where a pointer is", "UR28, 0xb0", "UR28, 0x130", "at byte 304"},
		{"within a map", "UR28, 0x30", "UR28, 0x70", "at byte 112"},
		{"one map twice", "UR28, 0x30", "UR28, 0xb0", "1 of its 2"},
		{"of one path alone", "@P0 BRA", "UMOV UR6, UR30\n@P0 BRA", "not addressed as a parameter"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Contains(t, copied, test.old)
			require.Contains(t, strings.Join(function(t, strings.Replace(copied, test.old, test.new, 1)).CheckMaps(k), "\n"), test.want)
		})
	}
}

// Barriers are found at constant offsets from where the memory of the block begins.
func TestBarrierEnd(t *testing.T) {
	const waits = `
		SYNCS.EXCH.64 URZ, [UR9], UR4
		SYNCS.EXCH.64 URZ, [UR9+-0x20], UR6
		SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8+0x14620], R3
		SYNCS.ARRIVE.TRANS64 RZ, [R2+0x14600], R5
		LDS R4, [R2+0x18000]
		EXIT
`
	require.Equal(t, 0x14628, function(t, waits).BarrierEnd(), "not that of another instruction")
	require.Zero(t, function(t, "\n\t\tLDS R4, [R2+0x18000]\n\t\tEXIT\n").BarrierEnd())
}
