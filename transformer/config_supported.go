package transformer

import (
	"fmt"
	"slices"
)

// supported returns an error unless the stages can compute what c describes, and the family has such layers.
func (c *Config) supported() error {
	f, e, want := c.family(), &c.Experts, *c
	if w := c.whole(); w == nil || !slices.Contains(w.texts, c.Family) {
		want.Whole = ""
	}
	if e.Count == 0 && f.std.experts.Count > 0 {
		return bad("Experts.Count", "0, and models of the family %q have experts", c.Family)
	}
	f.layers(&want)
	if err := c.differs(want); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		bad  bool
		why  string
	}{
		{"Activation", c.Gated && c.Activation != SiLU && c.Activation != GELUTanh, fmt.Sprintf("a gate by %q is not supported: want %q or %q", c.Activation, SiLU, GELUTanh)},
		{"Activation", !c.Gated && c.Activation == SiLU, fmt.Sprintf("%q without a gate is not supported", c.Activation)},
		{"LogitCap", c.LogitCap != 0 && (c.LogitCap < 0x1p-100 || c.LogitCap > 0x1p100), "a cap of logits is 0 or 2^-100 to 2^100"},
		{"ResidualScale", c.ResidualScale != 0 && (c.PostNorms || c.Parallel || !c.scalesMixers() || c.latent() || e.Count > 0), "a factor of halves goes without PostNorms, Parallel, Latent, experts, and mixers but Mamba2"},
		{"Factors", c.Factors != (Factors{}) && (c.PostNorms || c.Parallel || c.latent() || e.Count > 0 || c.LayerScalar), "factors of parts go without PostNorms, Parallel, Latent and experts"},
		{"Factors.Gate", c.Factors.Gate != 0 && !c.Gated, "an MLP without a gate has none"},
		{"Mamba.Beside", c.Mamba.Beside && (c.PostNorms || c.Parallel || c.latent() || c.SharedKV > 0), "attention beside a Mamba2 goes without PostNorms, Parallel, Latent and SharedKV"},
		{"PackedQKV", c.PackedQKV && c.QKNorm, "q, k and v in one matrix have no norms"},
		{"OutputGate", c.OutputGate && (c.packed() || c.latent() || c.SharedKV > 0 || c.Full != (FullAttention{})), "a gate of attention's output goes without PackedQKV, Latent, SharedKV and Full"},
		{"UpBias", c.UpBias && c.Gated, "only an MLP without a gate has a bias there alone"},
		{"UpBias", !c.Gated && !c.UpBias && !c.MLPBias && c.Activation != ReLU2, fmt.Sprintf("without a gate %q takes a bias", c.Activation)},
		{"Gated", e.Count > 0 && (!c.Gated || c.LearnedPositions), "experts have a gate, and their models have a rope"},
		{"Parallel", c.Parallel && (c.PostNorms || e.Count > 0 || c.Mixers != nil || c.Latent != (Latent{}) || c.LayerScalar), "halves that read the same are attention and an MLP without norms behind them"},
		{"OneNorm", c.OneNorm && !c.Parallel, "halves that follow each other have norms of their own"},
		{"Experts.Clamped", e.Clamped && c.Activation != SiLU, fmt.Sprintf("the clamped activation is of %q", SiLU)},
		{"Rope.Sections", c.Rope.Sections != [3]int{} && !f.std.sections && c.Family != Custom, fmt.Sprintf("models of the family %q have one position", c.Family)},
		{"LocalRope.Sections", c.LocalRope.Sections != [3]int{}, "layers with a window have one position"},
	} {
		if f.bad {
			return bad(f.name, "%s", f.why)
		}
	}
	return nil
}
