package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/snug-ml/snug"
)

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
	}{{"Vocab", c.Vocab, c.Dim}, {"Hidden", c.widestHidden(), c.Dim}, {"Heads", c.Heads, c.widestHead()}, {"Context", positions, c.Dim},
		{"PerLayerVocab", c.PerLayerVocab, max(1, c.Layers*c.PerLayer)}} {
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
