package measure

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestPieces has vectors too large for tests.
func TestPieces(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	for _, n := range []int{1, minDevicePiece, minDevicePiece + 1, devicePieces * minDevicePiece, devicePieces*minDevicePiece + 1, math.MaxInt32} {
		piece := Piece(dev, n)
		count := (n-1)/piece + 1
		require.LessOrEqual(t, count, devicePieces)
		require.Zero(t, piece%minDevicePiece)
		require.Greater(t, 2*count*minDevicePiece, min(n, devicePieces*minDevicePiece), "enough of them")
	}
	for _, n := range []int{0, 1, MinPiece, pieces * MinPiece, pieces*MinPiece + 1, math.MaxInt32} {
		require.LessOrEqual(t, (n-1)/Piece(snug.CPU(), n)+1, pieces)
	}
}

// TestMerge has the order in which records are read and that of vectors differ.
func TestMerge(t *testing.T) {
	var g Gather
	x := snug.ViewOf(make([]float32, 2*MinPiece))
	records, err := g.On(x)
	require.NoError(t, err)
	*records.At(0) = Record{Squares: 1, NonFinite: 2, Ordinal: 3, Index: 4, Value: 5}
	*records.At(1) = Record{Squares: 2, NonFinite: 1, Ordinal: 2, Index: 7, Value: 8}
	require.NoError(t, g.Collect())
	require.Equal(t, Record{Squares: 3, NonFinite: 3, Ordinal: 2, Index: 7, Value: 8}, g.Total)
	require.Equal(t, snug.NonFinite{Name: "x", Count: 3, Index: 7, Value: 8, Micro: -1}, g.Found("x"))
	g.Reset()
	records, err = g.On(x)
	require.NoError(t, err)
	require.Zero(t, *records.At(0), "records are cleared")
	require.NoError(t, g.Collect())
	require.Zero(t, g.Total)
}

// TestManyPieces: a vector on a device has more records than one in the CPU's memory ever has.
func TestManyPieces(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[1:] {
		t.Run(p.Name, func(t *testing.T) {
			x, err := snug.Make[float32](p.Dev, 2*pieces*minDevicePiece)
			require.NoError(t, err)
			defer func() { require.NoError(t, x.Close()) }()
			var g Gather
			for range 2 {
				records, err := g.On(x.View())
				require.NoError(t, err)
				last := Record{Squares: 1, NonFinite: 2, Ordinal: 3, Index: 4, Value: 5}
				if p.Dev.IsCPU() {
					*records.At(0) = last
				} else {
					all := make([]Record, devicePieces)
					all[2*pieces-1] = last
					require.NoError(t, snug.Copy(g.remote, snug.SliceView(recordBytes(all))))
				}
				saved, err := g.Save()
				require.NoError(t, err)
				require.NoError(t, g.Restore(p.Dev, saved))
				require.NoError(t, g.Collect())
				require.Equal(t, last, g.Total)
				g.Reset()
			}
		})
	}
}
