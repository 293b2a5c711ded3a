package transformer

import (
	"cmp"
	"maps"
	"regexp"
	"slices"

	"github.com/snug-ml/snug/plan"
)

// A family is a model_type of transformers. Its file says all that is its own; nothing else knows it by name.
type family struct {
	name  string   // model_type
	class string   // of transformers, before the head
	head  string   // of the class, empty: ForCausalLM
	std   defaults // of fields that config.json leaves out

	// layers sets the fields of a Config in which the family has no choice, [plainLayers] if nil.
	layers func(c *Config)
	// fields has the other fields that the class of transformers reads, nil for a family that no config.json describes.
	fields func(f *fields, c *Config)

	ownLayers bool // fields reads per_layer_config

	// preset, unless nil, says whether a preset of package plan is of the family, and sets what its sizes do not say.
	preset func(g plan.GPT, c *Config) bool

	names names
	gguf  ggufForm // how llama.cpp's files hold it
	mlx   string   // before the names of modules in mlx-lm, in place of the layout's body; empty: that lacks the family
	// residual has the ends of the names of matrices whose initial deviation is divided by the root of the number of
	// halves. normal has those of vectors that begin normally distributed; sinks do in all families.
	residual, normal []string
	// untied says that PEFT saves the tied embedding as a matrix of its own when it trains beside adapters.
	untied bool
}

// defaults are the fields that families leave out, as transformers fills them.
type defaults struct {
	vocab, dim, hidden, layers, heads int
	kvHeads                           int // 0: heads
	headDim                           int // 0: dim/heads
	context                           int
	bos, eos, pad                     int
	tied                              bool
	eps                               float64               // of norms, 0: 1e-6
	norm                              string                // field that has it, empty: rms_norm_eps
	deviation                         float64               // of initial weights, 0: 0.02
	theta                             float64               // of the rope, 0: 10000
	turned                            float64               // share of the elements of a head that turn, 0: all, and no other
	ropes                             map[RopeKind]RopeKind // other names of kinds
	base, share                       string                // fields that have theta and turned, empty: rope_theta and partial_rotary_factor
	experts                           Experts
	sections                          bool // models of images are made of its layers, whose rope has Sections
	spread                            bool // these are spread, whatever mrope_interleaved is
}

// normName returns the name of the field of the norms' epsilon.
func (d *defaults) normName() string { return cmp.Or(d.norm, "rms_norm_eps") }

// ropeNames returns the names of the fields of a rope's base and of the share of a head that it turns.
func (d *defaults) ropeNames() (base, share string) {
	return cmp.Or(d.base, "rope_theta"), cmp.Or(d.share, "partial_rotary_factor")
}

// names are the names of parameters: of modules, without ".weight" and ".bias". Those of a layer lack its prefix. The name
// of a module that no model of the family has is empty, also of the norms before the halves; without a q one matrix makes q, k and v, and with a gateUp one makes gate and up, side by side.
type names struct {
	layouts []layout // that folders may have, the usual one first
	buffers *regexp.Regexp

	embedding, positions, norm string
	block                      string // before the number of a layer

	attentionNorm, q, k, v, qkv, qNorm, kNorm, sinks, out, attentionPost string
	mlpNorm, gate, up, gateUp, down, mlpPost                             string
	perLayer                                                             perLayerNames
	scalar                                                               string     // the parameter of Config.LayerScalar
	convIn, convTaps, convOut                                            string     // of [ShortConv]
	mamba                                                                string     // of [Mamba2], before its parts
	delta                                                                deltaNames // of [DeltaNet]
	experts                                                              expertNames
	latent                                                               latentNames
	altUp                                                                altUpNames

	conv        bool   // the matrices of the layers are [in, out]
	interleaved bool   // rows of qkv are q, k and v of a head, and then those of the next
	further     bool   // folders may have layers behind the last, which predict further tokens and are passed over
	normLast    bool   // the norms of q and k follow the rope
	perHead     bool   // the norms of q and k are LayerNorms of heads without a bias, whose weights are [heads, HeadDim]
	wide        bool   // the norms of q and k are over all heads of a row together
	unadapted   string // the end of the name of a matrix that PEFT refuses to adapt in models of the family
	beside      string // before the names of tensors of a folder that are not of the model, and are passed over
}

// perLayerNames are the names of what Config.PerLayer has: three of the model, and three of a layer.
type perLayerNames struct{ tokens, projection, norm, gate, out, post string }

// altUpNames are the names of what Config.AltUp has: two of the model, before the number of a stream, and those of a layer.
type altUpNames struct{ first, last, norm, router, predict, correct, scale, left, right, post string }

// layout says how the names in a folder differ from the names of the family.
type layout struct {
	body string // prefix of all names except the head's
	head string // name of the head's matrix
}

// expertNames are the names of the router and of the experts of a layer.
type expertNames struct {
	router         string
	experts        string     // before the number of the expert
	gate, up, down string     // of an expert
	shared         string     // of the expert of all tokens
	sharedGate     string     // of its logit
	correction     string     // the parameter of Experts.Corrected
	mlx            string     // of a layer in mlx-lm, which has all experts in one module
	joined         joinedForm // how files hold the experts of a layer in one tensor
	joinable       joinedForm // how some files do, where others have separate ones; Save writes what Open read
	floatLogits    bool       // the router's logits are float32 in a model of any type, see [layers.Experts]
	besides        besideNames
}

