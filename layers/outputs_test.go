package layers

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
	"github.com/stretchr/testify/require"
)

// named is a user's type.
type named struct{ Sequential }

// TestOutputsThatAreRead: ReLU's backward step may read its output where that is in the memory of its input. A Residual and a Sum then
// add into memory of their own, and have the gradients that they have where it reads its input; also under recomputation.
func TestOutputsThatAreRead(t *testing.T) {
	of := func(list ...Layer) Layer { return named{list} }
	forms := map[string]func(a, b *Linear, act Layer) Layer{
		"residual":          func(a, _ *Linear, act Layer) Layer { return Residual{of(a, act)} },
		"plain":             func(a, _ *Linear, act Layer) Layer { return Residual{Sequential{a, act}} },
		"nested":            func(a, _ *Linear, act Layer) Layer { return Residual{Sequential{of(a, act)}} },
		"sum of one":        func(a, _ *Linear, act Layer) Layer { return Residual{Sum{of(a, act)}} },
		"last of a sum":     func(a, b *Linear, act Layer) Layer { return Sum{a, of(b, act)} },
		"first of a sum":    func(a, b *Linear, act Layer) Layer { return Sum{of(a, act), b} },
		"both of a sum":     func(a, b *Linear, act Layer) Layer { return Residual{Sum{of(a, act), of(b, act)}} },
		"residual, outside": func(a, b *Linear, act Layer) Layer { return Sequential{Residual{of(a, act)}, b, act} },
	}
	s := Sample{X: make([]float32, 12), Y: make([]float32, 12)}
	for i := range s.X {
		s.X[i], s.Y[i] = float32(math.Sin(float64(i))), float32(math.Cos(float64(3*i)))
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			var want gradients
			for _, act := range []Layer{Sequential{ReLU}, ReLU} { // the first is no activation that overwrites
				m, err := NewModel(6, MSE{}, Options{Seed: 3}, form(NewLinear("a", 6, 6, true), NewLinear("b", 6, 6, true), act), GELU, NewLinear("c", 6, 6, true))
				require.NoError(t, err)
				for _, plan := range []func(remat.Costs) (remat.Plan, error){remat.KeepAll, remat.RecomputeAll} {
					costs, err := m.Costs(1, 2)
					require.NoError(t, err)
					p, err := plan(costs)
					require.NoError(t, err)
					require.NoError(t, m.SetPlan(p))
					got := gradientsOf(t, m, s)
					require.Empty(t, m.Report.Mismatches)
					if want == nil {
						want = got
					}
					require.Equal(t, want, got)
				}
			}
		})
	}
}

// TestDecoderOfAnotherType: the encoder's output is what the decoder's attentions read.
func TestDecoderOfAnotherType(t *testing.T) {
	src := &Source{Each: 2}
	cross := NewAttention("cross", 4, 2, 2)
	cross.Source = src
	decoder, err := NewModel(4, MSE{}, Options{}, cross)
	require.NoError(t, err)
	m, err := NewModel(4, Decoder{decoder, src}, Options{DType: snug.BF16}, NewLinear("a", 4, 4, true))
	require.NoError(t, err)
	s := Sample{X: make([]float32, 8), Decoder: &Sample{X: make([]float32, 8), Y: make([]float32, 8)}}
	_, err = m.Evaluate(t.Context(), s)
	require.ErrorIs(t, err, snug.ErrDType)
	require.ErrorContains(t, err, "the decoder's tensors are f32 on cpu, the encoder's bf16 on cpu")
}

// TestSumsOfBlocks: blocks free their outputs in their backward steps, of which a Sum and a Concat have freed some before.
//
//check:not race
func TestSumsOfBlocks(t *testing.T) {
	attention := func(name string) Layer { return NewAttention(name, 6, 2, 1) }
	mlp := func(name string) Layer { return NewMLP(name, 6, 5, SiLU, true) }
	for name, l := range map[string][]Layer{
		"sum":    {Sum{NewLinear("a", 6, 6, true), attention("b"), mlp("c")}},
		"nested": {Sum{mlp("a"), Sum{mlp("b"), Residual{attention("c")}}, Residual{mlp("d")}, Sequential{NewLinear("e", 6, 6, true), mlp("f")}}},
		"concat": {Concat{attention("a")}, Concat{Sum{NewLinear("b", 12, 6, true), Sequential{NewLinear("c", 12, 6, true), mlp("d")}}}, NewLinear("e", 18, 6, true)},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := NewModel(6, MSE{}, Options{Seed: 3}, l...)
			require.NoError(t, err)
			s := Sample{X: kerneltest.Normal(1, 24), Y: kerneltest.Normal(2, 24)}
			require.NoError(t, train.CheckGradients(t.Context(), m, s))
			require.Empty(t, m.Report.Mismatches)
			require.Zero(t, m.pass.Used())
		})
	}
}

// TestNumbersOfDropouts: two masks of one number would be equal.
func TestNumbersOfDropouts(t *testing.T) {
	build := func(a, b Dropout) error {
		_, err := NewModel(4, MSE{}, Options{}, a, Residual{Sequential{NewLinear("a", 4, 4, true), b}})
		return err
	}
	require.ErrorIs(t, build(Dropout{P: 0.1}, Dropout{P: 0.2}), snug.ErrConfig)
	_, err := NewModel(4, MSE{}, Options{}, &Dropout{P: 0.1}, NewLinear("a", 4, 4, true), &Dropout{P: 0.1})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, build(Dropout{P: 0.1}, Dropout{}))
	require.NoError(t, build(Dropout{P: 0.1, Number: 1}, Dropout{P: 0.2, Number: 2}))
}

// TestHeadsDivideTheWidth: of NewAttention.
func TestHeadsDivideTheWidth(t *testing.T) {
	_, err := NewAttention("a", 5, 2, 2).Width(5)
	require.ErrorIs(t, err, snug.ErrConfig)
}
