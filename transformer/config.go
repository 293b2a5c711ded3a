package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/qlora"
)

// Config is the arithmetic of a decoder-only model. A layer is
//
//	z = x + post(out(attention(rope(norm(q·h)), rope(norm(k·h)), v·h)))   h = norm(x)
//	y = z + post(down(act(gate·g) * up·g))                                g = norm(z)
//
// where some families only have post, the norms of q and k, the rope and the gate.
// The logits are head·norm(y), with y of the last layer.
type Config struct {
	// Family is the model_type of the Python package transformers, such as [Llama], or it is [Custom]. It decides the names
	// of parameters. The error for one that is not known lists all.
	Family string
	// Whole, unless empty, is the model_type of a model for images and text, such as gemma3 or llava, whose text_config this is. Its
	// folder has the parameters of the text model under other names, and also parameters for images. A [Model] of it is
	// the text model, with the names of the Family.
	Whole string

	Vocab   int // rows of the embedding
	Dim     int // width of the model
	Hidden  int // width of the MLP
	Layers  int
	Heads   int // heads of queries
	KVHeads int // heads of keys and of values, a divisor of Heads
	HeadDim int // elements of a head; Heads·HeadDim need not be Dim
	Context int // tokens of the longest sequence that the model is made for

	LayerNorm   bool    // norms are LayerNorms with a bias, not RMSNorms
	NoNormBias  bool    // with LayerNorm: norms have no bias
	NormEps     float64 // epsilon, added to the mean square or the variance
	NormPlusOne bool    // norms multiply by 1+w, not by w
	PostNorms   bool    // a norm follows each half, before its output enters the residual stream
	Parallel    bool    // both halves of a layer read its input: y = x + attention(h) + mlp(g) with g = norm(x)
	OneNorm     bool    // with Parallel: g is h, and there is no other norm
	QKNorm      bool    // an RMSNorm of HeadDim weights normalizes each head of q and k before the rope; in OLMo 2 all heads of a row together, and in Command R+ a LayerNorm without a bias whose weights are each head's own

	ValueNorm   bool // an RMSNorm without weights normalizes each head of v; wants QKNorm
	LayerScalar bool // a number that does not train multiplies the output of each layer
	// Full has what layers without a window have in place of KVHeads and HeadDim, for families with layers of two kinds.
	Full FullAttention
	// SharedKV is how many of the last layers have no keys and values of their own: attention takes those of the last layer before them
	// that has a window if they have one, and none if they have none. WideShared says that the MLP of these layers has twice the width.
	SharedKV   int
	WideShared bool
	// PerLayer, unless 0, is how many elements each layer takes from a table of its own, of PerLayerVocab tokens, see [layers.PerLayer].
	PerLayer, PerLayerVocab int
	// AltUp describes rows of several streams, of which each layer computes one; the zero AltUp is of rows of one.
	AltUp AltUp
	// Sparsity, unless nil, has for each layer the share of the gate of its MLP that becomes 0, see [layers.MLP]; with AltUp.
	Sparsity []float64

	QKVBias bool // the projections to q, k and v have biases
	OutBias bool // the projection of attention's output has a bias
	MLPBias bool // the projections of the MLP have biases
	UpBias  bool // the up projection of an MLP without a gate has a bias, whatever MLPBias says

	// PackedQKV says that one matrix makes q, k and v, side by side. GPT-2 always has one. That of GPT-NeoX has q, k and v of a head, and
	// then those of the next.
	PackedQKV bool

	Activation Activation
	Gated      bool // act(gate)·up, not act(up)

	// Latent describes multi-head latent attention, in place of projections to q, k and v.
	Latent Latent

	// Experts describes the experts, for the layers that have experts in place of the MLP.
	Experts Experts
	// Sinks says that each head of attention has a sink: a learned logit that enters the softmax like the score of one
	// more key, but has no value. The parameter is self_attn.sinks.
	Sinks bool

	// LearnedPositions says that a table of Context positions is added to the embedding. Then
	// there is no rope.
	LearnedPositions bool
	Rope             Rope
	// NoRope, unless nil, says for each layer whether it turns neither queries nor keys.
	NoRope []bool
	// LocalRope is the rope of layers with a window, if they have another one; its Kind is
	// empty if they do not.
	LocalRope Rope
	// Windows has for each layer the number of keys that a query sees, up to its own position, which is included; 0 is
	// all of them.
	Windows []int
	// Mixers, unless nil, says for each layer what it has in place of attention, such as [ShortConv]; empty: it has attention. The window of
	// a layer with a Mixer is 0.
	Mixers   []Mixer
	ConvTaps int  // rows that a short convolution sees, its own included; 0 without one
	ConvBias bool // the convolution and its projections have biases
	Mamba    Mamba
	// Delta are the sizes of the layers with a [DeltaNet].
	Delta Delta
	// OutputGate says that the matrix of q also makes a gate for each element of attention's output, which is multiplied by its sigmoid
	// before the projection, see [layers.Attention].
	OutputGate bool

	ScoreScale float64 // factor of q·k, before ScoreCap; above 0, and 1/√HeadDim in most families
	ScoreCap   float64 // c of the cap c·tanh(s/c) of scores; 0 for none
	LogitCap   float64 // c of the cap c·tanh(s/c) of logits; 0 for none
	// EmbeddingScale multiplies the embedding; 1 in most families, and not 0. As in transformers it is first rounded to
	// the type of the weights.
	EmbeddingScale float64
	ResidualScale  float64 // factor of the output of each half, without PostNorms and experts; 0 for none
	Factors        Factors
	LogitScale     float64 // factor of the logits, before LogitCap; 0 for none
	Tied           bool    // the head is the embedding

	// Rates of dropout in training, as published.
	AttentionDropout float64 // dropout of attention's weights
	ResidualDropout  float64 // dropout of the output of each half
	EmbeddingDropout float64 // dropout of the embedding

	// Stored is the form in which the folder has the matrices of the layers: FP8 or FP8E5M2 for the quant_method "fp8", FP8 for
	// compressed-tensors and fbgemm_fp8, NF4, FP4 or INT8 for bitsandbytes, Grouped for gptq, awq and the integers of compressed-tensors, MXFP4 for the experts of gpt_oss, GGUF for a file of llama.cpp's, and 0
	// for floats. [New] ignores Stored.
	Stored qlora.Type
	// Floats are the matrices of the layers that such a folder has in floats, by their names in [Config.Tensors].
	// [ReadConfig] takes them from the list in config.json of modules that were not converted, and for MXFP4 they are all
	// but the experts; [Config.FloatsIn] looks into the files. [Config.Plan] uses them, and [Open] looks into the files
	// itself.
	Floats []string
	// StoredBits is the mean bits of an element of the matrices in Stored, with their scales, where they are others than those that
	// package qlora makes: GGUF, NF4 and FP4 without double quantization, and Grouped. Otherwise it is 0.
	StoredBits float64
	// StoredBlock is how many rows and columns of an 8-bit float in Stored share a scale, where config.json says it, and otherwise 0.
	StoredBlock [2]int
	// StoredGroups says how codes lie in the files, if Stored is Grouped.
	StoredGroups qlora.Groups

	InitStd float64    // standard deviation of initial weights
	DType   snug.DType // type of the published weights, 0 if the file does not say it
	BOS     int        // token that begins a text, -1 for none
	EOS     []int      // tokens that end a text
	Pad     int        // token that fills a batch, -1 for none

	// Ignored are the fields of config.json that do not change what the model computes, sorted: those of inference and of
	// bookkeeping, and Unread.
	Ignored []string
	// Unread are the fields among Ignored that transformers does not read for the family, and that snug does not know: names
	// of other families, of other tools, or misspelled ones. A program shows them, because their author may have expected an
	// effect that they do not have. Fields that switch something off, such as false, are left out.
	Unread []string

	joined bool // the folder that Open read has one tensor for all experts of a layer, where the family's may have separate ones
}

