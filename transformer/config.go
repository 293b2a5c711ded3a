package transformer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
