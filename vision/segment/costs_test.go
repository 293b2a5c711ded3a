package segment

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
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
	m, err := newModel(ViTB(), &huggingFace{}, Options{}, 1, nil)
	require.NoError(t, err)
	costs, err := m.model.Costs(2, 1)
	require.NoError(t, err)
	require.Less(t, costs.Stages[0].Saved/2, int64(83<<20))
	require.Less(t, costs.Stages[0].Saved+costs.Stages[0].BackwardExtra+costs.Input, int64(200<<20))
}

// strips sets the elements that layers of TinyViT hold of a part of an image.
func (e *Encoder) strips(of layers.Sequential, n int) {
	for _, l := range of {
		switch l := l.(type) {
		case *stem:
			l.strip = n
		case *bottleneck:
			l.strip = n
		case *windowed:
			l.strip = n
		}
	}
}

// TestTinyParts: features do not depend on how many rows of an image are computed at once, and several images in a pass have theirs.
func TestTinyParts(t *testing.T) {
	s, err := openSource("../testdata/sam/tiny")
	require.NoError(t, err)
	x, each := make([]float32, 2*3*160*160), s.config.FeatureLen()
	for i := range x {
		x[i] = float32(i%23)/11 - 1
	}
	var want []float32
	for _, strip := range []int{0, 1, 500, 3000} {
		list := layers.Sequential(tinyViT{}.layers(&s.config))
		e := &Encoder{kind: tinyViT{}, config: s.config, folded: foldedOf(list)}
		e.strips(list, strip)
		e.model, err = layers.NewModel(3*160*160, layers.MSE{}, layers.Options{}, list...)
		require.NoError(t, err)
		require.NoError(t, load(s.Weights, e.model))
		for _, f := range e.folded {
			require.NoError(t, f.fold(s.Weights))
		}
		got := make([]float32, 2*each)
		require.NoError(t, e.model.Predict(context.Background(), got, layers.Sample{X: x}))
		if want == nil {
			want = got
			continue
		}
		require.InDeltaSlice(t, want, got, 1e-5, strip)
	}
	require.NoError(t, s.Close())
}

// TestTinyMemory: bytes of activations at 1024 pixels, as the documentation of the package has them, and those of a pass are what was counted.
func TestTinyMemory(t *testing.T) {
	c := TinyViT()
	l, err := tinyViT{}.layout(&c)
	require.NoError(t, err)
	peak := func(e *Encoder) (most int64) {
		costs, err := e.model.Costs(1, 1)
		require.NoError(t, err)
		before := int64(0) // of the layer before; the image is there for all layers
		for _, s := range costs.Stages {
			most, before = max(most, costs.Input+before+s.Output+s.ForwardExtra), s.Output
		}
		return most
	}
	e, err := newEncoder(c, l, layers.Options{}, nil)
	require.NoError(t, err)
	weights := 0
	for _, p := range e.model.Params() {
		weights += p.Value.Bytes()
	}
	require.Less(t, peak(e), int64(50<<20))
	require.Less(t, weights, 22<<20)

	monitor, err := meter.New(meter.Options{})
	require.NoError(t, err)
	s, err := openSource("../testdata/sam/tiny")
	require.NoError(t, err)
	e, err = newEncoder(s.config, s.layout, layers.Options{Monitor: monitor}, s.Weights)
	require.NoError(t, err)
	require.NoError(t, e.Encode(context.Background(), make([]float32, s.config.FeatureLen()), [][]float32{make([]float32, 3*160*160)}))
	_, held := monitor.Held()
	require.InDelta(t, float64(peak(e)), float64(held[meter.OnDevice][meter.Activations]), 16<<10)
	require.NoError(t, s.Close())
}
