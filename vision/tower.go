package vision

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
)

// TowerOptions are the options of a [Tower].
type TowerOptions struct {
	layers.Options
	// Labels, unless nil, are the classes of a new head, which replaces that of the folder. Its first values depend on Seed.
	Labels []string
	// Train says of a parameter by its name whether it trains; nil: all do. The layers before the first that trains keep their output
	// alone, and have no backward step.
	Train func(name string) bool
	// Image, unless 0, is the side of an image in pixels, to whose patches positions are interpolated, as with interpolate_pos_encoding of
	// transformers: bicubic. 0 is the image_size of config.json, or of DINOv2 the size that the folder's processor makes of all images.
	Image int
	// over, unless nil, is the loss of rows that go on in a model of images and text.
	over layers.Loss
}

// Tower is a vision transformer, whose rows are patches of images, with a head that tells classes apart if it has Labels. Its Model
// trains and plans as every layers.Model does. With Labels the loss is the cross-entropy of the images' labels, otherwise the mean
// squared error of the rows against Sample.Y.
type Tower struct {
	Model  *layers.Model
	config TowerConfig
	own    string // what the names of the tower's tensors begin with
	family *towerFamily
	dtype  snug.DType
	loss   *layers.CrossEntropy // of the head, nil for none
	alone  bool                 // written as a tower
	text   []byte               // config.json of the folder, nil for none
	pixels []byte               // preprocessor_config.json of the folder, nil for none
	kept   []kept               // tensors of the folder that the tower does not use
}

// kept is a tensor that a folder has and Save writes again.
type kept struct {
	amp.Tensor
	v snug.View
}

// NewTower returns a tower with random values, by Options.Seed: matrices are normally distributed with a deviation of 1/√in. The error wraps
// [snug.ErrConfig] or is that of [layers.NewModel].
func NewTower(c TowerConfig, o TowerOptions) (t *Tower, err error) {
	defer fault.Named(&err, "vision: NewTower")
	if o.Labels != nil {
		c.Labels = o.Labels
	}
	c.see(o.Image)
	if t, err = newTower(c, o, "", true, nil); err != nil {
		return nil, err
	}
	keep := func(name string, v float32, shape ...int) { // what transformers loads the tower with, and nothing reads
		values := slices.Repeat([]float32{v}, c.Width)
		t.kept = append(t.kept, kept{amp.Tensor{Name: t.own + name, DType: "F32", Shape: shape}, snug.ViewOf(values)})
	}
	n := &t.family.spellings[0]
	if !t.family.norms { // of a pooled row: the identity
		keep(n.norm+".weight", 1, c.Width)
		keep(n.norm+".bias", 0, c.Width)
	}
	if n.mask != "" {
		keep(n.mask, 0, 1, c.Width)
	}
	return t, nil
}

// newTower makes a tower whose tensors have a prefix. norms says that its outputs are normalized, if those of the family are. Unless nil,
// from has the tensors, whose shapes are compared before the tower takes memory.
func newTower(c TowerConfig, o TowerOptions, prefix string, norms bool, from *origin) (*Tower, error) {
	f, err := c.check()
	if err != nil {
		return nil, err
	}
	if len(c.Labels) == 1 {
		return nil, fmt.Errorf("one class in Labels leaves nothing to tell apart, want none, or 2 or more: %w", snug.ErrConfig)
	}
	if prefix == "" && len(c.Labels) > 0 {
		prefix = f.prefix
	}
	t := &Tower{config: c, own: prefix, family: f, dtype: cmp.Or(o.DType, snug.F32), alone: len(c.Labels) == 0}
	list, loss := t.stages(o, prefix, norms)
	if from != nil {
		check := func(p *layers.Param) bool {
			err = from.check(t, p)
			return err == nil
		}
		if layers.Sequential(list).Params(check); err == nil {
			loss.Params(check)
		}
		if err != nil {
			return nil, err
		}
	}
	t.Model, err = layers.NewModel(c.Channels*c.Patch*c.Patch, loss, o.Options, list...)
	return t, err
}

// stages returns the layers of the tower, of which those that do not train are one without a backward step, and the loss.
func (t *Tower) stages(o TowerOptions, prefix string, norms bool) (list []layers.Layer, loss layers.Loss) {
	c, f := &t.config, t.family
	loss = layers.MSE{}
	if o.over != nil {
		loss = o.over
	}
	if len(c.Labels) > 0 {
		t.loss = layers.NewCrossEntropy("classifier", len(c.Labels), c.Width*len(f.means))
		t.loss.Bias = &layers.Param{Name: "classifier.bias", Shape: []int{len(c.Labels)}, Trains: true}
		loss = layers.Pooled{Loss: t.loss, Means: f.meansOf(c)}
	}
	list = f.layers(c, prefix, norms && f.norms)
	if o.Train != nil {
		list = freeze(list, loss, o.Train)
	}
	return list, loss
}

