package transformer

import (
	"math"
	"slices"
	"strconv"

	"github.com/snug-ml/snug"
)

// ggufForm says how llama.cpp's files hold a family, and what llama.cpp computes for it. The zero ggufForm is that of a family
// that the format does not know. The facts are those of llama.cpp's src/models, of its converter and of gguf-py's tensor names.
type ggufForm struct {
	arch string // general.architecture

	mlpNorm string // name of the norm before the MLP, empty: ffn_norm
	paired  bool   // rows of q and k: the two that a rope turns together follow each other
	oneRow  bool   // metadata has the sizes of heads of q alone: one matrix makes q, k and v

	activation        Activation // of the MLP, empty: SiLU
	outBias, mlpBias  bool       // the model may have these biases
	exactGELU         bool       // the model has GELU, and llama.cpp its approximation by tanh
	square            bool       // the heads of q are as wide as the model
	ropeFactors       bool       // the rope may be Llama 3's, whose factors are a tensor
	ownHead           bool       // the head is a tensor of its own
	tiedHead          bool       // the head is the embedding
	scaledEmbedding   bool       // the embedding is multiplied by the root of the width
	scoreCap          bool       // scores have a cap
	logitCap          bool       // logits may have a cap
	localRope         bool       // layers with a window have a rope of their own
	turned            bool       // metadata has how many elements of a head turn
	longFactors       bool       // the rope may be a longrope, whose factors are two tensors
	scales            bool       // metadata has the factors of scores, of the embedding, of halves and of logits
	logitScale        bool       // metadata has the factor of logits
	queryScale        bool       // queries may have a factor by their position, beside YaRN, of which metadata has mscale_all_dim
	noAdapters        string     // why llama.cpp does not run adapters beside the model, empty if it does
	noRope            int        // every noRope-th layer has no rope; 0: no such layer
	period            int        // every period-th layer has no window and the others have one; 0: no layer has one
	normalizedExperts bool       // the weights of the chosen experts are divided by their sum
	untruncated       bool       // the ends of YaRN's ramp are not rounded in the model, though llama.cpp rounds them

	// headWidth returns what the scale of scores is the root of, HeadDim if nil.
	headWidth func(c *Config) int
	// headNorms reports whether llama.cpp has norms of heads for a model, nil if it has for every model that has them.
	headNorms func(c *Config) bool
	// many reports whether llama-quantize takes more bits for v, as it does for models of 70 billion parameters.
	many func(c *Config) bool
	// parallel reports whether both halves of the layers of a file read the same.
	parallel        func(r *ggufReader) bool
	parallelByNames bool // llama.cpp takes that from the names of tensors, whatever use_parallel_residual says
	// keys adds the metadata that are the family's own.
	keys func(c *Config, m *ggufMetadata)
}

// llamaForm is the form of Llama and of what has its arithmetic.
var llamaForm = ggufForm{
	arch: "llama", paired: true, outBias: true, mlpBias: true, ropeFactors: true, normalizedExperts: true,
	many: func(c *Config) bool { return c.Layers == 80 && c.Heads != c.KVHeads },
	keys: func(c *Config, m *ggufMetadata) {
		m.count("vocab_size", c.Vocab)
		m.count("rope.dimension_count", c.HeadDim)
	},
}

// with returns a form with changes.
func (f ggufForm) with(change func(f *ggufForm)) ggufForm {
	change(&f)
	return f
}

// gguf returns the form of a model, or an error that names what llama.cpp would compute in another way.
func (c *Config) gguf() (*ggufForm, error) {
	f := &c.family().gguf
	if f.arch == "" {
		return nil, bad("Family", "snug writes no GGUF file of a model of the family %q", c.Family)
	}
	why := func(field, format string, args ...any) error {
		return bad(field, "llama.cpp computes "+f.arch+" "+format, args...)
	}
	activation := f.activation
	if activation == "" {
		activation = SiLU
	}
	width := c.HeadDim
	if f.headWidth != nil {
		width = f.headWidth(c)
	}
	scale, embedding := 1/math.Sqrt(float64(width)), 1.0
	if f.scaledEmbedding {
		embedding = math.Sqrt(float64(c.Dim))
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }
	switch {
	case c.Activation != activation:
		return nil, why("Activation", "with %s, and the model has %s", activation, c.Activation)
	case c.OutBias && !f.outBias:
		return nil, why("OutBias", "without a bias of attention's output")
	case c.MLPBias && !f.mlpBias:
		return nil, why("MLPBias", "without biases of the MLP")
	case f.square && c.Heads*c.HeadDim != c.Dim:
		return nil, why("HeadDim", "with heads as wide as the model, and %d heads of %d elements are not %d", c.Heads, c.HeadDim, c.Dim)
	case f.tiedHead && !c.Tied:
		return nil, why("Tied", "with the embedding as its head")
	case f.ownHead && c.Tied:
		return nil, why("Tied", "with a head of its own")
	case !f.scales && !near(c.ScoreScale, scale):
		return nil, why("ScoreScale", "with the factor 1/√%d of scores, and the model's is %v", width, c.ScoreScale)
	case f.headNorms != nil && c.QKNorm != f.headNorms(c):
		return nil, why("QKNorm", "of %d layers with norms of heads: %t, and the model has them: %t", c.Layers, !c.QKNorm, c.QKNorm)
	case !f.scales && (c.ResidualScale != 0 || c.LogitScale != 0 && !f.logitScale):
		return nil, why("ResidualScale", "without factors of halves and of logits, and the model has %v and %v", c.ResidualScale, c.LogitScale)
	case !f.scales && !near(c.EmbeddingScale, embedding):
		return nil, why("EmbeddingScale", "with the factor %v of the embedding, and the model's is %v", embedding, c.EmbeddingScale)
	case f.scoreCap != (c.ScoreCap != 0):
		return nil, why("ScoreCap", "with a cap of scores: %t, and the model's is %v", f.scoreCap, c.ScoreCap)
	case !f.logitCap && c.LogitCap != 0:
		return nil, why("LogitCap", "without a cap of logits")
	}
	if err := c.ggufRope(f, why); err != nil {
		return nil, err
	}
	if err := c.ggufExperts(f, why); err != nil {
		return nil, err
	}
	if f.period == 0 { // notes say what becomes of windows
		return f, nil
	}
	for i, n := range c.Windows {
		if slides := (i+1)%f.period != 0; slides != (n != 0) || slides && n != c.Windows[0] {
			return nil, why("Windows", "with one window in all layers but every %s, and layer %d has %d", ordinal(f.period), i, n)
		}
	}
	return f, nil
}

