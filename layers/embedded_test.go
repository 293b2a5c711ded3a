package layers

import (
	"context"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// named is a user's type.
type named struct{ Sequential }

// TestEmbeddedSequential: a Residual and a Sum change the output of a layer. They refuse one whose backward step reads it, and which
// they cannot make keep it.
func TestEmbeddedSequential(t *testing.T) {
	of := func(list ...Layer) named { return named{list} }
	a, s := NewLinear("a", 6, 6, true), Sample{X: make([]float32, 12), Y: make([]float32, 12)}
	for _, l := range []Layer{
		Residual{of(a, ReLU)}, Sum{a, of(NewLinear("b", 6, 6, true), ReLU)}, Sum{of(a, ReLU), NewLinear("b", 6, 6, true)}, Residual{of(Sequential{a, ReLU})},
	} {
		m, err := NewModel(6, MSE{}, Options{}, l)
		require.NoError(t, err)
		_, err = m.Backprop(context.Background(), s, 1, gradients{})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "embeds a Sequential")
	}
	for _, l := range []Layer{Residual{of(a, GELU)}, Residual{of(a, ReLU, NewLinear("b", 6, 6, true))}, Sum{of(a, ReLU)}, of(a, ReLU), Residual{Sequential{a, ReLU}}} {
		m, err := NewModel(6, MSE{}, Options{}, l)
		require.NoError(t, err)
		gradientsOf(t, m, s)
	}
}
