package train

import (
	"context"
	"fmt"
	"iter"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// toy is y = W·x + b with the mean squared error, in float32 arithmetic on parameters of any type. A
// batch is a list of samples, each the seed of its numbers.
type toy struct {
	names  []string
	values map[string]snug.View
	poison map[int]string // batches, by their first sample, that have a NaN in a parameter's gradient
	most   int            // samples for which there is memory; 0: any
	noDone bool
	fail   error
}

const toyIn, toyOut = 40, 300

func newToy(t testing.TB, w, b snug.DType) *toy {
	m := &toy{names: []string{"w", "b"}, values: map[string]snug.View{}}
	for name, p := range map[string]struct {
		dt snug.DType
		n  int
	}{"w": {w, toyIn * toyOut}, "b": {b, toyOut}} {
		v, _, err := snug.MakeView(snug.CPU(), p.dt, p.n)
		require.NoError(t, err)
		require.NoError(t, amp.Cast(v, kerneltest.Uniform(7, p.n)))
		m.values[name] = v
	}
	return m
}

func (m *toy) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, name := range m.names {
			if !yield(name, m.values[name]) {
				return
			}
		}
	}
}

func (m *toy) Matrix(name string) (rows, cols int) {
	if name == "w" {
		return toyOut, toyIn
	}
	return 0, 0
}

func (m *toy) Block(name string) int {
	if name == "w" {
		return 10 * toyIn
	}
	return 1
}

func (m *toy) Weight(b []int) float64 { return float64(len(b)) }

func (m *toy) floats(name string) []float32 {
	x := make([]float32, m.values[name].Len())
	if err := amp.Cast(x, m.values[name]); err != nil {
		panic(err)
	}
	return x
}

func (m *toy) run(b []int, dw, db []float32) (sum float64) {
	w, bias := m.floats("w"), m.floats("b")
	for _, sample := range b {
		x, want := kerneltest.Normal(uint64(sample), toyIn), kerneltest.Normal(uint64(sample)+1000, toyOut)
		for o := range toyOut {
			y := bias[o]
			for i, v := range x {
				y += w[o*toyIn+i] * v
			}
			d := y - want[o]
			sum += float64(d) * float64(d) / toyOut
			if dw == nil {
				continue
			}
			g := 2 * d / toyOut / float32(len(b))
			db[o] += g
			for i, v := range x {
				dw[o*toyIn+i] += g * v
			}
		}
	}
	return sum
}

func (m *toy) Backprop(_ context.Context, b []int, scale float32, w Window) (fused.Loss, error) {
	if m.fail != nil {
		return fused.Loss{}, m.fail
	}
	if m.most > 0 && len(b) > m.most {
		return fused.Loss{}, fmt.Errorf("toy: %d samples: %w", len(b), snug.ErrNoMemory)
	}
	grads := map[string][]float32{"w": make([]float32, toyIn*toyOut), "b": make([]float32, toyOut)}
	sum := m.run(b, grads["w"], grads["b"])
	if name := m.poison[b[0]]; name != "" {
		grads[name][3] = float32(math.NaN())
	}
	for _, name := range m.names {
		acc, into, err := w.Into(name)
		if err != nil {
			return fused.Loss{}, err
		}
		a := acc.Float32s()
		if into.Beta == 0 {
			clear(a)
		}
		for i, g := range grads[name] {
			a[i] = into.Beta*a[i] + into.Alpha*scale*g
		}
		if d, has := w.(Completer); has && !m.noDone {
			if err := d.Done(name); err != nil {
				return fused.Loss{}, err
			}
		}
	}
	return fused.Loss{Sum: sum, Targets: len(b)}, nil
}

func (m *toy) Evaluate(_ context.Context, b []int) (fused.Loss, error) {
	if m.most > 0 && len(b) > m.most {
		return fused.Loss{}, fmt.Errorf("toy: %d samples: %w", len(b), snug.ErrNoMemory)
	}
	return fused.Loss{Sum: m.run(b, nil, nil), Targets: len(b)}, nil
}

// bits returns the parameters as they are.
func (m *toy) bits() map[string][]float32 {
	return map[string][]float32{"w": m.floats("w"), "b": m.floats("b")}
}

// steps returns the micro-batches of a step.
func steps(step int) [][]int { return [][]int{{4 * step, 4*step + 1, 4*step + 2}, {4*step + 3}} }

func trainTo(t testing.TB, tr *Trainer[[]int], end int) (losses []float64) {
	t.Helper()
	for tr.Step() < end {
		r, err := tr.Train(context.Background(), steps(tr.Step()))
		require.NoError(t, err)
		require.Equal(t, tr.Step(), r.Step)
		losses = append(losses, r.Loss)
	}
	return losses
}

func newTrainer(t testing.TB, m *toy, o Options) *Trainer[[]int] {
	t.Helper()
	tr, err := New(Model[[]int](m), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}
