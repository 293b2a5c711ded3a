package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/layers"
)

// gridFields are fields of vision_config that the models of Qwen share, and what their towers do.
type gridFields struct {
	Layers     int    `json:"depth"`
	Width      int    `json:"hidden_size"`
	Activation string `json:"hidden_act"`
	Hidden     int    `json:"intermediate_size"`
	Heads      int    `json:"num_heads"`
	Channels   int    `json:"in_channels"`
	Patch      int    `json:"patch_size"`
	Merge      int    `json:"spatial_merge_size"`
	Temporal   int    `json:"temporal_patch_size"`
	Out        int    `json:"out_hidden_size"`
	Rope       *struct {
		Type  string   `json:"rope_type"`
		Theta *float64 `json:"rope_theta"`
	} `json:"rope_parameters"`
}

// grid checks the fields, and sets those of c but the tower's family, the placeholder and the projector.
func (v *gridFields) grid(c *connection) (*grid, error) {
	for _, n := range []struct {
		name string
		of   int
		most int
	}{
		{"depth", v.Layers, most}, {"hidden_size or embed_dim", v.Width, most}, {"intermediate_size", v.Hidden, most}, {"num_heads", v.Heads, most}, {"in_channels", v.Channels, mostPatch},
		{"patch_size", v.Patch, mostPatch}, {"spatial_merge_size", v.Merge, mostPatch}, {"temporal_patch_size", v.Temporal, mostPatch},
	} {
		if n.of < 1 || n.of > n.most {
			return nil, fmt.Errorf("%s is %d, want 1 to %d: %w", n.name, n.of, n.most, snug.ErrConfig)
		}
	}
	theta := 10000.0
	if r := v.Rope; r != nil && r.Theta != nil {
		theta = *r.Theta
	}
	if float64(v.Channels)*float64(v.Temporal)*float64(v.Patch)*float64(v.Patch) > most || float64(v.Merge)*float64(v.Merge)*float64(v.Width) > most {
		return nil, fmt.Errorf("%d channels of %d frames of patches of %d pixels a side, and squares of %d of %d elements: want at most 2^24 elements a patch or square: %w", v.Channels, v.Temporal, v.Patch, v.Merge, v.Width, snug.ErrConfig)
	}
	g := &grid{patch: v.Channels * v.Temporal * v.Patch * v.Patch, merge: v.Merge, width: v.Width, blocks: v.Layers, reads: []int{0}, rope: axialRope(theta, v.Width/v.Heads)}
	_, known := activations[v.Activation]
	switch err := g.rope.Check(); {
	case !known:
		return nil, fmt.Errorf("hidden_act is %.40q, which is not known: %w", v.Activation, snug.ErrConfig)
	case v.Width%(4*v.Heads) != 0:
		return nil, fmt.Errorf("hidden_size or embed_dim is %d for %d num_heads, want heads of a multiple of 4 elements: %w", v.Width, v.Heads, snug.ErrConfig)
	case v.Rope != nil && v.Rope.Type != "" && v.Rope.Type != string(layers.RopeAxial):
		return nil, fmt.Errorf("rope_parameters.rope_type is %.40q, want %s: %w", v.Rope.Type, layers.RopeAxial, snug.ErrConfig)
	case err != nil:
		return nil, fmt.Errorf("rope_parameters: %w", err)
	case v.Out != c.width:
		return nil, fmt.Errorf("out_hidden_size or hidden_size is %d, want the %d of hidden_size of the text: %w", v.Out, c.width, snug.ErrConfig)
	}
	c.tower = TowerConfig{Patch: v.Patch, Channels: v.Channels, Width: v.Width, Hidden: v.Hidden, Layers: v.Layers, Heads: v.Heads, Activation: v.Activation, Eps: 1e-6, QKVBias: true}
	c.rows, c.reads, c.placed = g.rows, g.unit()*v.Width, true
	c.patches = func(rows int64) int64 { return saturate.Mul(rows, int64(g.unit())) }
	c.stack = func() ([]layers.Layer, int) { return g.stack(), g.patch }
	c.open = func(w *modelFamily, file *amp.Weights, o TowerOptions) (imageTower, error) {
		return g.open(w.towers[0], file, o)
	}
	return g, nil
}

// embed returns the product of patches, a convolution whose stride is its kernel.
func (v *gridFields) embed(name string, bias bool) layers.Layer {
	e := layers.NewLinear(name, v.Channels*v.Temporal*v.Patch*v.Patch, v.Width, bias)
	e.Weight.Shape = []int{v.Width, v.Channels, v.Temporal, v.Patch, v.Patch}
	return e
}

// attention returns the attention of a block, without its norm.
func (v *gridFields) attention(at string, angles *layers.Angles) *layers.Attention {
	a := layers.NewAttention(at, v.Width, v.Heads, v.Heads)
	a.QKV, a.Out[0] = []layers.Linear{*layers.NewLinear(at+"attn.qkv", v.Width, 3*v.Width, true)}, *layers.NewLinear(at+"attn.proj", v.Width, v.Width, true)
	a.Bidirectional, a.Rope = true, angles
	return a
}

// block returns a block with a LayerNorm before each half, and an MLP without a gate, whose matrices have these names.
func (v *gridFields) block(at, up, down string, angles *layers.Angles) []layers.Layer {
	a := v.attention(at, angles)
	a.Norm = *gridNorm(at+"norm1", v.Width)
	m := layers.NewMLP(at, v.Width, v.Hidden, activations[v.Activation], false)
	first := layers.NewLinear(at+up, v.Width, v.Hidden, true)
	m.Norm, m.Bias, first.Bias = *gridNorm(at+"norm2", v.Width), first.Bias, nil
	m.In[0], m.Down[0] = *first, *layers.NewLinear(at+down, v.Hidden, v.Width, true)
	return []layers.Layer{a, m}
}

func gridNorm(name string, width int) *layers.Norm {
	n := layers.NewLayerNorm(name, width)
	n.Eps = 1e-6
	return n
}