// besideNames are the names of what Experts.Beside adds: parameters of the router, and norms after the MLP, and before and after the experts.
type besideNames struct{ scale, scales, mlpPost, norm, post string }

// whole is a model for images and text. Its file says all that is its own of what concerns the text.
type whole struct {
	name    string   // model_type
	class   string   // of transformers, before ForConditionalGeneration
	texts   []string // families of its text model, first the one that text_config stands for without a model_type
	text    string   // what text_config calls the first of them, empty: by its name
	std     defaults // of fields that text_config leaves out, if text has a name
	strict  bool     // config.json has a text_config: what transformers takes without one is a text of its own
	flat    bool     // config.json may have the fields of the text beside its own, without a text_config
	layouts []layout // of the text in its folders: as published, and as its modules are named in memory
	fields  []string // of config.json that are not about the text
	images  []string // prefixes of its other tensors, which may follow "model."
	// prefixes says that its texts begin with tokens that see each other in both directions, whatever use_bidirectional_attention is, and
	// that a window hides no token of them.
	prefixes   bool
	mlx        string   // before the names of its text in mlx-lm, empty: that lacks the model
	projectors []string // what the names of modules between images and text begin with that are saved as a whole, if they have several parts
}

// families has each family by its name. Their files fill it; defaults are those of transformers 5.23.
var families = map[string]*family{}

func register(f family) {
	if f.layers == nil {
		f.layers = plainLayers
	}
	families[f.name] = &f
}

// wholeLayouts are the layouts of most models for images and text: as published and saved by transformers, and as its modules are named
// in memory since 4.52.
var wholeLayouts = []layout{{"language_model.model.", "language_model.lm_head.weight"}, {"model.language_model.", "lm_head.weight"}}

// family returns the family of a valid Config.
func (c *Config) family() *family { return families[c.Family] }

func (c *Config) names() *names { return &c.family().names }

// familyNames returns the families that a config.json can name.
func familyNames() (list []string) {
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if families[name].fields != nil {
			list = append(list, name)
		}
	}
	return list
}

// wholes has each model for images and text by its name.
var wholes = map[string]*whole{}

func registerWhole(w whole) { wholes[w.name] = &w }

// whole returns the model for images and text of a Config, nil for none.
func (c *Config) whole() *whole { return wholes[c.Whole] }

// bidirectional refuses a text whose tokens all see each other.
func (c *Config) bidirectional(f *fields) {
	if w := c.whole(); w != nil && w.prefixes {
		f.ignore("use_bidirectional_attention")
		return
	}
	f.only("use_bidirectional_attention", "false")
}

// plainLayers sets what most families have: RMSNorm, a rope of all elements of a head in all layers, a gate, and neither experts nor sinks.
func plainLayers(c *Config) {
	ropedLayers(c)
	c.NoRope = nil
	for _, r := range []*Rope{&c.Rope, &c.LocalRope} {
		if r.Interleaved = false; r.Kind != "" {
			r.Dim = c.HeadDim
		}
	}
}

// ropedLayers is plainLayers for families with a choice of what turns.
func ropedLayers(c *Config) {
	c.Mixers, c.ConvTaps, c.ConvBias, c.Mamba, c.Delta, c.OutputGate = nil, 0, false, Mamba{}, Delta{}, false
	c.NoNormBias = false
	c.LayerNorm, c.LearnedPositions, c.PostNorms, c.PackedQKV, c.UpBias, c.Sinks, c.Parallel, c.OneNorm = false, false, false, false, false, false, false, false
	c.Gated, c.Experts = true, Experts{}
	c.ValueNorm, c.LayerScalar, c.Full, c.Latent = false, false, FullAttention{}, Latent{}
	c.SharedKV, c.WideShared, c.PerLayer, c.PerLayerVocab, c.AltUp, c.Sparsity = 0, false, 0, 0, AltUp{}, nil
}

// routedLayers sets what most families with experts have. Experts have a width of their own.
func routedLayers(c *Config) {
	e := c.Experts
	plainLayers(c)
	c.Experts = Experts{Count: e.Count, Chosen: e.Chosen, Hidden: e.Hidden, Normalize: e.Normalize, RouterLoss: e.RouterLoss}
}

// llamaNames are the names of most families.
var llamaNames = names{
	layouts:   []layout{{"model.", "lm_head.weight"}, {"", "lm_head.weight"}},
	buffers:   regexp.MustCompile(`^(layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq$`),
	embedding: "embed_tokens", norm: "norm", block: "layers",
	attentionNorm: "input_layernorm",
	q:             "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj",
	qNorm: "self_attn.q_norm", kNorm: "self_attn.k_norm", sinks: "self_attn.sinks", out: "self_attn.o_proj",
	mlpNorm: "post_attention_layernorm",
	gate:    "mlp.gate_proj", up: "mlp.up_proj", down: "mlp.down_proj",
	experts: expertNames{router: "mlp.gate", experts: "mlp.experts.", gate: "gate_proj", up: "up_proj", down: "down_proj", mlx: "mlp.switch_mlp"},
}

// with returns names with changes.
func (n names) with(change func(n *names)) names {
	change(&n)
	return n
}
