package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun: a few steps of everything.
func TestRun(t *testing.T) {
	*dir, *frames, *clips, *steps = t.TempDir(), 2, 96, 3
	create()
	r := encode()
	require.Equal(t, []int{2, 32}, []int{r.Frames, r.Rows})
	require.Equal(t, int64(96*32*64*2), r.Cache)
	for i := range *clips {
		require.NoError(t, os.Remove(clip(i)))
	}
	encode() // all features are there
	r = tune()
	require.Less(t, r.Loss[1], r.Loss[0])
	require.FileExists(t, filepath.Join(*dir, "tuned", "adapter_model.safetensors"))
}
