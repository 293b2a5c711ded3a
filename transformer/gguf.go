package transformer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
)

// GGUF is what a file of llama.cpp's has of a model, besides the values of the tensors.
type GGUF struct {
	// Metadata are general.architecture, general.file_type and general.quantization_version, and the sizes and numbers of the
	// architecture. The name of the model and the tokenizer are not among them.
	Metadata []gguf.Pair
	// Tensors are the tensors in the order of the file. A tensor of the experts of a layer is [experts, out, in].
	Tensors []gguf.Tensor
	// Notes say where llama.cpp differs from the model, and how many matrices have which other type than the file's name says, a
	// sentence each without its full stop.
	Notes []string

	parts []ggufPart  // of Tensors
	from  *ggufSource // whose tensors are copied, or nil
}

// ggufPart says of what parameters a tensor consists.
type ggufPart struct {
	params     []string  // by the names of the family's usual layout; one, or those of all experts
	rows, cols int       // of a parameter; a vector is one row
	pairs      int       // elements of a head whose halves take turns, 0 for none; with heads all elements of a column
	heads      int       // unless 0, rows are q, k and v of so many heads by turns, and in the file q of all, k of all and v of all
	transposed bool      // the parameter is [in, out]
	add        float32   // to every element
	values     []float32 // of a tensor that is no parameter
}

// GGUF describes the file of a model in one of the [GGUFTypes]; empty is the one of Config.DType.
//
// The tensors and their names, and the metadata, are those of llama.cpp's converter, convert_hf_to_gguf.py, but that sizes of heads
// and the base of the rope are always written. Rows of q and k of Llama's arithmetic are put in another order, norms
// with 1+w are written as 1+w, and the experts of a layer are one tensor. The factors of Llama 3's rope are the
// tensor rope_freqs.weight. The types are those of llama-quantize without an importance matrix: vectors, routers and
// tables of positions stay in float32; with q4_k_m and q5_k_m the head, and v and down of some layers, are q6_k; and rows that
// are no whole blocks have a type with smaller blocks.
//
// The error wraps [snug.ErrConfig] for a type that is not known, and for a model that llama.cpp does not compute as it is: it
// names the field.
func (c *Config) GGUF(kind string) (_ *GGUF, err error) {
	defer fault.Named(&err, "transformer: GGUF")
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.describe(kind)
}

func (c *Config) describe(kind string) (*GGUF, error) {
	if kind == "" {
		kind = c.publishedGGUF()
	}
	t, err := ggufTypeOf(kind)
	if err != nil {
		return nil, err
	}
	form, err := c.gguf()
	if err != nil {
		return nil, err
	}
	plain := *c
	plain.Whole = "" // the names of parameters are the family's
	g := &GGUF{Metadata: plain.ggufMetadata(form, t), Notes: c.ggufNotes(form)}
	l := &ggufLister{Config: &plain, file: g, form: form, kind: t, names: plain.names()}
	l.all()
	g.Notes = append(g.Notes, l.counts.notes(c, t)...)
	return g, nil
}

// ggufMetadata collects the metadata of an architecture.
type ggufMetadata struct {
	arch  string
	pairs []gguf.Pair
}

func (m *ggufMetadata) add(key string, value any) {
	m.pairs = append(m.pairs, gguf.Pair{Key: m.arch + "." + key, Value: value})
}

func (m *ggufMetadata) count(key string, n int)      { m.add(key, uint32(n)) } // at most maxCount
func (m *ggufMetadata) number(key string, x float64) { m.add(key, float32(x)) }

func (c *Config) ggufMetadata(form *ggufForm, t ggufType) []gguf.Pair {
	m := &ggufMetadata{arch: form.arch, pairs: []gguf.Pair{
		{Key: "general.architecture", Value: form.arch}, {Key: "general.type", Value: "model"},
		{Key: "general.file_type", Value: uint32(t.number)}, {Key: "general.quantization_version", Value: uint32(2)},
	}}
	m.count("block_count", c.Layers)
	m.count("context_length", c.Context)
	m.count("embedding_length", c.Dim)
	m.count("feed_forward_length", c.Hidden)
	m.count("attention.head_count", c.Heads)
	if !form.oneRow {
		m.count("attention.head_count_kv", c.KVHeads)
		m.count("attention.key_length", c.HeadDim)
		m.count("attention.value_length", c.HeadDim)
	}
	norm := "attention.layer_norm_rms_epsilon"
	if c.LayerNorm {
		norm = "attention.layer_norm_epsilon"
	}
	m.number(norm, c.NormEps)
	if !c.LearnedPositions {
		m.rope(c, form)
	}
	if e := &c.Experts; e.Count > 0 {
		m.count("expert_count", e.Count)
		m.count("expert_used_count", e.Chosen)
	}
	if form.period > 0 {
		m.count("attention.sliding_window", c.Windows[0])
	}
	if form.scales {
		m.number("attention.scale", c.ScoreScale)
		m.number("embedding_scale", c.EmbeddingScale)
		m.number("residual_scale", cmp.Or(c.ResidualScale, 1))
		m.number("logit_scale", 1/cmp.Or(c.LogitScale, 1))
	}
	if form.logitScale {
		m.number("logit_scale", cmp.Or(c.LogitScale, 1))
	}
	if c.ScoreCap != 0 {
		m.number("attn_logit_softcapping", c.ScoreCap)
	}
	if c.LogitCap != 0 {
		m.number("final_logit_softcapping", c.LogitCap)
	}
	if form.turned {
		m.count("rope.dimension_count", c.Rope.Dim)
	}
	if form.keys != nil {
		form.keys(c, m)
	}
	return m.pairs
}

