package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// Model is a decoder-only language model that runs and trains: a chain of two stages for each
// layer, attention and MLP, or of one with Config.Parallel, between the embedding and the head.
//
// A Model holds the weights, buffers for activations, and a float32 workspace, see [Memory]. The buffers grow to the
// longest batch and stay. On the CPU a training step that is not longer than an earlier one allocates nothing. The
// rates of dropout in the Config are not applied.
//
// A layer with experts groups the rows of a batch by the experts that its router chooses, without padding. It keeps its
// output and the router's logits. In a step it also holds the inner values of one expert at a time, in buffers for the
// largest group so far, and on the host 12 bytes for each row and chosen expert. An expert that no row chooses is not
// read, in Options.Pages either, and its gradients are 0.
//
// A Model is not safe for concurrent use.
type Model struct {
	config     Config
	whole      string          // model_type of the folder, if it has names and tensors of a multimodal model
	coded      codes           // the matrices that the folder has quantized
	storedType qlora.Type      // their form if they stay in it, else 0
	stored     map[string]bool // and they, else none
	options    Options
	dev        *snug.Device
	dtype      snug.DType

	params          []Param
	index           map[string]*Param
	free            []func() error
	correctionBytes int64 // of Experts.Corrected
	weightBytes     int64
	pagedBytes      int64
	staging         []func() error // of memory that loading needs

	layers       []*linear // matrices of the layers, in the order of the arithmetic
	matrices     map[*Param]*linear
	tile         *qlora.Linear // owner of the tile of all products by quantized matrices, nil if there are none
	dense        *qlora.Dense  // owner of the tile of matrices in floats that have magnitudes, nil if there are none
	adapters     qlora.AdapterOptions
	byModule     map[string]*adapter        // by the name of the matrix
	adapterNames layout                     // of the modules, as PEFT names them
	vera         *qlora.VeRA                // what adapters of VeRA share, else nil
	veraLayers   map[string]qlora.VeRALayer // loaded, by PEFT's names of modules
	shared       map[string]bool            // parameters of the base that are those of Options.Share
	saved        map[string]bool            // parameters of the base that train beside adapters
	tables       tables                     // the embedding and the head of a folder of adapters
	fresh        bool                       // New made the values, not Open
	folder       *folder                    // with Options.SaveOnly or Stream, else nil
	lost         amp.LostUpdates            // by the last Save

	table layers.Embedding
	last  layers.Norm
	head  *Param // the table when it is tied

	stages []*stage
	chain  *remat.Chain[*tensor, saved]
	runner *remat.Runner[*tensor, saved]
	plan   remat.Plan
	fits   int // the rows of a batch that memory is reserved for
	first  int // the first stage whose input needs a gradient

	pass       *layers.Pass
	holders    holders
	added      []Embeddings     // of the running batch
	turned     bool             // the backward pass of a batch has begun
	lastTokens []int32          // of ComputeNext
	states     []snug.View      // of a layer with a Mixer, of the texts of a pass
	input      tensor           // of the chain: nothing, since its first stage embeds the tokens
	keeps      []keyValues      // of layers whose keys and values others read
	ropes      []*layers.Angles // of all layers, and of layers with a window if they have another one
	loss       fused.CrossEntropy
	lossOf     func(*tensor) (*tensor, error)
	probsOf    func(*tensor) (*tensor, error)
	distillOf  func(*tensor) (*tensor, error)
	distill    distilling // of BackpropDistill and Divergence
	deriving   bool       // derive of BackpropLogProbs runs
	host       []float32  // log-probabilities of a model on a device, and their derivatives
	counted    counted
	backward   call

	balance layers.Balance

	unusedCheckpoints []*checkpoint
	mover             *offload.Mover // copies checkpoints; nil on the CPU
	leaving           []leaving      // pieces of checkpoints that are copied from the device, the oldest first
}

// codes are matrices that a folder has quantized.
type codes struct {
	form   qlora.Type
	block  [2]int // see Config.StoredBlock
	groups qlora.Groups
	names  map[string]bool
}

