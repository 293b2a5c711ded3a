package transformer

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/remat"
)

// Options are the options of [New] and [Open].
type Options struct {
	// DType is the type of weights and activations: F32, F16 or BF16. 0 is the published type,
	// or F32 if the Config does not say it. Sums and statistics are always float32.
	DType snug.DType
	// Device is where the model lives and computes; nil is the CPU.
	Device *snug.Device
	// Seed determines the first values of [New].
	Seed uint64
	// Train says which parameters train, by their published names; nil: all. The others are
	// frozen: they get no gradient, and the backward pass leaves out their products.
	Train func(name string) bool
	// LossRows is the number of rows whose logits exist at a time; 0 is 128.
	LossRows int
}

// Model is a decoder-only language model that runs and trains: a chain of two stages for each
// layer, attention and perceptron, between the embedding and the head.
//
// Its memory is the weights, buffers for activations, and a float32 workspace. The buffers
// grow to the longest batch and stay; a training step that is not longer than an earlier
// one allocates nothing on the CPU. Rates of dropout in the Config are not applied.
//
// A Model is not safe for concurrent use.
type Model struct {
	config  Config
	options Options
	dev     *snug.Device
	dtype   snug.DType

	params      []Param
	index       map[string]*Param
	free        []func() error
	weightBytes int64

	table     *Param // embedding
	positions *Param // nil without learned positions
	last      norm
	head      *Param // the table when it is tied

	chain  *remat.Chain[*tensor, *saved]
	runner *remat.Runner[*tensor, *saved]
	first  int // the first stage whose input needs a gradient

	pool     *pool
	ws       scratch
	discard  scratch   // takes the gradient of a frozen half of a pair
	ropes    []*angles // of all layers, and of layers with a window if they have another one
	ones     snug.View
	plusOne  snug.View // 1+w of the norm at hand
	loss     fused.CrossEntropy
	lossOf   func(*tensor) (*tensor, error)
	batch    batch
	backward call
	ops      ops
	sets     []*saved // freed ones
}

// New returns a model with fresh weights: normal numbers of Config.InitStd, ones in norms and
// zeros in biases, as transformers has them before training. The Config is copied.
//
// The error wraps [snug.ErrConfig] for a Config that is not valid or not supported (a cap of
// logits, as in gemma2, and multimodal models are not yet), [snug.ErrDType], [snug.ErrDevice] and
// [snug.ErrNoMemory].
func New(config *Config, o Options) (*Model, error) {
	m, err := newModel(config, o)
	if err != nil {
		return nil, fmt.Errorf("transformer: New: %w", err)
	}
	if err := m.firstValues(o.Seed); err != nil {
		return nil, fmt.Errorf("transformer: New: %w", errors.Join(err, m.Close()))
	}
	return m, nil
}

// Open reads a model from a published folder: config.json with model.safetensors, or with
// shards and their index. Weights are converted to Options.DType while they are read.
//
// Errors are those of [ReadConfig], [amp.OpenWeights], [Config.Check] and [New].
func Open(dir string, o Options) (*Model, error) {
	m, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("transformer: Open: %w", err)
	}
	return m, nil
}

