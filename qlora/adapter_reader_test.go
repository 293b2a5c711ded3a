package qlora

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestAdapterReader reads in pieces what LoadAdapters reads as a whole.
func TestAdapterReader(t *testing.T) {
	dir := filepath.Join("testdata", "peft", "dora")
	c, adapters, err := LoadAdapters(dir, nil)
	require.NoError(t, err)
	r, err := OpenAdapters(dir)
	require.NoError(t, err)
	require.Equal(t, c, r.Options())
	require.Empty(t, r.Saved())
	listed := r.Adapters()
	require.Len(t, listed, len(adapters))
	for module, want := range adapters {
		a := listed[module]
		require.Equal(t, []any{want.In, want.Out, want.Rank, want.Scale, 0}, []any{a.In, a.Out, a.Rank, a.Scale, a.A.Len()})
		for part, whole := range map[AdapterPart]snug.View{PartA: want.A, PartB: want.B, PartMagnitude: want.Magnitude} {
			x := whole.Float32s()
			half := make([]float32, len(x)-len(x)/2)
			require.NoError(t, r.ReadAt(snug.ViewOf(half), module, part, len(x)/2))
			require.Equal(t, x[len(x)/2:], half)
			require.ErrorIs(t, r.ReadAt(snug.ViewOf(half), module, part, len(x)/2+1), snug.ErrShape)
		}
		require.ErrorIs(t, r.ReadAt(snug.View{}, module, PartMagnitude+1, 0), snug.ErrConfig)
	}
	require.ErrorIs(t, r.ReadAt(snug.View{}, "none", PartA, 0), snug.ErrConfig)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.ReadAt(snug.View{}, "none", PartA, 0), snug.ErrConfig)
	_, err = OpenAdapters(t.TempDir())
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, list, err := SavedTensors(filepath.Join("..", "transformer", "testdata", "adapters", "llama_saved"))
	require.NoError(t, err)
	r, err = OpenAdapters(filepath.Join("..", "transformer", "testdata", "adapters", "llama_saved"))
	require.NoError(t, err)
	require.Equal(t, list, r.Saved())
	require.NoError(t, r.Close())
}
