//go:build cuda && linux && amd64

package main

import (
	"testing"

	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/stretchr/testify/require"
)

const said = `ptxas info    : 304 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function 'toy_sum' for 'sm_80'
ptxas info    : Function properties for toy_sum
    16 bytes stack frame, 8 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 24 registers, 49160 bytes smem, 392 bytes cmem[0]
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'toy_copy' for 'sm_80'
ptxas info    : Function properties for toy_copy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 8 bytes cumulative stack size
ptxas info    : Compile time = 27.405 ms
`

func TestUsage(t *testing.T) {
	uses, err := parseUsage(said)
	require.NoError(t, err)
	require.Equal(t, map[string]usage{
		"toy_sum":  {registers: 24, shared: 49160, stack: 16, spillStores: 8, spillLoads: 20},
		"toy_copy": {registers: 12},
		"helper":   {},
	}, uses)

	_, err = parseUsage("ptxas warning : something\n")
	require.ErrorContains(t, err, "something")
	_, err = parseUsage("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n")
	require.ErrorContains(t, err, "serialized")
	for _, advice := range []string{
		"ptxas info    : (C7517) warpgroup.wait is injected in around line 2580 by compiler to allow use of registers in GMMA in function 'toy_sum'\n",
		"ptxas info    : (C7519) warpgroup.arrive is injected in around line 99 by compiler to allow use of registers in GMMA in function 'toy_sum'\n",
		"ptxas warning : (C7508) something new\n",
	} {
		_, err = parseUsage(advice)
		require.ErrorContains(t, err, "(C75")
	}
	_, err = parseUsage("ptxas info    : Used many registers\n")
	require.Error(t, err)
}

func TestLimits(t *testing.T) {
	uses, err := parseUsage(said)
	require.NoError(t, err)
	k := kernels{}
	k.add("80", uses)
	require.Equal(t, []string{
		"toy_sum for sm_80 spills: 8 bytes of stores and 20 of loads, the limit is 16",
		"toy_sum for sm_80 has 49160 bytes of shared memory, the limit is 49152",
	}, k.check())
}

func TestReport(t *testing.T) {
	k := kernels{}
	for _, arch := range images.Archs {
		k.add(arch, map[string]usage{"same": {registers: 20, threads: 256}})
	}
	k.add("80", map[string]usage{"differs": {registers: 10, threads: 128, shared: 40 << 10}})
	k.add("90", map[string]usage{"differs": {registers: 12, threads: 128, shared: 40 << 10}})
	text := report([]result{{module: "toy/kernels/toy", image: make([]byte, 1234567), kernels: k}})
	require.Contains(t, text, "## toy: 1,234,567 bytes\n")
	require.Contains(t, text, "| same | 20 | 0 | 0 | 0 | 0 | 8 × 8 |\n")
	require.Contains(t, text, "| differs | 10 / - / 12 / - / - | 40960 / - / 40960 / - / - | ")
	require.Contains(t, text, " | 4 × 4 / 5 × 4 / - |\n")
	require.Contains(t, text, "| gemm_units | 4096×4096 by 4096×4096, bf16 | 1365 | 0.441 ms, arithmetic |")
	require.Contains(t, text, "| amp_cast | 2^28 elements, f32 to bf16 | 0 | 0.79 ms, memory |")
}
