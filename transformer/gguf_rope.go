package transformer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
)

// This file reads the rope of a file of llama.cpp's.

// rope sets the fields of the rope.
func (r *ggufReader) rope() {
	if !r.take("rope_theta", "rope.freq_base") && !r.has("position_embd.weight") {
		r.fields["rope_theta"] = 10_000 // what llama.cpp takes then
	}
	kind, said := r.file.Value(r.arch + ".rope.scaling.type")
	factor, _ := r.number("rope.scaling.factor")
	if !said && factor != 0 && factor != 1 { // as llama.cpp takes it
		kind = "linear"
	}
	long := r.form.longFactors && r.has(ropeLong)
	if x, found := r.number("rope.scaling.attn_factor"); found && x != 1 && kind != "yarn" && !long {
		r.fail(r.arch+".rope.scaling.attn_factor", "%v, and the rope is not one of yarn", x)
	}
	scale := map[string]any{"rope_type": kind}
	own := *r
	own.fields = scale
	switch {
	case long:
		r.long(kind)
		return
	case r.has("rope_freqs.weight"):
		if kind != nil && kind != "none" {
			r.fail(r.arch+".rope.scaling.type", "%v beside the tensor rope_freqs.weight, want one of them", kind)
		}
		r.llama3()
		return
	case kind == nil || kind == "none":
		if r.form.untruncated || r.form.queryScale { // whose config.json means YaRN where it says nothing
			scale = map[string]any{"rope_type": "default", "rope_theta": r.fields["rope_theta"]}
			r.fields["rope_parameters"] = scale
		}
		if r.form.queryScale {
			scale["llama_4_scaling_beta"] = 0
		}
		return
	case kind == "linear":
		own.take("factor", "rope.scaling.factor")
	case kind == "yarn":
		own.take("factor", "rope.scaling.factor")
		own.take("original_max_position_embeddings", "rope.scaling.original_context_length")
		own.take("beta_fast", "rope.scaling.yarn_beta_fast")
		own.take("beta_slow", "rope.scaling.yarn_beta_slow")
		if x, found := r.number("rope.scaling.attn_factor"); found && factor > 0 {
			scale["attention_factor"] = x * (0.1*math.Log(factor) + 1)
		}
		scale["truncate"] = !r.form.untruncated
		if r.form.queryScale {
			scale["llama_4_scaling_beta"] = 0
			own.take("llama_4_scaling_beta", "attention.temperature_scale")
			if own.take("mscale_all_dim", "rope.scaling.yarn_log_multiplier") {
				scale["mscale"] = 1
			}
		}
	default:
		r.fail(r.arch+".rope.scaling.type", "%s, want none, linear or yarn", shortValue(kind))
	}
	if r.err == nil {
		r.err = own.err
	}
	r.fields["rope_scaling"] = scale
}

// long sets the fields of a longrope.
func (r *ggufReader) long(kind any) {
	if kind != nil && kind != "none" && kind != "longrope" {
		r.fail(r.arch+".rope.scaling.type", "%v beside the tensor %s, want one of them", kind, ropeLong)
		return
	}
	scale := map[string]any{"rope_type": "longrope", "long_factor": r.vector(ropeLong), "short_factor": r.vector(ropeShort)}
	own := *r
	own.fields = scale
	original := own.count("original_max_position_embeddings", "rope.scaling.original_context_length")
	r.fields["original_max_position_embeddings"] = original
	context, _ := r.number("context_length")
	usual := Rope{Kind: RopeLong, Factor: max(1, context/float64(original)), OriginalPositions: original}.AttentionScale()
	if x, found := r.number("rope.scaling.attn_factor"); found && math.Abs(x-usual) > 1e-6*usual {
		own.take("attention_factor", "rope.scaling.attn_factor")
	}
	r.err = cmp.Or(r.err, own.err)
	r.fields["rope_scaling"] = scale
}

// vector returns the elements of a tensor of factors.
func (r *ggufReader) vector(name string) []float32 {
	t := r.tensors[name]
	if t.Type != gguf.F32 || len(t.Shape) != 1 || t.Shape[0] < 1 || t.Shape[0] > maxCount/4 {
		r.fail(name, "it is %s of %v, want a vector of f32", t.Type, t.Shape)
		return nil
	}
	b, have := make([]byte, 4*t.Shape[0]), make([]float32, t.Shape[0])
	if err := r.file.ReadAt(t.Name, b, 0); err != nil {
		r.err = err
		return nil
	}
	if err := t.Type.Decode(have, b); err != nil {
		r.err = err
		return nil
	}
	return have
}

// llama3 finds the numbers of Llama 3's rope from its factors.
func (r *ggufReader) llama3() {
	theta, _ := r.number("rope.freq_base")
	have := r.vector("rope_freqs.weight")
	if r.err != nil {
		return
	}
	rope, err := llama3Rope(theta, have)
	if err != nil {
		r.err = fmt.Errorf("rope_freqs.weight: %w", err)
	} else if rope.Kind != "" {
		r.fields["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": rope.Factor, "low_freq_factor": rope.LowFreqFactor,
			"high_freq_factor": rope.HighFreqFactor, "original_max_position_embeddings": rope.OriginalPositions}
	}
}

// llama3Rope returns the rope of Llama 3 that has these factors, the zero Rope if they are all 1. Its ends are those of all of Meta's
// models.
func llama3Rope(theta float64, factors []float32) (Rope, error) {
	rope := Rope{Kind: RopeLlama3, Theta: theta, Dim: 2 * len(factors), Factor: float64(slices.Max(factors)), LowFreqFactor: 1, HighFreqFactor: 4}
	if rope.Factor == 1 && slices.Min(factors) == 1 {
		return Rope{}, nil
	}
	lengths := []float64{8192}
	for i, x := range factors { // a factor between the ends tells how far it is from them
		if x := float64(x); x > 1 && x < rope.Factor {
			length := 2 * math.Pi * math.Pow(theta, float64(2*i)/float64(rope.Dim))
			lengths[0] = math.Round(length * ((1/x-1/rope.Factor)/(1-1/rope.Factor)*(rope.HighFreqFactor-rope.LowFreqFactor) + rope.LowFreqFactor))
			break
		}
	}
	for n := 1.0; n <= maxCount; n *= 2 { // without such a factor several lengths give these
		lengths = append(lengths, n)
	}
	near := func(a, b float32) bool { return math.Abs(float64(a-b)) <= 1e-5*float64(b) }
	for _, n := range lengths {
		if !(n >= 1 && n <= maxCount) {
			continue
		}
		if rope.OriginalPositions = int(n); rope.Check() == nil && slices.EqualFunc(llama3Factors(rope), factors, near) {
			return rope, nil
		}
	}
	return Rope{}, fmt.Errorf("its factors are not those of a rope of Llama 3: %w", snug.ErrConfig)
}