// rope adds the ropes. The factors of Llama 3's rope are a tensor.
func (m *ggufMetadata) rope(c *Config, form *ggufForm) {
	r := &c.Rope
	m.number("rope.freq_base", r.Theta)
	if c.LocalRope.Kind != "" {
		m.number("rope.freq_base_swa", c.LocalRope.Theta)
	}
	switch r.Kind {
	case RopeLinear:
		m.add("rope.scaling.type", "linear")
		m.number("rope.scaling.factor", r.Factor)
	case RopeLong:
		m.number("rope.scaling.attn_factor", r.AttentionScale())
	case RopeYarn:
		m.add("rope.scaling.type", "yarn")
		m.number("rope.scaling.factor", r.Factor)
		m.count("rope.scaling.original_context_length", r.OriginalPositions)
		if r.BetaFast != 0 {
			m.number("rope.scaling.yarn_beta_fast", r.BetaFast)
		}
		if r.BetaSlow != 0 {
			m.number("rope.scaling.yarn_beta_slow", r.BetaSlow)
		}
		if form.queryScale && r.MScale == 1 && r.MScaleAllDim != 0 && r.AttentionFactor == 0 {
			m.number("rope.scaling.yarn_log_multiplier", r.MScaleAllDim)
		} else if scale := r.AttentionScale() / (0.1*math.Log(r.Factor) + 1); math.Abs(scale-1) > 1e-6 { // of what llama.cpp computes by itself
			m.number("rope.scaling.attn_factor", scale)
		}
		if r.QueryScale != 0 {
			m.number("attention.temperature_scale", r.QueryScale)
		}
	}
}

// The tensors of a longrope's factors.
const ropeLong, ropeShort = "rope_factors_long.weight", "rope_factors_short.weight"

// ggufLister lists the tensors of a file.
type ggufLister struct {
	*Config
	file  *GGUF
	form  *ggufForm
	kind  ggufType
	names *names

	counts ggufCounts
}

func (l *ggufLister) all() {
	if l.Rope.Kind == RopeLlama3 {
		factors := llama3Factors(l.Rope)
		l.file.Tensors = append(l.file.Tensors, gguf.Tensor{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int{len(factors)}})
		l.file.parts = append(l.file.parts, ggufPart{values: factors})
	}
	if f := l.Rope.Factors; f != nil {
		l.vector(ropeLong, f.Long)
		l.vector(ropeShort, f.Short)
	}
	listed, layout := l.tensorsOf(l.layout()), l.layout()
	stacks := map[string]int{}
	for i, t := range listed.list {
		layer := listed.stages[i] / l.halves()
		name, inLayer := strings.CutPrefix(t.Name, layout.body+l.block(layer))
		name = strings.TrimPrefix(name, layout.body)
		end := name[strings.LastIndexByte(name, '.'):]
		if name == l.names.sinks && inLayer { // a vector whose published name has no end
			end = ""
		}
		name = strings.TrimSuffix(name, end)
		if end == "" {
			end = ".weight"
		}
		if t.Name == layout.head {
			l.add("output"+end, t.Name, t.Shape, ggufHead, layer)
			continue
		}
		if !inLayer {
			to, role := l.ofModel(name)
			l.add(to+end, t.Name, t.Shape, role, layer)
			continue
		}
		to, role := l.ofLayer(name)
		full := fmt.Sprintf("blk.%d.%s%s", layer, to, end)
		if role != ggufExperts && role != ggufExpertsDown {
			l.add(full, t.Name, t.Shape, role, layer)
			continue
		}
		if at, begun := stacks[full]; begun {
			l.file.parts[at].params = append(l.file.parts[at].params, t.Name)
			continue
		}
		stacks[full] = len(l.file.parts)
		l.add(full, t.Name, t.Shape, role, layer)
		last := &l.file.Tensors[len(l.file.Tensors)-1]
		last.Shape = slices.Insert(last.Shape, 0, l.Experts.Count)
	}
}

