package vision_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/vision"
)

// numbers are those that towers.py draws.
func numbers(number, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		at := uint32(i + number*97531)
		x[i] = float32(float64(at*at*2654435761+at*40503)/(1<<31) - 1)
	}
	return x
}

// goldenTower has what transformers computes.
type goldenTower struct {
	Rows, Logits []float64
	Resized      []float64 // the rows of an image of another size
	Loss         float64
	Gradients    map[string][2]float64
}

func readTowerGolden(t *testing.T, name string) (g goldenTower) {
	data, err := os.ReadFile(filepath.Join("testdata/towers", name, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// goldenSample has the images of towers.py.
func goldenSample(t *testing.T, m *vision.Tower) layers.Sample {
	c := m.Config()
	x := numbers(1000, 2*c.Channels*c.Image*c.Image)
	labels := []int32{2, 0}
	if c.Labels == nil {
		labels = nil
	}
	s, err := m.Sample([][]float32{x[:len(x)/2], x[len(x)/2:]}, labels)
	require.NoError(t, err)
	return s
}

func near(t *testing.T, want []float64, got []float32, bound float64) {
	t.Helper()
	require.Len(t, got, len(want))
	largest := 0.
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i, v := range want {
		require.InDelta(t, v, got[i], bound*largest, i)
	}
}

// sums takes gradients.
type sums map[string][]float32

func (w sums) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(w[name]), snug.Into{Alpha: 1, Beta: 1}, nil
}

func features(t *testing.T, m *vision.Tower, s layers.Sample) []float32 {
	c := m.Config()
	rows := make([]float32, s.Sequences*c.Rows()*c.Width)
	require.NoError(t, m.Features(context.Background(), rows, s))
	return rows
}

// TestTowerGolden: rows, logits, losses and gradients of every kind of folder are those of transformers, with every plan.
func TestTowerGolden(t *testing.T) {
	folders, err := os.ReadDir("testdata/towers")
	require.NoError(t, err)
	require.Len(t, folders, 14)
	for _, f := range folders {
		t.Run(f.Name(), func(t *testing.T) {
			golden := readTowerGolden(t, strings.TrimSuffix(f.Name(), "-v5"))
			m, err := vision.OpenTower(filepath.Join("testdata/towers", f.Name()), vision.TowerOptions{})
			require.NoError(t, err)
			s := goldenSample(t, m)
			near(t, golden.Rows, features(t, m, s), 2e-6)
			if golden.Resized != nil {
				other, err := vision.OpenTower(filepath.Join("testdata/towers", f.Name()), vision.TowerOptions{Image: 18})
				require.NoError(t, err)
				dir := t.TempDir()
				require.NoError(t, other.Save(dir)) // with the positions of the folder
				again, err := vision.OpenTower(dir, vision.TowerOptions{})
				require.NoError(t, err)
				require.Equal(t, features(t, m, s), features(t, again, s))
				s, err := other.Sample([][]float32{numbers(1000, 3*18*18)}, nil)
				require.NoError(t, err)
				near(t, golden.Resized, features(t, other, s), 2e-6)
			}
			if golden.Loss == 0 {
				require.Empty(t, m.Config().Labels)
				return
			}
			require.Equal(t, []string{"cat", "dog", "bird"}, m.Config().Labels)
			logits := make([]float32, 2*3)
			require.NoError(t, m.Logits(context.Background(), logits, s))
			near(t, golden.Logits, logits, 2e-6)
			costs, err := m.Model.Costs(2, m.Config().Rows())
			require.NoError(t, err)
			chen, err := remat.Chen(costs)
			require.NoError(t, err)
			var first sums
			for _, plan := range []remat.Plan{{}, chen} {
				require.NoError(t, m.Model.SetPlan(plan))
				w := sums{}
				for name, v := range m.Model.Trainable() {
					w[name] = make([]float32, v.Len())
				}
				loss, err := m.Model.Backprop(context.Background(), s, 1, w)
				require.NoError(t, err)
				require.Empty(t, m.Model.Report.Mismatches)
				require.InEpsilon(t, golden.Loss, loss.Mean(), 2e-6)
				if first == nil {
					first = w
				}
				require.Equal(t, first, w)
			}
			names := make([]string, 0, len(first))
			for name := range first {
				names = append(names, name)
			}
			slices.Sort(names)
			require.Len(t, golden.Gradients, len(names))
			for number, name := range names {
				square, dot := 0., 0.
				for i, v := range numbers(2000+number, len(first[name])) {
					g := float64(first[name][i])
					square, dot = square+g*g, dot+g*float64(v)
				}
				want := golden.Gradients[name]
				require.InDelta(t, want[0], math.Sqrt(square), 1e-5*want[0]+1e-6, name)
				require.InDelta(t, want[1], dot, 1e-5*want[0]+1e-6, name)
			}
		})
	}
}

// TestTowerSaves: a saved tower opens again with the same logits, also with another head and from new weights.
func TestTowerSaves(t *testing.T) {
	shape := vision.TowerConfig{Image: 8, Patch: 4, Channels: 3, Width: 8, Hidden: 12, Layers: 1, Heads: 2, Activation: "gelu", Eps: 1e-6, QKVBias: true}
	folders, err := os.ReadDir("testdata/towers")
	require.NoError(t, err)
	type made struct {
		name string
		make func() (*vision.Tower, error)
	}
	var list []made
	for _, f := range folders {
		dir := filepath.Join("testdata/towers", f.Name())
		list = append(list, made{f.Name(), func() (*vision.Tower, error) { return vision.OpenTower(dir, vision.TowerOptions{}) }},
			made{f.Name() + " with labels", func() (*vision.Tower, error) {
				return vision.OpenTower(dir, vision.TowerOptions{Labels: []string{"a", "b"}, Options: layers.Options{DType: snug.BF16}})
			}})
		if f.Name() == "smolvlm-tower" { // which has no class for classification
			list = list[:len(list)-1]
		}
	}
	for _, towerFamily := range []string{"vit", "deit", "clip", "siglip", "dinov2", "dinov2_with_registers", "idefics3_vision"} {
		for _, labels := range [][]string{nil, {"a", "b"}} {
			c := shape
			if labels != nil && towerFamily == "idefics3_vision" {
				continue
			}
			if c.Family, c.Labels = towerFamily, labels; towerFamily == "dinov2_with_registers" {
				c.Registers, c.Gated, c.Hidden = 2, true, 16
			} else if towerFamily == "dinov2" {
				c.Hidden = 16
			}
			name := "new " + towerFamily
			if labels != nil {
				name += " with labels"
			}
			list = append(list, made{name, func() (*vision.Tower, error) {
				return vision.NewTower(c, vision.TowerOptions{Options: layers.Options{Seed: 7}})
			}})
		}
	}
	for _, of := range list {
		t.Run(of.name, func(t *testing.T) {
			m, err := of.make()
			require.NoError(t, err)
			dir := filepath.Join(t.TempDir(), "tower")
			if to := os.Getenv("SNUG_SAVE"); to != "" {
				dir = filepath.Join(to, of.name)
			}
			require.NoError(t, m.Save(dir))
			again, err := vision.OpenTower(dir, vision.TowerOptions{})
			require.NoError(t, err)
			require.Equal(t, m.Config(), again.Config())
			s := goldenSample(t, m)
			want := features(t, m, s)
			bound := 0.
			if len(of.name) > 12 && of.name[len(of.name)-12:] == " with labels" && of.name[:3] != "new" {
				bound = 0.05 // the first has 16 bits
				near(t, float64s(want), features(t, again, s), bound)
			} else {
				require.Equal(t, want, features(t, again, s))
			}
			if m.Config().Labels != nil {
				s.Labels = []int32{1, 0}
				want = make([]float32, 2*len(m.Config().Labels))
				require.NoError(t, again.Logits(context.Background(), want, s))
				loss, err := again.Model.Evaluate(context.Background(), s)
				require.NoError(t, err)
				require.InDelta(t, crossEntropy(want, s.Labels), loss.Mean(), 1e-5)
			} else {
				want = features(t, again, s)
			}
			if os.Getenv("SNUG_SAVE") != "" {
				text, err := json.Marshal(want)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "want.json"), text, 0o644))
			}
		})
	}
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func crossEntropy(logits []float32, labels []int32) (mean float64) {
	classes := len(logits) / len(labels)
	for i, label := range labels {
		sum := 0.
		for _, v := range logits[i*classes:][:classes] {
			sum += math.Exp(float64(v))
		}
		mean += (math.Log(sum) - float64(logits[i*classes+int(label)])) / float64(len(labels))
	}
	return mean
}