// Experts describes a mixture of experts (Shazeer et al., "Outrageously Large Neural Networks" (2017)). A layer with
// experts has many MLPs in place of one, and for each token a router chooses a few of them. The layer computes
//
//	y = z + Σ weight[e]·down[e](act(gate[e]·g)·up[e]·g)   over the experts e that the router chooses for g = norm(z)
//
// The zero Experts says that no layer has experts.
type Experts struct {
	Count  int // number of experts of a layer, 0 for none
	Chosen int // number of experts that the router chooses for a token
	Hidden int // width of an expert: the number of outputs of its gate and up
	// Dense has an element for each layer: true for a layer with an MLP of width Config.Hidden in place of experts. nil
	// says that every layer has experts.
	Dense []bool

	// The weight of an expert is the softmax of the router's logits over all experts, unless the next two fields change
	// that.
	Normalize bool // weights are divided by their sum over the chosen experts: the softmax over the chosen logits
	Sigmoid   bool // weights are the sigmoid of the logit, in place of the softmax

	Scale float64 // multiplies the weights; 0 is 1
	// Groups, ChosenGroups and GroupTop say from which groups of experts a token gets its own, see [fused.Router]; 0 for no groups.
	Groups, ChosenGroups, GroupTop int
	// Corrected says that the choice adds a number of each expert to its score: a parameter of float32 that does not train.
	Corrected bool

	Shared     int  // width of an expert that all tokens have, 0 for none
	SharedGate bool // its output is multiplied by the sigmoid of a logit

	// Beside says that the layer has an MLP of width Config.Hidden too: y = z + post(post₁(mlp(z)) + post₂(experts(z))), see [layers.Beside].
	// The router reads rows of its own, RMSNorm(z)/√Dim with a parameter that multiplies it, and a parameter multiplies the weights.
	Beside bool
	// WeighInput says that the weight of an expert multiplies the rows that it reads, in place of its output.
	WeighInput bool

	Bias    bool // the router and all matrices of experts have biases
	Clamped bool // gpt-oss' activation: g·sigmoid(Alpha·g)·(u+1), with g = min(gate, Limit) and u = up clamped to ±Limit
	Limit   float64
	Alpha   float64

	// RouterLoss is the factor of the loss that balances the load of experts, see [fused.AuxLoss]. Backprop adds the
	// product to its loss; with 0 there is no such loss. [ReadConfig] takes it from router_aux_loss_coef if
	// output_router_logits is true, as transformers does.
	RouterLoss float64
}

