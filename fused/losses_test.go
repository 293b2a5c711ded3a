package fused

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// The sum of what calls collect has the bits of the sums that they would return, in their order, also when
// there are more of them than wait at a time.
func TestLosses(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		rng := newRand(3)
		c := CrossEntropy{Vocab: 5, Cols: 4}
		x, w := kerneltest.PutFloats(t, p, snug.F32, normals(rng, snug.F32, 12, 0, 1)).View, kerneltest.PutFloats(t, p, snug.F32, normals(rng, snug.F32, 20, 0, 1)).View
		ws := kerneltest.Put(t, p, make([]float32, c.WorkspaceLen(3))).View
		losses := &Losses{}
		for _, n := range []int{0, 1, 2*lossSlots + 1} {
			want := 0.0
			for i := range n {
				c.Losses = nil
				c.Weights = []float32{1, float32(i) / 3, 0.5}
				targets := []int32{int32(i % 5), 3, -1}
				alone, err := CrossEntropyLoss(c, x, w, targets, ws)
				require.NoError(t, err)
				want += alone.Sum
				c.Losses = losses
				got, err := CrossEntropyLoss(c, x, w, targets, ws)
				require.NoError(t, err)
				alone.Sum = 0
				require.Equal(t, alone, got)
				_, err = CrossEntropyLoss(c, x, w, []int32{9, 9, 9}, ws)
				require.ErrorIs(t, err, snug.ErrShape, "which collects nothing")
			}
			sum, err := losses.Take()
			require.NoError(t, err)
			require.Equal(t, want, sum, n)
		}
	})
}

// Losses are on one device until Take, which forgets them.
func TestLossesOfDevices(t *testing.T) {
	backends := kerneltest.Backends(t)
	losses := &Losses{}
	call := func(p kerneltest.Backend) error {
		c := CrossEntropy{Vocab: 1, Cols: 1, Losses: losses}
		x, ws := kerneltest.Put(t, p, []float32{1}).View, kerneltest.Put(t, p, make([]float32, c.WorkspaceLen(1))).View
		_, err := CrossEntropyLoss(c, x, x, []int32{0}, ws)
		return err
	}
	for _, p := range backends[2:] {
		another := kerneltest.Backends(t)[2]
		require.NoError(t, call(p))
		require.ErrorIs(t, call(another), snug.ErrConfig)
		_, err := losses.Take()
		require.NoError(t, err)
	}
	sum, err := (*Losses)(nil).Take()
	require.NoError(t, err)
	require.Zero(t, sum)
}

// A lost device is an error of Take, after which the Losses can be used elsewhere.
func TestLossesOfAClosedDevice(t *testing.T) {
	dev, err := snug.Open("opaque")
	require.NoError(t, err)
	c := CrossEntropy{Vocab: 1, Cols: 1, Losses: &Losses{}}
	x, err := snug.Make[float32](dev, 1+c.WorkspaceLen(1))
	require.NoError(t, err)
	one, err := x.Slice(0, 1)
	require.NoError(t, err)
	ws, err := x.Slice(1, x.Len())
	require.NoError(t, err)
	_, err = CrossEntropyLoss(c, one, one, []int32{0}, ws)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	_, err = c.Losses.Take()
	require.ErrorIs(t, err, snug.ErrDevice)
	_, err = CrossEntropyLoss(c, []float32{1}, []float32{1}, []int32{0}, make([]float32, c.WorkspaceLen(1)))
	require.NoError(t, err)
	sum, err := c.Losses.Take()
	require.NoError(t, err)
	require.Zero(t, sum, "of one class")
}
