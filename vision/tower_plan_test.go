package vision

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	memplan "github.com/snug-ml/snug/plan"
)

// TestTowerPlan: what is predicted of layers is what the tower's Model counts, for all families, in both types and whatever trains.
func TestTowerPlan(t *testing.T) {
	trains := map[string]func(string) bool{
		"all": nil, "the head": func(name string) bool { return strings.HasPrefix(name, "classifier.") },
		"the last block and the head": func(name string) bool {
			return strings.Contains(name, ".1.") || strings.HasPrefix(name, "classifier.")
		},
	}
	device, err := memplan.DeviceNamed("24GB")
	require.NoError(t, err)
	for _, name := range []string{"vit", "deit", "clip-tower", "siglip", "dinov2", "dinov2-registers"} {
		for what, train := range trains {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				t.Run(name+" "+what+" "+dt.String(), func(t *testing.T) {
					dir, o := "testdata/towers/"+name, TowerOptions{Options: layers.Options{DType: dt}, Labels: []string{"a", "b", "c"}, Train: train}
					c, err := ReadTower(dir, o)
					require.NoError(t, err)
					tower, err := OpenTower(dir, o)
					require.NoError(t, err)
					require.Equal(t, tower.Config(), c)
					m, err := c.Plan(train)
					require.NoError(t, err)
					want, err := tower.Model.Costs(3, c.Rows())
					require.NoError(t, err)
					got, err := memplan.Task{Model: m, Batch: 3, Optimizer: "adamw", Device: device}.Costs(memplan.Run{Micro: 3, Window: 1, Compute: dt})
					require.NoError(t, err)
					require.Len(t, got.Stages, len(want.Stages))
					require.Equal(t, want.Input, got.Input)
					for i, w := range want.Stages {
						g := got.Stages[i]
						require.Equal(t, []int64{w.Output, w.Saved}, []int64{g.Output, g.Saved}, "%d", i)
						require.InDelta(t, w.ForwardExtra, g.ForwardExtra, float64(w.Output)/2, "%d", i)
						require.InDelta(t, w.BackwardExtra, g.BackwardExtra, float64(w.Output)/2, "%d", i)
					}
					total := int64(0)
					for _, p := range tower.Model.Params() {
						total += int64(p.Len())
					}
					require.Equal(t, total, m.Parameters()+m.Frozen)
				})
			}
		}
	}
}

// TestTowerPlanRefuses: what cannot train is an error before anything is made.
func TestTowerPlanRefuses(t *testing.T) {
	c, err := ReadTower("testdata/towers/vit", TowerOptions{Labels: []string{"a", "b"}})
	require.NoError(t, err)
	_, err = c.Plan(func(string) bool { return false })
	require.ErrorIs(t, err, snug.ErrConfig)
	c.Labels = nil
	_, err = c.Plan(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = TowerConfig{}.Plan(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = ReadTower("testdata/models/llava", TowerOptions{})
	require.Error(t, err)
	require.True(t, IsTower("testdata/towers/clip"))
	require.False(t, IsTower("testdata/models/llava"))
	require.False(t, IsTower(""))
}