// AltUp describes the streams of a model, see [layers.AltUp]. Its layers have PerLayer and PostNorms.
type AltUp struct {
	Streams, Active int // number of streams, and the one that a layer computes
	Rank            int // of the Laurel of a layer
}

// FullAttention describes the layers without a window where these differ from the layers with one. The zero FullAttention says that they
// do not.
type FullAttention struct {
	KVHeads, HeadDim int  // in place of those of the Config
	KeysAreValues    bool // v is k before its norm and the rope: no matrix makes v
}

// Factors multiply parts of a layer, as in Falcon-H1; 0 stands for 1.
type Factors struct {
	Attention, MLP float64 // the output of the half
	Gate           float64 // the gate of the MLP, before the activation
}

// factor returns the product of factors of which 0 stands for 1, 0 for 1.
func factor(list ...float64) float64 {
	product := 1.0
	for _, f := range list {
		if f != 0 {
			product *= f
		}
	}
	if product == 1 {
		return 0
	}
	return product
}

// of returns the Config with the KVHeads, the HeadDim and the Hidden of a layer.
func (c *Config) of(layer int) *Config {
	if c.Full == (FullAttention{}) && !c.WideShared {
		return c
	}
	own := *c
	if c.WideShared && c.reads(layer) {
		own.Hidden *= 2
	}
	if c.Full == (FullAttention{}) {
		return &own
	}
	if c.Windows[layer] != 0 {
		own.Full = FullAttention{}
	} else {
		own.KVHeads, own.HeadDim = c.Full.KVHeads, c.Full.HeadDim
	}
	return &own
}

// reads reports whether a layer takes the keys and values of another.
func (c *Config) reads(layer int) bool { return layer >= c.Layers-c.SharedKV }

// keysOf returns the layer whose keys and values a layer takes: itself, or the last one of its kind that has some.
func (c *Config) keysOf(layer int) int {
	if !c.reads(layer) {
		return layer
	}
	for i := c.Layers - c.SharedKV - 1; i >= 0; i-- {
		if (c.Windows[i] == 0) == (c.Windows[layer] == 0) {
			return i
		}
	}
	return -1
}

// widestHidden returns the width of the widest MLP.
func (c *Config) widestHidden() int {
	if c.WideShared {
		return 2 * c.Hidden
	}
	return c.Hidden
}

