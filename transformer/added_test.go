package transformer

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// withAdded returns the batch with vectors for the outputs of the first two layers, at other rows each, and memory for their gradients.
func withAdded(t testing.TB, m *Model, b Batch) Batch {
	t.Helper()
	for i, rows := range [][]int32{{0, 2, 3, 7}, {1, 2, 15}} {
		n := len(rows) * m.config.Dim
		b.Added = append(b.Added, Embeddings{Rows: rows, Values: moved(t, kerneltest.Uniform(uint64(9+i), n), snug.F32, m.dev), Grad: moved(t, make([]float32, n), snug.F32, m.dev)})
	}
	return b
}

// TestAdded: the gradients of vectors that are added are those of finite differences, with every plan, and whatever else trains.
func TestAdded(t *testing.T) {
	for name, c := range map[string]*Config{"tied": tiny(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh)} {
		var first [][]float32
		for _, how := range []string{"f32", "frozen", "tiles", "adapters", "bf16"} {
			t.Run(name+", "+how, func(t *testing.T) {
				o := map[string]Options{
					"frozen": {Train: func(name string) bool { return false }}, "tiles": {Tiles: 2},
					"adapters": {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}}, "bf16": {DType: snug.BF16},
				}[how]
				o.Seed = 3
				m := newTiny(t, c, o)
				b := withAdded(t, m, someBatch(7, 11, 2, 8))
				loss, want := lossAndGradients(t, m, b)
				evaluated, err := m.Evaluate(t.Context(), b)
				require.NoError(t, err)
				require.Equal(t, loss, evaluated.Mean())
				plain := b
				plain.Added = nil
				without, err := m.Evaluate(t.Context(), plain)
				require.NoError(t, err)
				require.NotEqual(t, without.Mean(), loss)

				grads := [][]float32{onHost(t, b.Added[0].Grad), onHost(t, b.Added[1].Grad)}
				if first == nil {
					first = grads
				}
				bound := 1e-6
				if how == "bf16" {
					bound = 0.1
				}
				for i := range grads { // adapters begin as 0, and tiles compute the same
					difference, largest := apart(grads[i], first[i])
					require.LessOrEqual(t, difference, bound*largest)
				}
				costs, err := m.Costs(1, len(b.Tokens))
				require.NoError(t, err)
				for slots := range 3 {
					plan, err := remat.Revolve(costs, slots+1)
					require.NoError(t, err)
					require.NoError(t, m.SetPlan(plan))
					for i := range b.Added {
						require.NoError(t, snug.Copy(b.Added[i].Grad, snug.ViewOf(slices.Repeat([]float32{float32(math.NaN())}, len(grads[i])))))
					}
					_, replayed := lossAndGradients(t, m, b)
					require.Equal(t, want, replayed)
					require.Equal(t, grads, [][]float32{onHost(t, b.Added[0].Grad), onHost(t, b.Added[1].Grad)})
				}
				if how != "f32" {
					return
				}
				for i := range b.Added {
					v, direction, slope := b.Added[i].Values.Float32s(), kerneltest.Uniform(uint64(20+i), len(grads[i])), 0.
					for j, g := range grads[i] {
						slope += float64(g) * float64(direction[j])
					}
					at := func(h float32) float64 {
						kept := slices.Clone(v)
						defer copy(v, kept)
						for j := range v {
							v[j] += h * direction[j]
						}
						loss, err := m.Evaluate(t.Context(), b)
						require.NoError(t, err)
						return loss.Mean()
					}
					require.InEpsilon(t, slope, (at(1e-2)-at(-1e-2))/2e-2, 1e-2)
				}
			})
		}
	}
}

// TestAddedGenerate: a prompt with vectors that are added gives the logits of a batch with them, in chunks too.
func TestAddedGenerate(t *testing.T) {
	for _, chunk := range []int{1, 3, 64} {
		m := newTiny(t, tiny(), Options{Seed: 3})
		b := withAdded(t, m, someBatch(7, 11, 1, 16))
		_, err := m.Evaluate(t.Context(), b)
		require.NoError(t, err)
		g := newGenerator(t, m, GenerateOptions{Context: 20, Chunk: chunk})
		require.ErrorIs(t, g.PromptBatch(t.Context(), b), snug.ErrConfig) // which has a Grad
		for i := range b.Added {
			b.Added[i].Grad = snug.View{}
		}
		require.NoError(t, g.Prompt(t.Context(), []int32{3, 1}))
		require.NoError(t, g.PromptBatch(t.Context(), b))
		whole := Batch{}
		for _, e := range b.Added {
			e.Rows = slices.Clone(e.Rows)
			for i := range e.Rows {
				e.Rows[i] += 2
			}
			whole.Added = append(whole.Added, e)
		}
		want := make([]float32, 11)
		for range 2 {
			whole.Tokens = g.Tokens()
			require.NoError(t, m.Logits(t.Context(), want, whole, nil))
			_, err := g.Next(t.Context())
			require.NoError(t, err)
			difference, largest := apart(g.Logits(), want)
			require.LessOrEqual(t, difference, 1e-5*largest, chunk)
		}
	}
}

// TestAddedRefused: what does not fit is an error; without labels that count the gradients are 0; a teacher has none.
func TestAddedRefused(t *testing.T) {
	m := newTiny(t, tiny(), Options{Seed: 3})
	b := withAdded(t, m, someBatch(7, 11, 2, 8))
	many, rows := b, b
	many.Added = make([]Embeddings, m.config.Layers+1)
	_, err := m.Evaluate(t.Context(), many)
	require.ErrorContains(t, err, "vectors in Added")
	rows.Added = []Embeddings{b.Added[0], {Rows: []int32{16}, Values: snug.ViewOf(make([]float32, m.config.Dim))}}
	_, err = m.Evaluate(t.Context(), rows)
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "of Added[1]: row 0 of the embeddings is 16")

	_, err = m.BackpropDistill(t.Context(), b, 1, Distillation{Teacher: newTiny(t, tiny(), Options{Seed: 4}), Weight: 1}, newBegun(t, m))
	require.NoError(t, err)
	require.NotZero(t, slices.Max(onHost(t, b.Added[0].Grad)))
	b.Labels = slices.Repeat([]int32{-100}, len(b.Tokens))
	_, err = m.Backprop(t.Context(), b, 1, newBegun(t, m))
	require.NoError(t, err)
	for _, e := range b.Added {
		require.Equal(t, make([]float32, e.Grad.Len()), onHost(t, e.Grad))
	}
}
