package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func TestPartsCoverRows(t *testing.T) {
	for _, rows := range []int{1, 15, 16, 17, 130, 1024, 1025, 100003, math.MaxInt} {
		n, size := parts(rows), partRows(rows)
		require.LessOrEqual(t, n, maxParts)
		require.Less(t, (n-1)*size, rows)
		require.LessOrEqual(t, rows-(n-1)*size, size)
	}
	require.Zero(t, parts(0))
	for _, rows := range []int{1, 15, 16, 17, 130, 2048, 2049, 100003, math.MaxInt} {
		n, size := deviceParts(rows), devicePartRows(rows)
		require.LessOrEqual(t, n, maxDeviceParts)
		require.GreaterOrEqual(t, n, parts(rows), "whose workspace is that of devices")
		require.Less(t, (n-1)*size, rows)
		require.LessOrEqual(t, rows-(n-1)*size, size)
	}
	require.Zero(t, deviceParts(0))
}

func TestWorkspaceLengths(t *testing.T) {
	require.Equal(t, 2*2*768, LayerNormWorkspaceLen(32, 768))
	require.Equal(t, 2*128*768, LayerNormWorkspaceLen(1<<20, 768))
	require.Equal(t, 3*5, BiasGELUWorkspaceLen(33, 5))
	for _, dims := range [][2]int{{0, 5}, {5, 0}, {-1, 5}, {5, -1}} {
		require.Zero(t, LayerNormWorkspaceLen(dims[0], dims[1]))
		require.Zero(t, BiasGELUWorkspaceLen(dims[0], dims[1]))
		require.Zero(t, BiasAddWorkspaceLen(dims[0], dims[1]))
	}
	require.Equal(t, math.MaxInt, LayerNormWorkspaceLen(100, math.MaxInt/2))
	require.Equal(t, math.MaxInt, BiasGELUWorkspaceLen(math.MaxInt, math.MaxInt))
}

func TestInto(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		into snug.Into
		acc  float32
		want float32
	}{
		{snug.Into{}, nan, 3},
		{snug.Into{Alpha: 2}, nan, 6},
		{snug.Into{Beta: 1}, 10, 13},
		{snug.Into{Alpha: -1, Beta: 0.5}, 10, 2},
	} {
		acc := []float32{c.acc}
		check := &checks{op: "test"}
		into := check.into(c.into)
		require.NoError(t, check.err)
		addInto(into, acc, []float32{3})
		require.Equal(t, c.want, acc[0], "%+v", c.into)
	}
}