// keys returns the elements of a row of keys of a layer, 0 for one that takes those of another.
func (c *Config) keys(layer int) int {
	if c.reads(layer) {
		return 0
	}
	if c.Full != (FullAttention{}) && c.Windows[layer] == 0 {
		return c.Full.KVHeads * c.Full.HeadDim
	}
	return c.KVHeads * c.HeadDim
}

// queryRows returns the outputs of the matrix of queries, which may make a gate, too.
func (c *Config) queryRows() int {
	if c.OutputGate {
		return 2 * c.Heads * c.widestHead()
	}
	return c.Heads * c.widestHead()
}

// widestHead returns the HeadDim of the layers that have the largest.
func (c *Config) widestHead() int { return max(c.HeadDim, c.Full.HeadDim) }

// widestKeys returns the elements of a row of keys of the layers that have the most.
func (c *Config) widestKeys() int { return max(c.KVHeads*c.HeadDim, c.Full.KVHeads*c.Full.HeadDim) }

// hasExperts reports whether a layer has experts in place of the MLP.
func (c *Config) hasExperts(layer int) bool {
	return c.Experts.Count > 0 && (c.Experts.Dense == nil || !c.Experts.Dense[layer])
}

// halves returns how many stages a layer has.
func (c *Config) halves() int {
	if c.Parallel || c.AltUp.Streams > 0 {
		return 1
	}
	return 2
}

// packed reports whether one matrix makes q, k and v.
func (c *Config) packed() bool { return c.PackedQKV || c.names().q == "" }

// biased reports whether a bias is added by an operation of its own.
func (c *Config) biased() bool {
	return c.ConvBias || c.Mamba.InBias || c.Mamba.OutBias || c.QKVBias || c.OutBias || c.MLPBias || c.Experts.Bias
}

// Activation is the function between the matrices of an MLP.
type Activation string

const (
	SiLU     Activation = "silu"      // x·sigmoid(x)
	GELUTanh Activation = "gelu_tanh" // GELU in the approximation by tanh
	GELU     Activation = "gelu"      // x·Φ(x)
	ReLU2    Activation = "relu2"     // max(x, 0)², without a gate
)

// configName is the name of the file in a folder.
const configName = "config.json"

const (
	maxCount  = 1 << 28 // largest value of a field that counts
	maxLayers = 1 << 12

	maxExperts    = 1 << 12 // of a layer
	maxAllExperts = 1 << 18 // of all layers
)

// ReadConfig reads a config.json of at most 16 MiB from the path of the file or of its folder, or the metadata of a GGUF file. What these
// say and a config.json of the family does not is an error, unless it changes nothing. It reads both spellings of config.json: the one of
// transformers 5 (rope_parameters, dtype), and the one of older folders (rope_theta, rope_scaling, torch_dtype). A
// missing field has the default of transformers for the family.
//
// A field that transformers does not read for the family cannot change what the model computes: it is listed in
// Config.Ignored and Config.Unread.
//
// The error wraps [snug.ErrCorrupt] when the file is no JSON object, and [snug.ErrConfig] when transformers reads a field
// whose value is not supported; it names the field. Errors of the operating system are wrapped as they are.
func ReadConfig(path string) (_ *Config, err error) {
	defer fault.Named(&err, "transformer: ReadConfig")
	return readConfig(path, path)
}

// readConfig is ReadConfig for a file that errors call name.
func readConfig(path, name string) (*Config, error) {
	if gguf.IsFile(path) {
		return readGGUFConfig(path)
	}
	text, err := readConfigFile(path)
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func readConfigFile(path string) (text []byte, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return files.ReadInput(path, files.Description)
	}
	text, err = files.ReadInput(filepath.Join(path, configName), files.Description)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s has no %s, which says what its weights are: %w", filepath.Clean(path), configName, err)
	}
	return text, err
}

// Validate returns an error unless c describes a model: counts from 1 to 2^28, a number of heads that KVHeads divides,
// a window for each layer, positive scales, and a known family. The error wraps [snug.ErrConfig] and names the field.
func (c *Config) Validate() error {
	if err := c.check(); err != nil {
		return fmt.Errorf("transformer: %w", err)
	}
	return nil
}

