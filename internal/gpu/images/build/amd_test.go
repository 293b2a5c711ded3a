//go:build cuda && linux && amd64

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
	"github.com/stretchr/testify/require"
)

// fakeClang is a compiler that says its version and fails with a message.
func fakeClang(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clang")
	script := "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Debian clang version " + version + " (1)' && exit\necho no kernel >&2\nexit 1\n"
	require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

func TestClang(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "toy/kernels"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "toy/kernels/toy.cu"), []byte("// toy\n"), 0o600))
	_, err := buildAMD(root, fakeClang(t, "19.1.70"), "")
	require.ErrorIs(t, err, errNoCompiler)
	_, err = buildAMD(root, fakeClang(t, images.AMDCompiler), "")
	require.NotErrorIs(t, err, errNoCompiler)
	for _, arch := range gpu.AMDArchs {
		require.ErrorContains(t, err, "for "+arch+": exit status 1\nno kernel")
	}
	_, err = buildAMD(root, filepath.Join(root, "none"), "")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAMDLimits(t *testing.T) {
	k := machine.AMDKernel{Name: "toy_sum", Threads: 256, VGPRs: 128, Scratch: maxScratch}
	require.Empty(t, checkAMD(k, "gfx90a"))
	k.Scratch, k.VGPRs = maxScratch+1, 600
	require.Equal(t, []string{
		"toy_sum for gfx90a has 600 vector registers, a block of 256 threads leaves 512",
		"toy_sum for gfx90a has a stack of 33 bytes, the limit is 32",
	}, checkAMD(k, "gfx90a"))
	for name, allowed := range scratches {
		k := machine.AMDKernel{Name: name, Threads: 256, Scratch: allowed.bytes}
		require.Empty(t, checkAMD(k, "gfx1100"))
		k.Scratch++
		require.Len(t, checkAMD(k, "gfx1100"), 1)
	}
}

func TestAMDReport(t *testing.T) {
	kernels := map[string]map[string]machine.AMDKernel{"toy_sum": {}, "toy_copy": {}}
	for i, arch := range gpu.AMDArchs {
		kernels["toy_sum"][arch] = machine.AMDKernel{VGPRs: 40, SGPRs: 20, Shared: 1024}
		kernels["toy_copy"][arch] = machine.AMDKernel{VGPRs: 10 + i, Scratch: 16, Spills: 4}
	}
	modules := images.AMD([]images.Module{"toy/kernels/toy"})
	text := reportAMD([]amdResult{{module: modules[0], image: make([]byte, 1234567), kernels: kernels}})
	require.Contains(t, text, "## toy: 1,234,567 bytes\n")
	require.Contains(t, text, "| toy_sum | 40 | 20 | 1024 | 0 | 0 |\n")
	require.Contains(t, text, "| toy_copy | 10 / 11 / 12 / 13 | 0 | 0 | 16 | 4 |\n")
}
