package segment_test

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/vision/segment"
)

// batch has the prompts and targets of a case of testdata/sam.py.
func batch(t *testing.T, name, which string) (list []segment.Item, several bool) {
	c, err := segment.ReadConfig(filepath.Join(folders, name))
	require.NoError(t, err)
	features := encode(t, filepath.Join(folders, name), layers.Options{})
	points := [][]segment.Point{{{X: 3, Y: 7}, {X: 30, Y: 12.5, Background: true}}, {{X: 20, Y: 20}}}
	boxes := []segment.Box{{2, 5, 31, 38.5}, {10, 0, 25, 12}}
	masks, side := numbers(7000, 2*40*40), 40
	for i := range 2 {
		item := segment.Item{Features: snug.ViewOf(features[i*c.FeatureLen():][:c.FeatureLen()])}
		switch which {
		case "points":
			item.Prompt.Points = points[i]
		case "boxes":
			item.Prompt.Box, several, side = &boxes[i], true, 64
		case "both":
			item.Prompt.Points, item.Prompt.Box, several = points[0], &boxes[i], true
		case "masks":
			item.Prompt.Points, item.Prompt.Mask = points[i], masks[i*1600:][:1600]
		}
		for at := range side * side {
			y, x := (float64(at/side)+0.5)/float64(side)-[]float64{0.4, 0.7}[i], (float64(at%side)+0.5)/float64(side)-[]float64{0.5, 0.3}[i]
			v := float32(0)
			if r := []float64{0.3, 0.2}[i]; y*y+x*x < r*r {
				v = 1
			}
			item.Target = append(item.Target, v)
		}
		list = append(list, item)
	}
	return list, several
}

// sums are windows that add gradients.
type sums map[string][]float32

func (w sums) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(w[name]), snug.Into{Alpha: 1, Beta: 1}, nil
}

// TestGolden: masks, scores, the loss and all gradients are those of transformers.
func TestGolden(t *testing.T) {
	for _, name := range models {
		all := readGolden(t, name)
		for which, golden := range all.Cases {
			t.Run(name+" "+which, func(t *testing.T) {
				items, several := batch(t, name, which)
				m, err := segment.Open(filepath.Join(folders, name), segment.Options{Several: several})
				require.NoError(t, err)
				ctx := context.Background()
				masks, scores := make([]float32, 2*m.Masks()*1600), make([]float32, 2*m.Masks())
				require.NoError(t, m.Predict(ctx, masks, scores, items))
				like(t, golden.Masks, masks, 4000, 1e-5, "masks")
				if c := m.Config(); which == "points" {
					var photo []float32
					for i := range 2 {
						one, err := c.Photo(masks[i*1600:][:1600], segment.Size{Height: 40, Width: 31}, segment.Size{Height: 53, Width: 41})
						require.NoError(t, err)
						photo = append(photo, one...)
					}
					like(t, all.Photo, photo, 5000, 1e-5, "photo")
				}
				for i, v := range golden.Scores {
					require.InDelta(t, v, scores[i], 1e-5)
				}
				loss, err := m.Evaluate(ctx, items)
				require.NoError(t, err)
				require.InEpsilon(t, golden.Loss, loss.Mean(), 1e-5)
				w := sums{}
				for name, v := range m.Trainable() {
					w[name] = make([]float32, v.Len())
				}
				loss, err = m.Backprop(ctx, items, 1, w)
				require.NoError(t, err)
				require.InEpsilon(t, golden.Loss, loss.Mean(), 1e-5)
				require.ElementsMatch(t, slices.Collect(maps.Keys(golden.Gradients)), slices.Collect(maps.Keys(w)))
				for i, name := range slices.Sorted(maps.Keys(golden.Gradients)) {
					if strings.HasSuffix(name, "k_proj.bias") { // 0: it adds the same to all scores of a query
						require.InDeltaSlice(t, make([]float32, len(w[name])), w[name], 2e-5, name)
						continue
					}
					like(t, golden.Gradients[name], w[name], 2000+i, 1e-4, name)
				}
			})
		}
	}
}