func open(dir string, o Options) (*Model, error) {
	text, err := readConfigFile(dir)
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configName, err)
	}
	m, err := newModel(config, o)
	if err != nil {
		return nil, err
	}
	if err := m.load(dir); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func newModel(config *Config, o Options) (m *Model, err error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if err := config.supported(); err != nil {
		return nil, err
	}
	m = &Model{config: *config, options: o, dev: o.Device, dtype: cmp.Or(o.DType, config.DType, snug.F32)}
	if m.dev == nil {
		m.dev = snug.CPU()
	}
	if !m.dtype.IsFloat() {
		return nil, fmt.Errorf("DType is %s, want f32, f16 or bf16: %w", m.dtype, snug.ErrDType)
	}
	if o.LossRows < 0 {
		return nil, fmt.Errorf("LossRows is %d, want 0 or more: %w", o.LossRows, snug.ErrConfig)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	m.pool = newPool(m.dev)
	m.ws.dev, m.discard.dev = m.dev, m.dev
	if err := m.makeParams(); err != nil {
		return nil, err
	}
	m.loss = fused.CrossEntropy{Vocab: m.config.Vocab, Cols: m.config.Dim, Chunk: o.LossRows}
	m.lossOf = m.lossAndGradient
	for _, r := range []Rope{m.config.Rope, m.config.LocalRope} {
		if r.Kind != "" {
			m.ropes = append(m.ropes, &angles{rope: r, table: scratch{dev: m.dev}})
		}
	}
	if err := m.makeOnes(); err != nil {
		return nil, err
	}
	m.makeStages()
	costs, err := m.Costs(1, 1)
	if err != nil {
		return nil, err
	}
	keep, err := remat.KeepAll(costs)
	if err != nil {
		return nil, err
	}
	return m, m.SetPlan(keep)
}

// supported reports whether the stages compute what c describes.
func (c *Config) supported() error {
	gpt2 := c.Family == "gpt2"
	for _, f := range []struct {
		name string
		bad  bool
		why  string
	}{
		{"Activation", c.Gated && c.Activation == GELU, fmt.Sprintf("a gate by %q is not supported: want %q or %q", c.Activation, SiLU, GELUTanh)},
		{"Activation", !c.Gated && c.Activation == SiLU, fmt.Sprintf("%q without a gate is not supported", c.Activation)},
		{"LogitCap", c.LogitCap != 0, "a cap of logits, as in gemma2, is not supported yet: package fused has no cross-entropy with one"},
		{"Multimodal", c.Multimodal, "the text of a model for images is not supported yet"},
		{"PostNorms", c.PostNorms != (c.Family == "gemma2" || c.Family == "gemma3_text"), "only gemma2 and gemma3_text have norms after the halves, and both do"},
		{"NormPlusOne", gpt2 && c.NormPlusOne, "gpt2 has norms that multiply by w"},
		{"LayerNorm", c.LayerNorm != gpt2, "only gpt2 has LayerNorm, and all others have RMSNorm"},
		{"LearnedPositions", c.LearnedPositions != gpt2, "only gpt2 has learned positions, and all others have a rope"},
		{"Gated", c.Gated == gpt2, "only gpt2 has no gate"},
		{"QKNorm", gpt2 && c.QKNorm, "gpt2 has no norms of q and k"},
		{"QKVBias", gpt2 && !(c.QKVBias && c.OutBias && c.MLPBias), "all projections of gpt2 have biases"},
		{"Heads", gpt2 && (c.KVHeads != c.Heads || c.Heads*c.HeadDim != c.Dim), "the heads of gpt2 have keys of their own and divide Dim"},
	} {
		if f.bad {
			return bad(f.name, "%s", f.why)
		}
	}
	return nil
}

// Config returns what the model computes. It is a copy; do not change its lists.
func (m *Model) Config() Config { return m.config }

// Params returns the parameters in the order of the arithmetic. The list is the model's own:
// the caller may change elements, and nothing else.
func (m *Model) Params() []Param { return m.params }

// makeOnes allocates the vectors of norms that multiply by 1+w.
func (m *Model) makeOnes() error {
	if !m.config.NormPlusOne {
		return nil
	}
	n := max(m.config.Dim, m.config.HeadDim)
	host := make([]float32, n)
	for i := range host {
		host[i] = 1
	}
	low, _, err := snug.MakeView(snug.CPU(), m.dtype, n)
	if err != nil {
		return err
	}
	if err := amp.Cast(low, host); err != nil {
		return err
	}
	for _, v := range []*snug.View{&m.ones, &m.plusOne} {
		made, free, err := snug.MakeView(m.dev, m.dtype, n)
		if err != nil {
			return err
		}
		*v, m.free = made, append(m.free, free)
	}
	return snug.Copy(m.ones, low)
}

// Memory is what a model holds, in bytes.
type Memory struct {
	Weights   int64
	Buffers   int64 // for activations and their gradients, in use or not
	Peak      int64 // of Buffers, in use at one time in the last call
	Workspace int64 // of float32, angles of ropes included
}

// Memory returns what the model holds on its device.
func (m *Model) Memory() Memory {
	if m.pool == nil {
		return Memory{}
	}
	ws := m.ws.bytes() + m.discard.bytes()
	for _, r := range m.ropes {
		ws += r.table.bytes()
	}
	return Memory{Weights: m.weightBytes, Buffers: m.pool.held, Peak: m.pool.peak, Workspace: ws}
}

// Save writes config.json and the weights, in the model's type, as transformers loads them.
// Files of weights have at most maxShardBytes bytes of tensors; 0 is 5 GB. See
// [amp.SaveShards] for what a killed process leaves. The error wraps [snug.ErrConfig], with
// nothing written, when config.json cannot say what the model is, see [Config.Write].
func (m *Model) Save(dir string, maxShardBytes int64) error {
	if err := m.usable(); err != nil {
		return fmt.Errorf("transformer: Save: %w", err)
	}
	c := m.config
	c.DType = m.dtype
	if _, err := c.encode(); err != nil { // before the weights of the folder are replaced
		return fmt.Errorf("transformer: Save: %w", err)
	}
	if err := amp.SaveShards(dir, maxShardBytes, m.values(), map[string]string{"format": "pt"}); err != nil {
		return fmt.Errorf("transformer: Save: %w", err)
	}
	return c.Write(dir)
}

// usable reports whether the model was made and not closed.
func (m *Model) usable() error {
	if m.pool == nil {
		return fmt.Errorf("the model is closed, or New or Open did not make it: %w", snug.ErrConfig)
	}
	return nil
}

// Close frees the memory of a device; the model cannot be used afterwards. On the CPU the
// garbage collector frees it.
func (m *Model) Close() error {
	if m.pool == nil {
		return nil
	}
	err := errors.Join(m.pool.close(), m.ws.close(), m.discard.close())
	for _, r := range m.ropes {
		err = errors.Join(err, r.table.close())
	}
	for _, free := range m.free {
		err = errors.Join(err, free())
	}
	m.free, m.params, m.pool = nil, nil, nil
	return err
}

// attention returns the options of the attention of a layer.
func (m *Model) attention(window int, rope *angles) attention.Options {
	c, b := &m.config, &m.batch
	o := attention.Options{
		Batch: b.sequences, Heads: c.Heads, KVHeads: c.KVHeads, SeqQ: b.rows / b.sequences, Dim: c.HeadDim,
		Causal: true, Window: attention.Window{Left: window}, Scale: float32(m.scoreScale(rope)), Softcap: float32(c.ScoreCap),
	}
	if b.starts != nil {
		o.SeqQ, o.QStarts = b.rows, b.starts
	}
	return attention.SequenceMajor(o)
}

// scoreScale returns the factor of q·k. The factor a of a rope multiplies its sines and
// cosines, and so both q and k; it enters here as a², because the angles that
// [fused.Rotary] takes are plain rotations. Gradients of q and k are then right too.
func (m *Model) scoreScale(rope *angles) float64 {
	if rope == nil {
		return m.config.ScoreScale
	}
	return m.config.ScoreScale * rope.attention * rope.attention
}