// New returns a model with the initial values that transformers has before training: normally distributed with the
// standard deviation Config.InitStd in matrices, ones in norms and zeros in biases. It copies the Config. See
// [Model.FirstValues] for master weights.
//
// Of a Config with Whole it makes the text model alone; [Model.Config] then returns the Config of the text model.
//
// The error wraps [snug.ErrConfig] for a Config that is not valid or not supported (such as a SiLU
// without a gate), [snug.ErrDType], [snug.ErrDevice] and [snug.ErrNoMemory].
func New(config *Config, o Options) (_ *Model, err error) {
	defer fault.Named(&err, "transformer: New")
	if o.SaveOnly || o.Stream != 0 || o.Share != nil || o.Decode {
		return nil, fmt.Errorf("the options SaveOnly, Stream, Share and Decode are for Open: %w", snug.ErrConfig)
	}
	m, err := newModel(config, o, nil)
	if err != nil {
		return nil, err
	}
	return m.complete(m.firstValues)
}

// Open reads a model from a published folder: config.json with model.safetensors, or with
// shards and their index. Weights are converted to Options.DType while they are read.
//
// Of the path of a GGUF file, which llama.cpp and Ollama run, it reads the model of that file, or of all files of a model that is split.
// Matrices of the layers that are in blocks of few bits there stay so, see [qlora.NewBlocks]: they are frozen, on the CPU, and take what
// they take in the file. The others have the model's type. See [Config.GGUF] for what such a file has.
//
// Of a model for images and text it reads the text model alone, and passes over the tensors for images. Whatever the names in
// the folder, the parameters have the names of gemma3_text, model.*, and [Model.Save] writes a folder of the text
// model, Gemma3ForCausalLM.
//
// Errors are the errors of [ReadConfig], [amp.OpenWeights], [Config.Check] and [New].
func Open(dir string, o Options) (_ *Model, err error) {
	defer fault.Named(&err, "transformer: Open")
	return open(dir, o)
}

func open(dir string, o Options) (_ *Model, err error) {
	if o.SaveOnly && len(o.Before) > 0 {
		return openAfter(dir, o)
	}
	if gguf.IsFile(dir) {
		return openGGUF(dir, o)
	}
	config, err := readConfig(dir, configName)
	if err != nil {
		return nil, err
	}
	if err := config.supported(); err != nil { // before the weights, which fit no other model
		return nil, err
	}
	stored, err := config.storedIn(dir)
	if err != nil {
		return nil, err
	}
	m, err := newModel(config, o, stored)
	if err != nil {
		return nil, err
	}
	return m.complete(func() error {
		return m.load(func() (source, error) { return m.openHubFolder(dir) })
	})
}