// freeze says which parameters train. The layers before the first that trains become one, without a backward step.
func freeze(list []layers.Layer, loss layers.Loss, trains func(name string) bool) []layers.Layer {
	frozen := 0
	any := false
	choose := func(w *layers.Param) bool {
		w.Trains = trains(w.Name)
		any = any || w.Trains
		return true
	}
	for _, l := range list {
		if l.Params(choose); !any {
			frozen++
		}
	}
	if frozen > 0 {
		list = append([]layers.Layer{layers.NoGrad{Layer: layers.Sequential(list[:frozen:frozen])}}, list[frozen:]...)
	}
	loss.Params(choose)
	return list
}

// layers returns the layers of a tower, whose parameters have the names of the first spelling behind a prefix.
func (f *towerFamily) layers(c *TowerConfig, prefix string, norms bool) (list []layers.Layer) {
	n := &f.spellings[0]
	norm := func(name string) *layers.Norm {
		l := layers.NewLayerNorm(name, c.Width)
		l.Eps = float32(c.Eps)
		return l
	}
	table := c.table()
	e := layers.NewPatches(prefix+n.patch, c.Channels*c.Patch*c.Patch, c.Width, table, f.class)
	if from, to := c.grid(); from != to {
		e.Resize = &conv.ResizeShape{Size: [3]int{from, from}, Out: [3]int{to, to}, Interpolation: conv.Cubic, Antialias: f.antialias}
	}
	e.Project.Weight.Name, e.Project.Weight.Shape = prefix+n.patch+".weight", []int{c.Width, c.Channels, c.Patch, c.Patch}
	e.Positions.Name = prefix + n.positions
	if e.Project.Bias.Name = prefix + n.patch + ".bias"; !f.patchBias {
		e.Project.Bias = nil
	}
	if f.class {
		shape := []int{c.Width}
		if f.batched {
			shape = []int{1, 1, c.Width}
		}
		e.Class[0].Name, e.Class[0].Shape = prefix+n.class, shape
		if n.distillation != "" {
			e.Class = append(e.Class, &layers.Param{Name: prefix + n.distillation, Shape: shape, Trains: true})
		}
	}
	if f.batched {
		e.Positions.Shape = []int{1, table, c.Width}
	}
	if c.Registers > 0 {
		e.Registers = &layers.Param{Name: prefix + n.registers, Shape: []int{1, c.Registers, c.Width}, Trains: true}
	}
	list = append(list, e)
	if n.before != "" {
		list = append(list, norm(prefix+n.before))
	}
	for i := range c.Layers {
		at := prefix + n.of(i)
		a := layers.NewAttention(at, c.Width, c.Heads, c.Heads)
		a.Bidirectional, a.Norm = true, *norm(at + n.norm1)
		for j, name := range []string{n.q, n.k, n.v} {
			a.QKV[j] = *layers.NewLinear(at+name, c.Width, c.Width, c.QKVBias)
		}
		a.Out[0] = *layers.NewLinear(at+n.out, c.Width, c.Width, true)
		m := f.mlp(c, at)
		m.Norm = *norm(at + n.norm2)
		for name, post := range map[string]*layers.Norm{n.scale1: &a.Post, n.scale2: &m.Post} {
			if name != "" {
				*post = *layers.NewLayerScale(at+name, c.Width, 1)
				post.Weight.Name = at + name
			}
		}
		list = append(list, a, m)
	}
	if norms {
		list = append(list, norm(prefix+n.norm))
	}
	return list
}

// mlp returns the MLP of a block, without its norm.
func (f *towerFamily) mlp(c *TowerConfig, at string) *layers.MLP {
	n := &f.spellings[0]
	if c.Gated {
		m := layers.NewMLP(at, c.Width, c.Hidden, layers.SiLU, true)
		m.In[0], m.In[1] = *layers.NewLinear(at+n.gated[0], c.Width, c.Hidden, true), *layers.NewLinear(at+n.gated[1], c.Width, c.Hidden, true)
		m.Down[0] = *layers.NewLinear(at+n.gated[2], c.Hidden, c.Width, true)
		return m
	}
	m := layers.NewMLP(at, c.Width, c.Hidden, activations[c.Activation], false)
	up := layers.NewLinear(at+n.up, c.Width, c.Hidden, true)
	m.Bias, up.Bias = up.Bias, nil
	m.In[0], m.Down[0] = *up, *layers.NewLinear(at+n.down, c.Hidden, c.Width, true)
	return m
}

// Close frees the memory of a device; the tower cannot be used afterwards.
func (t *Tower) Close() error {
	if t == nil {
		return nil
	}
	return t.Model.Close()
}

// Config returns what the tower computes.
func (t *Tower) Config() TowerConfig {
	if t == nil {
		return TowerConfig{}
	}
	return t.config
}

func (t *Tower) usable() error {
	if t == nil || t.Model == nil || t.family == nil || len(t.Model.Params()) == 0 {
		return fmt.Errorf("a Tower that NewTower or OpenTower did not make, or is closed: %w", snug.ErrConfig)
	}
	return nil
}