// vector adds a tensor of numbers that are no parameter.
func (l *ggufLister) vector(name string, numbers []float64) {
	values := make([]float32, len(numbers))
	for i, x := range numbers {
		values[i] = float32(x)
	}
	l.file.Tensors = append(l.file.Tensors, gguf.Tensor{Name: name, Type: gguf.F32, Shape: []int{len(values)}})
	l.file.parts = append(l.file.parts, ggufPart{values: values})
}

// ofModel returns the name and the role of a parameter that belongs to no layer.
func (l *ggufLister) ofModel(name string) (string, ggufRole) {
	switch name {
	case l.names.embedding:
		if l.Tied {
			return "token_embd", ggufHead
		}
		return "token_embd", ggufMatrix
	case l.names.positions:
		return "position_embd", ggufPlain
	}
	return "output_norm", ggufPlain
}

// ofLayer returns the name and the role of a parameter of a layer.
func (l *ggufLister) ofLayer(name string) (string, ggufRole) {
	n := l.names
	mlpNorm := l.form.mlpNorm
	if mlpNorm == "" {
		mlpNorm = "ffn_norm"
	}
	for _, row := range []struct {
		published, name string
		role            ggufRole
	}{
		{n.attentionNorm, "attn_norm", ggufPlain}, {n.q, "attn_q", ggufMatrix}, {n.k, "attn_k", ggufKeys}, {n.v, "attn_v", ggufValues},
		{n.qkv, "attn_qkv", ggufValues}, {n.qNorm, "attn_q_norm", ggufPlain}, {n.kNorm, "attn_k_norm", ggufPlain},
		{n.sinks, "attn_sinks", ggufPlain}, {n.out, "attn_output", ggufOutput}, {n.attentionPost, "post_attention_norm", ggufPlain},
		{n.mlpNorm, mlpNorm, ggufPlain}, {n.gate, "ffn_gate", ggufMatrix}, {n.up, "ffn_up", ggufMatrix}, {n.gateUp, "ffn_up", ggufMatrix}, {n.down, "ffn_down", ggufDown},
		{n.mlpPost, "post_ffw_norm", ggufPlain}, {n.experts.router, "ffn_gate_inp", ggufPlain},
	} {
		if row.published == name {
			return row.name, row.role
		}
	}
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case n.experts.gate:
		return "ffn_gate_exps", ggufExperts
	case n.experts.up:
		return "ffn_up_exps", ggufExperts
	}
	return "ffn_down_exps", ggufExpertsDown
}

// add adds a tensor of one parameter.
func (l *ggufLister) add(name, param string, shape []int, role ggufRole, layer int) {
	p := ggufPart{params: []string{param}, rows: 1, cols: shape[len(shape)-1]}
	shape = slices.Clone(shape)
	if len(shape) == 2 {
		if p.transposed = l.names.conv && strings.HasPrefix(name, "blk."); p.transposed {
			slices.Reverse(shape)
		}
		p.rows, p.cols = shape[0], shape[1]
	}
	if l.form.paired && (strings.Contains(name, ".attn_q.") || strings.Contains(name, ".attn_k.")) {
		p.pairs = l.HeadDim
	}
	if l.names.interleaved && strings.Contains(name, ".attn_qkv.") {
		p.heads, p.pairs = l.Heads, 3*l.Heads*l.HeadDim
	}
	if l.NormPlusOne && strings.HasSuffix(name, "norm.weight") {
		p.add = 1
	}
	t := gguf.F32
	if len(shape) == 2 && strings.HasSuffix(name, ".weight") && !strings.HasSuffix(name, "_norm.weight") {
		var wanted gguf.Type
		t, wanted = l.kind.choose(l.Config, l.form, role, layer, p.cols)
		l.counts.add(t, wanted)
	}
	l.file.Tensors = append(l.file.Tensors, gguf.Tensor{Name: name, Type: t, Shape: shape})
	l.file.parts = append(l.file.parts, p)
}

// llama3Factors returns what divides the frequencies of Llama 3's rope, computed in float32 as llama.cpp's converter does.
func llama3Factors(r Rope) []float32 {
	factors := make([]float32, r.Dim/2)
	positions, low, high, factor := float32(r.OriginalPositions), float32(r.LowFreqFactor), float32(r.HighFreqFactor), float32(r.Factor)
	for i := range factors {
		frequency := 1 / float32(math.Pow(r.Theta, float64(float32(2*i)/float32(r.Dim))))
		switch length := 2 * math.Pi / frequency; {
		case length < positions/high:
			factors[i] = 1
		case length > positions/low:
			factors[i] = factor
		default:
			smooth := (positions/length - low) / (high - low)
			factors[i] = 1 / (float32((1-smooth)/factor) + smooth)
		}
	}
	return factors
}
