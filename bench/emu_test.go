//go:build emu

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunEmulated(t *testing.T) {
	for _, device := range []string{"emu:0", "emu:1"} {
		status, stdout, stderr := invoke(t, "-short", "-device", device, "-only", "^(launch|cast f32-bf16|check.norm|nf4 (fused|decoded)) ")
		require.Zero(t, status, stderr)
		require.Contains(t, stdout, device+" with 4096 MiB of memory, emulated: times say nothing\n\n")
		require.Regexp(t, `(?m)^cast +f32-bf16 +n=1024 +[0-9.]+ .s +\d+% +– +emulated +\d+$`, stdout)
		require.Equal(t, 4, strings.Count(stdout, "\nnf4 fused "))
		require.Equal(t, 4, strings.Count(stdout, "\nnf4 decoded "))
		require.NotContains(t, stdout, "B/s")
	}
}
