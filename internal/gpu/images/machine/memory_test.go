package machine

import (
	"os"
	"strings"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

const stated = `# What the CUDA kernels use

## toy: 12 bytes

| kernel | registers | shared memory | stack | spill stores | spill loads |
|---|---|---|---|---|---|
| toy | 40 / 48 | 1024 | 0 / 8 | 0 / 4 | 0 / 12 |
| other | 20 | 0 | 0 | 0 | 0 |

| peak | value |
|---|---|
| A100 | 312 |
`

func TestStated(t *testing.T) {
	all, err := ReadStated(stated)
	require.NoError(t, err)
	require.Equal(t, map[string][]Stated{
		"toy":   {{Registers: 40, Shared: 1024}, {48, 1024, 8, 4, 12}},
		"other": {{Registers: 20}},
	}, all)
	_, err = ReadStated("nothing\n")
	require.Error(t, err)
	_, err = ReadStated(strings.Replace(stated, "| 20 |", "| many |", 1))
	require.Error(t, err)

	k := Kernel{Name: "toy", Registers: 48, Shared: 1024, Frame: 8}
	const lines = "STL [R1], R2\nLDL.64 R4, [R1]\nLDL.LU R6, [R1]\nEXIT"
	require.Empty(t, function(t, lines).CheckStated(k, all["toy"][1]))
	require.Len(t, function(t, lines).CheckStated(k, all["toy"][0]), 1, "spills")
	require.Len(t, function(t, "LDL.128 R4, [R1]\n"+lines).CheckStated(k, all["toy"][1]), 1, "a spill that is not stated")
	k.Shared += 16
	require.Len(t, function(t, lines).CheckStated(k, all["toy"][1]), 1, "shared memory")
}

func TestWide(t *testing.T) {
	const lines = "LDG.E.128.CONSTANT R4, desc[UR4][R2.64]\nLDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64]\nSTG.E.128 desc[UR4][R2.64], R4\nEXIT"
	all := Text{Loads: 1, Stores: 2, Moves: 1}
	require.Empty(t, function(t, lines).CheckWide(all))
	for _, test := range []struct{ old, new, want string }{
		{"LDG.E.128", "LDG.E.64", "no LDG.128"},
		{"LDGSTS.E.BYPASS.128", "LDGSTS.E.64", "no LDGSTS.128"},
		{"STG.E.128", "STG.E", "no STG.128"},
	} {
		t.Run(test.old, func(t *testing.T) {
			f := function(t, strings.Replace(lines, test.old, test.new, 1))
			require.Equal(t, []string{test.want}, f.CheckWide(all))
			require.Empty(t, f.CheckWide(Text{}))
		})
	}
	f := function(t, strings.Replace(lines, "STG.E.128", "STG.E.64", 1))
	f.Name = "amp_split24" // which the list of the sources has
	require.Equal(t, []string{"no STG.128"}, f.CheckWide(Text{}))
	require.Len(t, Unlisted(nil), len(wide))
	require.Len(t, Unlisted([]string{"accum_decay"}), len(wide)-1)
}

// TestKernels reads the cubins of an image that is there, of both forms that ptxas writes.
func TestKernels(t *testing.T) {
	text, err := os.ReadFile("../RESOURCES.md")
	require.NoError(t, err)
	all, err := ReadStated(string(text))
	require.NoError(t, err)
	image, err := os.ReadFile("../../../ortho/kernels/ortho.image")
	require.NoError(t, err)
	for i, capability := range []int{80, 86, 90, 100, 120} {
		code, err := gpu.Unpack(image, capability)
		require.NoError(t, err)
		kernels, err := Kernels(code.Data, capability)
		require.NoError(t, err)
		require.Len(t, kernels, 4)
		for _, k := range kernels {
			s := all[k.Name][min(i, len(all[k.Name])-1)]
			require.Equal(t, s, Stated{Registers: k.Registers, Shared: k.Shared, Stack: k.Frame}, "%s for %d", k.Name, capability)
			require.Equal(t, 256, k.Threads, k.Name)
			require.NotEmpty(t, k.Params)
		}
		for n := 0; n < len(code.Data); n += 97 { // which do not panic
			if _, err := Kernels(code.Data[:n], capability); n < elfHeader {
				require.Error(t, err)
			}
		}
	}
}

// TestCheck puts a module's parts together: a kernel that is not stated is wrong.
func TestCheck(t *testing.T) {
	image, err := os.ReadFile("../../../ortho/kernels/ortho.image")
	require.NoError(t, err)
	code, err := gpu.Unpack(image, 90)
	require.NoError(t, err)
	kernels, err := Kernels(code.Data, 90)
	require.NoError(t, err)
	rules := &Rules{Stated: map[string][]Stated{}, Archs: []string{"80", "90"}}
	listing := ""
	for _, k := range kernels {
		listing += ".text." + k.Name + ":\n        /*0000*/                   EXIT ;\n"
		rules.Stated[k.Name] = []Stated{{}, {Registers: k.Registers, Shared: k.Shared, Stack: k.Frame}}
	}
	names, wrong, err := rules.Check(code, listing)
	require.NoError(t, err)
	require.Len(t, names, len(kernels))
	require.Empty(t, wrong)

	delete(rules.Stated, kernels[0].Name)
	_, wrong, err = rules.Check(code, listing)
	require.NoError(t, err)
	require.Equal(t, []string{kernels[0].Name + " for sm_90: it is not in RESOURCES.md"}, wrong)

	code.Alone = true // then it shares registers out
	_, wrong, err = rules.Check(code, listing)
	require.NoError(t, err)
	require.Contains(t, strings.Join(wrong, "\n"), "does not say how it shares out registers")

	_, _, err = rules.Check(code, strings.Replace(listing, kernels[0].Name, "another", 1))
	require.ErrorContains(t, err, "not in the listing")
	_, _, err = rules.Check(code, "")
	require.Error(t, err)
}