func ordinal(n int) string {
	return map[int]string{2: "second", 4: "fourth", 6: "sixth"}[n]
}

// ggufRope returns an error unless llama.cpp has the ropes of the model.
func (c *Config) ggufRope(f *ggufForm, why func(field, format string, args ...any) error) error {
	r := c.Rope
	for i := range c.Layers {
		if without := f.noRope > 0 && (i+1)%f.noRope == 0; without != (c.NoRope != nil && c.NoRope[i]) {
			return why("NoRope", "with a rope in layer %d: %t, and the model's is another one", i, !without)
		}
	}
	switch {
	case r.Kind != "" && r.Dim != c.HeadDim && !f.turned:
		return why("Rope.Dim", "with a rope of all %d elements of a head, and %d of the model's turn", c.HeadDim, r.Dim)
	case r.Sections != [3]int{}:
		return why("Rope.Sections", "with positions along one axis, and the model's have three")
	case r.Kind == RopeDynamic:
		return why("Rope.Kind", "without dynamic ropes, whose frequencies change with the length of the text")
	case r.Kind == RopeLong && !f.longFactors:
		return why("Rope.Kind", "without factors of each frequency")
	case r.QueryScale != 0 && (!f.queryScale || r.Kind != RopeYarn):
		return why("Rope.QueryScale", "with factors of queries by their position beside YaRN: %t, and the model has %v beside %q", f.queryScale, r.QueryScale, r.Kind)
	case r.Kind == RopeLlama3 && !f.ropeFactors:
		return why("Rope.Kind", "without the rope of Llama 3")
	case c.LocalRope != (Rope{}) && (!f.localRope || c.LocalRope.Kind != RopeDefault):
		return why("LocalRope", "with a plain rope in layers with a window")
	case f.localRope && r.Kind != RopeDefault && r.Kind != RopeLinear:
		return why("Rope.Kind", "with a plain or a linear rope, and the model's is %s", r.Kind)
	}
	return nil
}

// ggufExperts returns an error unless llama.cpp has the experts of the model.
func (c *Config) ggufExperts(f *ggufForm, why func(field, format string, args ...any) error) error {
	e := &c.Experts
	std := c.family().std.experts
	switch {
	case e.Count == 0:
		return nil
	case slices.Contains(e.Dense, true):
		return why("Experts.Dense", "with experts in every layer")
	case f.normalizedExperts && !e.Normalize:
		return why("Experts.Normalize", "with weights of experts that are divided by their sum")
	case e.Sigmoid:
		return why("Experts.Sigmoid", "with a softmax of the router's logits")
	case e.Clamped && (e.Alpha != std.Alpha || e.Limit != std.Limit):
		return why("Experts.Limit", "with the limit %v and alpha %v, and the model has %v and %v", std.Limit, std.Alpha, e.Limit, e.Alpha)
	}
	return nil
}

// ggufNotes says where llama.cpp differs from the model in ways that do not matter for every text.
func (c *Config) ggufNotes(f *ggufForm) (notes []string) {
	if window := slices.MinFunc(c.Windows, shorter); f.period == 0 && window != 0 && window < c.Context {
		notes = append(notes, "llama.cpp lets every token of "+f.arch+" see all before it, and the model has windows: the answers are the model's up to "+
			strconv.Itoa(window)+" tokens")
	}
	if c.Rope.Kind == RopeLong {
		notes = append(notes, "llama.cpp takes the factors for long texts when its context is larger than "+strconv.Itoa(c.Rope.OriginalPositions)+
			", and the model when the text is")
	}
	if f.exactGELU {
		notes = append(notes, "llama.cpp computes the GELU of "+f.arch+" in its approximation by tanh, and the model does not: logits differ a little")
	}
	if c.Rope.NoTruncate {
		notes = append(notes, "llama.cpp rounds the ends of YaRN's ramp to whole dimensions, which the model does not: logits differ a little")
	}
	if c.Whole != "" {
		notes = append(notes, "the file has the model of text; what llama.cpp needs for images is a file of its own, which is not written")
	}
	return notes
}

// shorter orders windows; 0, which is none, is the longest.
func shorter(a, b int) int {
	full := func(n int) int {
		if n == 0 {
			return math.MaxInt
		}
		return n
	}
	return full(a) - full(b)
}

// publishedGGUF returns the name of the type in which a file holds the weights as they are.
func (c *Config) publishedGGUF() string {
	switch c.DType {
	case snug.F16:
		return "f16"
	case snug.BF16:
		return "bf16"
	}
	return "f32"
}