func (c *Config) check() error {
	if c == nil {
		return fmt.Errorf("the Config is nil: %w", snug.ErrConfig)
	}
	if c.family() == nil {
		return bad("Family", "%q, want one of %q or %q", c.Family, familyNames(), Custom)
	}
	for _, n := range []struct {
		name  string
		value int
		most  int
	}{
		{"Vocab", c.Vocab, maxCount}, {"Dim", c.Dim, maxCount}, {"Hidden", c.Hidden, maxCount}, {"Layers", c.Layers, maxLayers},
		{"Heads", c.Heads, maxCount}, {"KVHeads", c.KVHeads, maxCount}, {"HeadDim", c.HeadDim, maxCount}, {"Context", c.Context, maxCount},
	} {
		if n.value < 1 || n.value > n.most {
			return bad(n.name, "%d, want 1 to %d", n.value, n.most)
		}
	}
	for _, n := range []struct {
		name     string
		value    float64
		positive bool
	}{
		{"NormEps", c.NormEps, true}, {"ScoreScale", c.ScoreScale, true}, {"EmbeddingScale", c.EmbeddingScale, true},
		{"ScoreCap", c.ScoreCap, false}, {"LogitCap", c.LogitCap, false}, {"InitStd", c.InitStd, false}, {"ResidualScale", c.ResidualScale, false}, {"Factors.Attention", c.Factors.Attention, false}, {"Factors.MLP", c.Factors.MLP, false}, {"LogitScale", c.LogitScale, false},
		{"AttentionDropout", c.AttentionDropout, false}, {"ResidualDropout", c.ResidualDropout, false}, {"EmbeddingDropout", c.EmbeddingDropout, false},
	} {
		if !(n.value >= 0) || n.value > math.MaxFloat32 || n.positive && n.value == 0 {
			return bad(n.name, "%v, want a finite number %s", n.value, map[bool]string{true: "above 0", false: "of 0 or more"}[n.positive])
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return bad("KVHeads", "%d, want a divisor of the %d heads", c.KVHeads, c.Heads)
	case c.NoNormBias && !c.LayerNorm:
		return bad("NoNormBias", "true, and norms are RMSNorms, which have none")
	case c.ValueNorm && !c.QKNorm, c.Full.KeysAreValues && !c.ValueNorm:
		return bad("ValueNorm", "%t, without QKNorm, or beside KeysAreValues: want norms of q, k and v", c.ValueNorm)
	case c.SharedKV < 0 || c.SharedKV >= c.Layers, c.SharedKV == 0 && c.WideShared, c.SharedKV > 0 && (c.packed() || !c.QKNorm):
		return bad("SharedKV", "%d of %d layers, want fewer, some for WideShared, and norms of q and k", c.SharedKV, c.Layers)
	case c.PerLayer < 0 || c.PerLayer > maxCount || c.PerLayer > 0 && (c.PerLayerVocab < 1 || c.PerLayerVocab > maxCount/c.Layers || c.PerLayer > math.MaxInt32/c.Layers/2):
		return bad("PerLayer", "%d elements for each of %d layers and %d tokens, want tables whose rows and elements are counted", c.PerLayer, c.Layers, c.PerLayerVocab)
	case c.Full != FullAttention{} && (c.Full.KVHeads < 1 || c.Heads%max(1, c.Full.KVHeads) != 0 || c.Full.HeadDim < 1 || c.Full.HeadDim > maxCount):
		return bad("Full.KVHeads", "%d of %d elements, want a divisor of the %d heads, and 1 to %d elements", c.Full.KVHeads, c.Full.HeadDim, c.Heads, maxCount)
	case c.AttentionDropout >= 1 || c.ResidualDropout >= 1 || c.EmbeddingDropout >= 1:
		return bad("AttentionDropout", "a rate of dropout of 1 or more")
	case len(c.Windows) != c.Layers:
		return bad("Windows", "%d windows, want one for each of %d layers", len(c.Windows), c.Layers)
	case c.DType != 0 && !c.DType.IsFloat():
		return bad("DType", "%s, want f32, f16 or bf16", c.DType)
	case !slices.Contains([]Activation{SiLU, GELUTanh, GELU, ReLU2}, c.Activation):
		return bad("Activation", "%q, want %q, %q, %q or %q", c.Activation, SiLU, GELUTanh, GELU, ReLU2)
	}
	if err := c.checkAltUp(); err != nil {
		return err
	}
	if c.BOS < -1 || c.Pad < -1 || slices.ContainsFunc(c.EOS, func(id int) bool { return id < 0 }) {
		return bad("BOS", "tokens %d, %d and %d, want 0 or more; BOS and Pad may be -1", c.BOS, c.EOS, c.Pad)
	}
	for i := range c.Windows {
		if c.keysOf(i) < 0 {
			return bad("SharedKV", "%d, which leaves no layer with the keys and values for layer %d", c.SharedKV, i)
		}
	}
	for i, n := range c.Windows {
		if n < 0 || n > maxCount {
			return bad("Windows", "window %d of layer %d, want 0 to %d", n, i, maxCount)
		}
	}
	if err := c.checkExperts(); err != nil {
		return err
	}
	if err := cmp.Or(c.checkLatent(), c.checkPositions(), c.checkMixers()); err != nil {
		return err
	}
	return c.checkSizes()
}

// checkAltUp returns an error unless the streams are whole.
func (c *Config) checkAltUp() error {
	a := &c.AltUp
	switch {
	case *a == AltUp{} && c.Sparsity == nil:
		return nil
	case a.Streams < 2 || a.Streams > 64 || a.Active < 0 || a.Active >= a.Streams || a.Rank < 1 || a.Rank > maxCount || c.names().altUp.router == "":
		return bad("AltUp.Streams", "%d, of which layers compute number %d, and a Laurel of rank %d, want 2 to 64, one of them, and 1 or more, in a family that has them", a.Streams, a.Active, a.Rank)
	case c.PerLayer < 1 || !c.PostNorms || c.NormPlusOne || c.Mixers != nil || c.Experts.Count > 0 || c.LayerScalar || c.Parallel || c.Dim > math.MaxInt32/a.Streams:
		return bad("AltUp.Streams", "%d, want PerLayer and PostNorms, and neither NormPlusOne, Mixers, Experts, LayerScalar nor Parallel", a.Streams)
	case c.Sparsity != nil && len(c.Sparsity) != c.Layers:
		return bad("Sparsity", "%d layers, want %d or nil", len(c.Sparsity), c.Layers)
	}
	for i, share := range c.Sparsity {
		if !(share >= 0 && share < 1) {
			return bad("Sparsity", "%v in layer %d, want 0 or more, and less than 1", share, i)
		}
	}
	return nil
}

// checkExperts returns an error unless the fields of the experts fit one another.
func (c *Config) checkExperts() error {
	e := &c.Experts
	together := 1 // experts whose matrices are in one tensor of a file
	if n := &c.names().experts; n.joined != separate || n.joinable != separate {
		together = max(1, e.Count)
	}
	number := func(x float64) bool { return x >= 0 && x <= math.MaxFloat32 }
	switch {
	case e.Count == 0 && !reflect.ValueOf(*e).IsZero():
		return bad("Experts.Count", "0, and other fields of Experts are not")
	case e.Count == 0:
		return nil
	case e.Count < 1 || e.Count > maxExperts || e.Count > maxAllExperts/c.Layers:
		return bad("Experts.Count", "%d, want 1 to %d in a layer, and up to %d in all", e.Count, maxExperts, maxAllExperts)
	case e.Chosen < 1 || e.Chosen > e.Count:
		return bad("Experts.Chosen", "%d, want 1 to the %d experts", e.Chosen, e.Count)
	case e.Hidden < 1 || e.Hidden > maxCount || e.Hidden > math.MaxInt/c.Dim/together/2:
		return bad("Experts.Hidden", "%d, want 1 to %d, and matrices whose elements an int counts", e.Hidden, maxCount)
	case e.Dense != nil && len(e.Dense) != c.Layers:
		return bad("Experts.Dense", "%d layers, want %d or nil", len(e.Dense), c.Layers)
	case e.Dense != nil && !slices.Contains(e.Dense, false):
		return bad("Experts.Dense", "no layer with experts")
	case e.Clamped && !(number(e.Limit) && number(e.Alpha) && e.Limit > 0):
		return bad("Experts.Limit", "%v and Alpha %v, want finite numbers, of 0 or more, and a positive limit", e.Limit, e.Alpha)
	case !e.Clamped && (e.Limit != 0 || e.Alpha != 0):
		return bad("Experts.Limit", "%v and Alpha %v, want 0 without Clamped", e.Limit, e.Alpha)
	case !number(e.Scale):
		return bad("Experts.Scale", "%v, want a finite number of 0 or more", e.Scale)
	case e.Groups < 0 || e.ChosenGroups < 0 || e.GroupTop < 0 || (e.Groups == 0) != (e.ChosenGroups == 0) || e.Groups == 0 && e.GroupTop != 0:
		return bad("Experts.Groups", "%d, %d of them chosen, by their best %d: want all above 0, or none", e.Groups, e.ChosenGroups, e.GroupTop)
	case e.Groups > 0 && (e.Count%e.Groups != 0 || e.ChosenGroups > e.Groups || e.Chosen > e.ChosenGroups*(e.Count/e.Groups) || e.GroupTop > e.Count/e.Groups):
		return bad("Experts.Groups", "%d, %d of them chosen, by their best %d, want a divisor of %d experts, and groups that hold the %d chosen", e.Groups, e.ChosenGroups, e.GroupTop, e.Count, e.Chosen)
	case e.Shared > 0 && c.names().experts.shared == "" || e.Corrected && c.names().experts.correction == "":
		return bad("Experts.Shared", "%d, and Corrected %t: models of the family %q have none", e.Shared, e.Corrected, c.Family)
	case e.Beside && (c.names().experts.besides == besideNames{} || !c.PostNorms || e.Shared > 0 || e.WeighInput || e.Bias):
		return bad("Experts.Beside", "models of the family %q have none, or no PostNorms, or Shared, WeighInput or Bias", c.Family)
	case e.Shared < 0 || e.Shared > maxCount || e.SharedGate && e.Shared == 0:
		return bad("Experts.Shared", "%d, with a gate: %t, want 0 to %d", e.Shared, e.SharedGate, maxCount)
	case !number(e.RouterLoss):
		return bad("Experts.RouterLoss", "%v, want a finite number of 0 or more", e.RouterLoss)
	}
	return nil
}

func (c *Config) checkPositions() error {
	if c.LearnedPositions {
		if c.Rope != (Rope{}) || c.LocalRope != (Rope{}) || c.NoRope != nil {
			return bad("Rope", "a rope beside LearnedPositions")
		}
		return nil
	}
	full := cmp.Or(c.Full.HeadDim, c.HeadDim)
	for _, r := range []struct {
		name string
		Rope
		most int
	}{{"Rope", c.Rope, full}, {"LocalRope", c.LocalRope, c.HeadDim}} {
		if r.name == "LocalRope" && r.Rope == (Rope{}) {
			continue
		}
		if err := r.Check(); err != nil {
			return fmt.Errorf("%s: %w", r.name, errors.Unwrap(err)) // without the name of package layers
		}
		if r.Dim > r.most {
			return bad(r.name+".Dim", "%d, want at most the %d of HeadDim", r.Dim, r.most)
		}
	}
	if c.NoRope != nil && len(c.NoRope) != c.Layers {
		return bad("NoRope", "%d layers, want %d or nil", len(c.NoRope), c.Layers)
	}
	return nil
}

// checkSizes returns an error if a parameter has more elements than an int counts.
func (c *Config) checkSizes() error {
	positions := 1
	if c.LearnedPositions {
		positions = c.Context
	}
	for _, n := range []struct {
		name string
		rows int
		cols int
	}{{"Vocab", c.Vocab, c.Dim}, {"Hidden", c.widestHidden(), c.Dim}, {"Heads", c.Heads, c.widestHead()}, {"Context", positions, c.Dim}} {
		if n.rows > math.MaxInt/n.cols {
			return bad(n.name, "%d×%d elements are too many", n.rows, n.cols)
		}
	}
	if width := int64(c.Heads) * int64(c.widestHead()); width > maxCount || width*3 > int64(math.MaxInt/c.Dim) {
		return bad("Heads", "%d heads of %d elements are too many", c.Heads, c.HeadDim)
	}
	return nil
}

// bad returns the error of a field.
func bad(field, format string, args ...any) error {
	return fmt.Errorf("%s: %w", field, fmt.Errorf(format+": %w", append(args, snug.ErrConfig)...))
}