// TestTowerOfATeacher: a DeiT with two heads opens as a tower, or with a new head.
func TestTowerOfATeacher(t *testing.T) {
	dir := edited(t, "towers/deit", map[string]string{"architectures": `["DeiTForImageClassificationWithTeacher"]`})
	w, err := amp.OpenWeights("testdata/towers/deit")
	require.NoError(t, err)
	require.NoError(t, amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, info := range w.Tensors() {
			v, _, err := snug.MakeView(snug.CPU(), info.ElementType(), info.Len())
			require.NoError(t, err)
			require.NoError(t, w.Load(info.Name, v))
			names := []string{info.Name}
			if part, is := strings.CutPrefix(info.Name, "classifier."); is {
				names = []string{"cls_classifier." + part, "distillation_classifier." + part}
			}
			for _, info.Name = range names {
				if !yield(info, v) {
					return
				}
			}
		}
	}, nil))
	require.NoError(t, w.Close())
	m, err := vision.OpenTower(dir, vision.TowerOptions{})
	require.NoError(t, err)
	require.Empty(t, m.Config().Labels)
	near(t, readTowerGolden(t, "deit").Rows, features(t, m, goldenSample(t, m)), 2e-6)
	m, err = vision.OpenTower(dir, vision.TowerOptions{Labels: []string{"a", "b"}})
	require.NoError(t, err)
	require.NoError(t, m.Save(t.TempDir()))
}

// TestTowerTrains: a head on a frozen tower learns, and nothing else changes.
func TestTowerTrains(t *testing.T) {
	m, err := vision.OpenTower("testdata/towers/clip-tower", vision.TowerOptions{
		Options: layers.Options{Seed: 3}, Labels: []string{"no", "yes"}, Train: func(name string) bool { return name == "classifier.weight" || name == "classifier.bias" },
	})
	require.NoError(t, err)
	s := goldenSample(t, m)
	s.Labels = []int32{1, 0}
	before := features(t, m, s)
	tr, err := train.New(m.Model, train.Options{Schedule: train.Constant(0.05)})
	require.NoError(t, err)
	first, err := m.Model.Evaluate(context.Background(), s)
	require.NoError(t, err)
	for range 40 {
		_, err = tr.Train(context.Background(), []layers.Sample{s})
		require.NoError(t, err)
	}
	last, err := m.Model.Evaluate(context.Background(), s)
	require.NoError(t, err)
	require.Less(t, last.Mean(), first.Mean()/4)
	require.Equal(t, before, features(t, m, s))
}
