package segment

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat"
)

// none takes gradients and forgets them.
type none map[string][]float32

func (w none) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(w[name]), snug.Into{}, nil
}

// TestCosts: a pass holds the bytes that it counted without memory, whatever is computed again, with the same gradients.
func TestCosts(t *testing.T) {
	m, err := Open("../testdata/sam/rel", Options{})
	require.NoError(t, err)
	features := make([]float32, m.config.FeatureLen())
	for i := range features {
		features[i] = float32(i%7) - 3
	}
	item := Item{Features: snug.ViewOf(features), Prompt: Prompt{Box: &Box{1, 2, 30, 30}}, Target: make([]float32, 400)}
	for name, prompt := range map[string]Prompt{"box": item.Prompt, "mask": {Box: item.Prompt.Box, Mask: make([]float32, 1600)}} {
		t.Run(name, func(t *testing.T) {
			item.Prompt = prompt
			batch, windows := []Item{item, item, item}, [2]none{}
			for i, plan := range []func(remat.Costs) (remat.Plan, error){remat.KeepAll, remat.RecomputeAll} {
				windows[i] = none{}
				for name, v := range m.Trainable() {
					windows[i][name] = make([]float32, v.Len())
				}
				m.decoder.prompts = prompts{prompt, prompt, prompt}
				costs, err := m.model.Costs(3, 1)
				require.NoError(t, err)
				p, err := plan(costs)
				require.NoError(t, err)
				require.NoError(t, m.model.SetPlan(p))
				_, err = m.Backprop(context.Background(), batch, 1, windows[i])
				require.NoError(t, err)
				require.Empty(t, m.model.Report.Mismatches)
			}
			require.Equal(t, windows[0], windows[1])
		})
	}
}

// TestPublishedShape: what the package's documentation says of training in the published shape.
func TestPublishedShape(t *testing.T) {
	m, err := newModel(ViTB(), Options{}, 1, nil)
	require.NoError(t, err)
	costs, err := m.model.Costs(2, 1)
	require.NoError(t, err)
	require.Less(t, costs.Stages[0].Saved/2, int64(83<<20))
	require.Less(t, costs.Stages[0].Saved+costs.Stages[0].BackwardExtra+costs.Input, int64(200<<20))
}
