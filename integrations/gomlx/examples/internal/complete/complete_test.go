package complete

import (
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/stretchr/testify/require"
)

// TestOperations: the operations that are made of others have the numbers of their definition.
func TestOperations(t *testing.T) {
	b, err := New()
	require.NoError(t, err)
	x := [][]float32{{1, 2, 3}, {4, 5, 6}}
	for _, c := range []struct {
		of   func(*graph.Node) *graph.Node
		want [][]float32
	}{
		{func(x *graph.Node) *graph.Node { return graph.Reverse(x, 1) }, [][]float32{{3, 2, 1}, {6, 5, 4}}},
		{func(x *graph.Node) *graph.Node { return graph.Reverse(x, 0, 1) }, [][]float32{{6, 5, 4}, {3, 2, 1}}},
		{func(x *graph.Node) *graph.Node {
			return graph.Pad(x, graph.Scalar(x.Graph(), x.DType(), 9), backends.PadAxis{Start: 1}, backends.PadAxis{Interior: 1, End: 2})
		}, [][]float32{{9, 9, 9, 9, 9, 9, 9}, {1, 9, 2, 9, 3, 9, 9}, {4, 9, 5, 9, 6, 9, 9}}},
		{func(x *graph.Node) *graph.Node {
			return graph.Pad(x, graph.Scalar(x.Graph(), x.DType(), 9), backends.PadAxis{}, backends.PadAxis{Start: -1, End: 1})
		}, [][]float32{{2, 3, 9}, {5, 6, 9}}},
	} {
		got, err := graph.ExecOnce(b, c.of, x)
		require.NoError(t, err)
		require.Equal(t, c.want, got.Value())
	}
}

// TestPool: the gradient of pooling goes to the first maximum of each window.
func TestPool(t *testing.T) {
	b, err := New()
	require.NoError(t, err)
	x := [][][][]float32{{{{1}, {5}, {2}, {2}}, {{3}, {0}, {2}, {1}}}}
	got, err := graph.ExecOnce(b, func(x *graph.Node) *graph.Node {
		pooled := graph.MaxPool(x).Window(2).Done()
		return graph.Gradient(graph.ReduceAllSum(graph.Mul(pooled, pooled)), x)[0]
	}, x)
	require.NoError(t, err)
	require.Equal(t, [][][][]float32{{{{0}, {10}, {4}, {0}}, {{0}, {0}, {0}, {0}}}}, got.Value())
}