// complete sets the values of the parameters, and closes the model after an error.
func (m *Model) complete(values func() error) (*Model, error) {
	err := errors.Join(values(), m.freeStaging())
	if modules := m.modulesIn(); err == nil && len(modules) > 0 {
		err = qlora.LoadModules(m.options.AdapterDir, modules...)
	}
	for _, step := range []func() error{m.foldTables, m.startAdapters, m.makeProducts, m.makeMagnitudes, m.countHeld} {
		if err == nil {
			err = step()
		}
	}
	if err == nil && len(m.options.Remat.Ops) > 0 {
		err = m.SetPlan(m.options.Remat)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func newModel(config *Config, o Options, stored map[string]bool) (*Model, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if err := config.supported(); err != nil {
		return nil, err
	}
	m := &Model{config: *config, whole: config.Whole, options: o, dev: o.Device, dtype: cmp.Or(o.DType, config.DType, snug.F32)}
	m.config.Whole = ""
	m.config.setFloats()
	m.dev = cmp.Or(m.dev, snug.CPU())
	if err := m.checkShare(); err != nil {
		return nil, err
	}
	if len(stored) > 0 {
		m.coded = codes{config.Stored, config.StoredBlock, config.StoredGroups, stored}
		if m.options.keeps(config.Stored) {
			if storedForms[config.Stored].host && !m.dev.IsCPU() {
				return nil, fmt.Errorf("matrices in groups (GPTQ, AWQ) are for the CPU, and the model is for %s: take Options.Decode or a Base (-full, -base): %w", m.dev.Name(), snug.ErrDevice)
			}
			m.stored, m.storedType = map[string]bool{}, config.Stored
			for _, t := range m.config.tensors(m.config.layout()) {
				if stored[t.Name] && m.config.isMatrix(t) {
					m.stored[t.Name] = true // a router or a head is decoded
				}
			}
		}
	}
	if !m.dtype.IsFloat() {
		return nil, fmt.Errorf("DType is %s, want f32, f16 or bf16: %w", m.dtype, snug.ErrDType)
	}
	if err := m.checkBase(); err != nil {
		return nil, err
	}
	if err := m.checkFolder(); err != nil {
		return nil, err
	}
	if o.LossRows < 0 || o.LossClasses < 0 {
		return nil, fmt.Errorf("LossRows is %d and LossClasses %d, want 0 or more: %w", o.LossRows, o.LossClasses, snug.ErrConfig)
	}
	if o.Tiles < 0 || o.Tiles > maxCount {
		return nil, fmt.Errorf("the option Tiles is %d, want 0 to %d: %w", o.Tiles, maxCount, snug.ErrConfig)
	}
	if !(o.Smoothing >= 0 && o.Smoothing <= 1) || !(o.ZLoss >= 0 && o.ZLoss <= math.MaxFloat32) {
		return nil, fmt.Errorf("the option Smoothing is %v and ZLoss %v, want 0 to 1 and a finite number of 0 or more: %w", o.Smoothing, o.ZLoss, snug.ErrConfig)
	}
	if o.PlainAttention && (!m.dev.IsCPU() || config.ScoreCap != 0 || config.latent()) {
		return nil, fmt.Errorf("the option PlainAttention is for the CPU, and for models without a cap of scores and without latent attention: %w", snug.ErrConfig)
	}
	err := cmp.Or(m.checkDevice(), m.readTables())
	if err == nil {
		err = m.make()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// make allocates the parameters and makes the stages.
func (m *Model) make() error {
	pass, err := layers.NewPass(layers.Options{DType: m.dtype, Device: m.dev, Seed: m.options.Seed, Monitor: m.options.Monitor, Tiles: m.options.Tiles})
	if err != nil {
		return err
	}
	m.pass = pass
	if err := m.makeParams(); err != nil {
		return err
	}
	m.loss = fused.CrossEntropy{Vocab: m.config.Vocab, Cols: m.config.Dim, Chunk: m.options.LossRows, Tile: m.options.LossClasses, Cap: float32(m.config.LogitCap)}
	if m.loss.Tile == 0 && !m.dev.IsCPU() {
		m.loss.Tile = m.config.Vocab
	}
	if m.loss.Chunk == 0 && !m.dev.IsCPU() {
		m.loss.Chunk = m.loss.DeviceChunk()
	}
	m.lossOf, m.probsOf, m.distillOf = m.lossAndGradient, m.probsAndGradient, m.distillAndGradient
	for i, r := range []Rope{m.config.Rope, m.config.LocalRope} {
		if r.Kind != "" {
			a := layers.NewAngles(r, m.dev)
			if head := m.config.HeadDim; r.Dim < head || i == 0 && r.Dim < m.config.Full.HeadDim {
				a.Scaled()
			}
			if m.config.latent() {
				a.Factors()
			}
			m.ropes = append(m.ropes, a)
		}
	}
	if n := m.config.ones(); n > 0 {
		if err := m.pass.GrowOnes(n); err != nil {
			return err
		}
	}
	if n := m.config.zeros(); n > 0 {
		if err := m.pass.GrowZeros(n); err != nil {
			return err
		}
	}
	if m.config.Sinks {
		if err := m.pass.GrowSinks(m.config.Heads); err != nil {
			return err
		}
	}
	if err := m.makeMover(); err != nil {
		return err
	}
	m.makeStages()
	m.makeHolders()
	return m.SetPlan(remat.Plan{})
}

// ones returns how many ones the norms take.
func (c *Config) ones() (n int) {
	if c.NormPlusOne {
		n = max(c.Dim, c.HeadDim)
	}
	if c.ValueNorm || c.QKNorm && c.names().perHead {
		n = max(n, c.widestHead())
	}
	return n
}

// zeros returns how many zeros the norms take, and elements of a gradient that nobody reads.
func (c *Config) zeros() int {
	switch {
	case !c.NoNormBias:
		return 0
	case c.QKNorm && c.names().perHead:
		return max(c.Dim, c.Heads*c.HeadDim)
	}
	return c.Dim
}

// Config returns a copy of the model's Config. Do not change its lists.
func (m *Model) Config() Config { return m.config }

// Params returns the parameters in the order in which the model uses them. The list belongs to the model: the caller
// may change the elements of a Value, and nothing else.
func (m *Model) Params() []Param { return m.params }

// Trainable yields the parameters that train, as package train takes them.
func (m *Model) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, p := range m.params {
			if p.Trains && !yield(p.Name, p.Value) {
				return
			}
		}
	}
}

// Matrix returns the rows and columns, as they lie in memory, of a parameter that is a matrix of the layers or of an
// adapter. They are 0 for other names, and for embeddings, the head and vectors. Package train gives them to optimizers
// that project gradients.
func (m *Model) Matrix(name string) (rows, cols int) {
	p := m.index[name]
	if p == nil || len(p.Shape) != 2 || p == m.table.Table || p == m.head || p == m.table.Positions || m.config.isPerLayer(strings.TrimPrefix(name, m.config.layout().body)) || m.config.isHeadNorm(name) {
		return 0, 0
	}
	return p.Shape[0], p.Shape[1]
}

// Shape returns the dimensions of a parameter as it lies in memory, nil for unknown names.
func (m *Model) Shape(name string) []int {
	if p := m.index[name]; p != nil {
		return p.Shape
	}
	return nil
}

// Block returns how many elements of a parameter share a second moment of quant8.AdamMini: those of a head of q or k, of
// a bias one, of any other vector all, and otherwise a row as it lies in memory. One matrix for q, k and v has rows too.
// These are the blocks of the authors' package adam-mini 1.1.1, except for a head, which has HeadDim·Dim elements here and
// Dim·Dim/Heads there: other numbers unless HeadDim is Dim/Heads. It is 0 for names that are not there. Package train
// asks for it.
func (m *Model) Block(name string) (elements int) {
	p := m.index[name]
	switch {
	case p == nil || len(p.Shape) == 0:
		return 0
	case len(p.Shape) == 1 && strings.HasSuffix(name, ".bias"):
		return 1
	case !m.config.packed() && endsIn(name, []string{m.config.names().q + ".weight", m.config.names().k + ".weight"}):
		return m.config.of(m.config.layerOf(name)).HeadDim * p.Shape[1]
	}
	return p.Shape[len(p.Shape)-1]
}

// Weight returns the weight of a batch in a mean over several, [Batch.Weight].
func (m *Model) Weight(b Batch) float64 { return b.Weight() }

// Memory is what a model holds, in bytes.
type Memory struct {
	Weights   int64 // parameters, adapters included, without Paged
	Paged     int64 // matrices in Options.Pages
	Buffers   int64 // buffers of activations and their gradients, in use or not
	Peak      int64 // most bytes of Buffers in use at one time in the last call
	Workspace int64 // float32 workspace, angles of ropes, decoded tiles of matrices, vectors 1+w of norms, sinks, and the masks of Batch.Spans
}

// Memory returns what the model holds on its device.
func (m *Model) Memory() Memory {
	if m.pass == nil {
		return Memory{}
	}
	ws := m.pass.WorkspaceBytes() + m.balance.Bytes() + m.tile.Bytes() + m.dense.Bytes()
	for _, r := range m.ropes {
		ws += r.Bytes()
	}
	for _, s := range m.keeps {
		ws += s.Bytes()
	}
	_, expanded := m.vera.Bytes()
	ws += expanded + m.correctionBytes
	return Memory{Weights: m.weightBytes, Paged: m.pagedBytes, Buffers: m.pass.Held(), Peak: m.pass.Peak(), Workspace: ws}
}

// countHeld tells the monitor the bytes of weights and workspace, and checks its limit.
func (m *Model) countHeld() error {
	o := m.options.Monitor
	if o == nil {
		return nil
	}
	m.holders.holdWeights(m)
	m.holders.workspace.Set(m.Memory().Workspace)
	return o.Check()
}

// usable returns an error unless New or Open made the model to compute and it is not closed.
func (m *Model) usable() error {
	if err := m.opened(); err != nil {
		return err
	}
	if m.options.SaveOnly {
		return fmt.Errorf("the model was opened with SaveOnly, and has no matrices to compute with: %w", snug.ErrConfig)
	}
	return nil
}

// opened is usable for what a model with SaveOnly does, too.
func (m *Model) opened() error {
	if m.pass == nil {
		return fmt.Errorf("the model is closed, or New or Open did not make it: %w", snug.ErrConfig)
	}
	if m.deriving {
		return fmt.Errorf("the model waits for derive, which calls it: %w", snug.ErrConfig)
	}
	return nil
}

// Close frees the memory of a device; the model cannot be used afterwards. On the CPU the
// garbage collector frees it.
func (m *Model) Close() error {
	if m.pass == nil {
		return nil
	}
	err := errors.Join(m.pass.Close(), m.balance.Close(), m.folder.close())
	for _, r := range m.ropes {
		err = errors.Join(err, r.Close())
	}
	for _, s := range m.keeps {
		err = errors.Join(err, s.Close())
	}
	for _, free := range m.free {
		err = errors.Join(err, free())
	}
	err = errors.Join(err, m.freeStaging())
	m.free, m.params, m.pass = nil, nil, nil
	m.holders.close()
	return err
}
