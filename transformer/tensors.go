package transformer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// Tensors returns the parameters of the model in the order in which it uses them, with the names
// that transformers gives them when it saves the model with its head. DType is the
// published type, empty if config.json does not say it. A tied head is left out.
//
// A matrix is [out, in]; one matrix for q, k and v is [q+k+v, in]. Every expert has matrices of its own. For gpt_oss,
// whose files hold all experts of a layer in one tensor, their names are mlp.experts.E.gate_proj, up_proj and
// down_proj, where E is the number of the expert. A matrix of GPT-2 is [in, out], except the two embeddings; its c_attn
// is [in, 3·out], with q, k and v side by side. The text part of a model for images and text has the names of the published
// folders, language_model.model.*. See [Config.Check] for folders with other names.
//
// The error wraps [snug.ErrConfig], see [Config.Validate].
func (c *Config) Tensors() ([]amp.Tensor, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("transformer: Tensors: %w", err)
	}
	return c.tensors(c.layout()), nil
}

// layouts returns the layouts that a folder may have, the usual one first.
func (c *Config) layouts() []layout {
	if w := c.whole(); w != nil {
		return w.layouts
	}
	return c.names().layouts
}

func (c *Config) layout() layout { return c.layouts()[0] }

// embedding returns the name of the embedding, without the prefix.
func (c *Config) embedding() string { return c.names().embedding + ".weight" }

// positions returns the name of the table of learned positions, without the prefix.
func (c *Config) positions() string { return c.names().positions + ".weight" }

// block returns the prefix of the names of a layer.
func (c *Config) block(layer int) string { return fmt.Sprintf("%s.%d.", c.names().block, layer) }

// behind reports whether a name without the prefix is of a layer behind the last.
func (c *Config) behind(name string) bool {
	after, found := strings.CutPrefix(name, c.names().block+".")
	number, _, _ := strings.Cut(after, ".")
	layer, err := strconv.Atoi(number)
	return found && err == nil && layer >= c.Layers
}

// layerOf returns the layer of the name of a parameter, 0 for those of no layer.
func (c *Config) layerOf(name string) (layer int) {
	if _, after, found := strings.Cut(name, c.names().block+"."); found {
		number, _, _ := strings.Cut(after, ".")
		layer, _ = strconv.Atoi(number)
	}
	return min(layer, c.Layers-1)
}

// stageName returns the name of a stage of the chain, such as "layers.3.mlp".
func (c *Config) stageName(stage int) string {
	half, layer := "mlp", stage/c.halves()
	switch {
	case c.Parallel:
		half = "parallel"
	case c.AltUp.Streams > 0:
		half = "altup"
	case stage%2 == 0 && c.mixer(layer) != nil:
		half = c.mixer(layer).stage
	case stage%2 == 0:
		half = "attention"
	case c.hasExperts(layer):
		half = "experts"
	}
	return c.block(layer) + half
}

func (c *Config) tensors(in layout) []amp.Tensor { return c.tensorsOf(in).list }

// tensorsOf lists the parameters with their stages.
func (c *Config) tensorsOf(in layout) *lister {
	n := c.names()
	l := &lister{Config: c, names: n, prefix: in.body}
	l.add(c.embedding(), c.Vocab, c.Dim)
	if c.LearnedPositions {
		l.add(c.positions(), c.Context, c.Dim)
	}
	if c.PerLayer > 0 {
		l.add(n.perLayer.tokens+".weight", c.PerLayerVocab, c.Layers*c.PerLayer)
		l.add(n.perLayer.projection+".weight", c.Layers*c.PerLayer, c.Dim)
		l.add(n.perLayer.norm+".weight", c.PerLayer)
	}
	for i := 1; i < c.AltUp.Streams; i++ {
		l.linear(fmt.Sprint(n.altUp.first, i-1), c.Dim, c.Dim, false)
	}
	for i := range c.Layers {
		l.prefix, l.stage = in.body+c.block(i), c.halves()*i
		if x := c.mixer(i); x == nil {
			l.attention(c.of(i))
		} else if c.Mamba.Beside {
			l.attention(c.of(i))
			l.mamba()
		} else {
			x.list(l)
		}
		l.stage += c.halves() - 1
		if !c.OneNorm {
			l.norm(n.mlpNorm)
		}
		if c.hasExperts(i) {
			l.experts()
		}
		if !c.hasExperts(i) || c.Experts.Beside {
			l.mlp(c.of(i))
		}
		if b := &n.experts.besides; c.hasExperts(i) && c.Experts.Beside {
			l.add(b.scale, c.Dim)
			l.add(b.scales, c.Experts.Count)
			l.norm(b.mlpPost)
			l.norm(b.norm)
			l.norm(b.post)
		}
		if c.PostNorms {
			l.norm(n.mlpPost)
		}
		if c.PerLayer > 0 {
			l.linear(n.perLayer.gate, c.PerLayer, c.Dim, false)
			l.linear(n.perLayer.out, c.Dim, c.PerLayer, false)
			l.norm(n.perLayer.post)
		}
		if c.LayerScalar {
			l.add(n.scalar, 1)
		}
		if c.AltUp.Streams > 0 {
			l.altUp()
		}
	}
	l.prefix = in.body
	for i := 1; i < c.AltUp.Streams; i++ {
		l.linear(fmt.Sprint(n.altUp.last, i-1), c.Dim, c.Dim, false)
	}
	l.prefix, l.stage = in.body, c.halves()*c.Layers
	l.norm(n.norm)
	if !c.Tied {
		l.prefix = ""
		l.add(in.head, c.Vocab, c.Dim)
	}
	return l
}

func fileType(dt snug.DType) string {
	return map[snug.DType]string{snug.F32: "F32", snug.F16: "F16", snug.BF16: "BF16"}[dt]
}

// lister lists tensors.
type lister struct {
	*Config
	names  *names
	prefix string
	stage  int // the first one makes the embedding, too
	list   []amp.Tensor
	stages []int // of the parameters of list
}

func (l *lister) add(name string, shape ...int) {
	l.list = append(l.list, amp.Tensor{Name: l.prefix + name, DType: fileType(l.DType), Shape: shape})
	l.stages = append(l.stages, l.stage)
}

// linear adds a matrix with its bias.
func (l *lister) linear(name string, out, in int, bias bool) {
	if l.names.conv {
		l.add(name+".weight", in, out)
	} else {
		l.add(name+".weight", out, in)
	}
	if bias {
		l.add(name+".bias", out)
	}
}

func (l *lister) norm(name string) {
	if name == "" {
		return
	}
	l.add(name+".weight", l.Dim)
	if l.LayerNorm && !l.NoNormBias {
		l.add(name+".bias", l.Dim)
	}
}

// attention lists the first half of a layer.
func (l *lister) attention(c *Config) {
	n, queries, keys := l.names, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	shared := c.reads(l.stage / l.halves())
	l.norm(n.attentionNorm)
	if c.latent() {
		l.latent()
		return
	}
	if l.packed() {
		l.linear(n.qkv, queries+2*keys, l.Dim, l.QKVBias)
	} else {
		l.linear(n.q, c.queryRows(), l.Dim, l.QKVBias)
		if !shared {
			l.linear(n.k, keys, l.Dim, l.QKVBias)
		}
		if !c.Full.KeysAreValues && !shared {
			l.linear(n.v, keys, l.Dim, l.QKVBias)
		}
	}
	if l.QKNorm && n.perHead {
		l.add(n.qNorm+".weight", c.Heads, c.HeadDim)
		l.add(n.kNorm+".weight", c.KVHeads, c.HeadDim)
	} else if l.QKNorm {
		width, keyWidth := c.qkNorms()
		l.add(n.qNorm+".weight", width)
		if !shared {
			l.add(n.kNorm+".weight", keyWidth)
		}
	}
	if l.Sinks {
		l.add(n.sinks, l.Heads)
	}
	l.linear(n.out, l.Dim, queries, l.OutBias)
	if l.PostNorms {
		l.norm(n.attentionPost)
	}
}

// altUp lists what a layer of streams has.
func (l *lister) altUp() {
	n, a := &l.names.altUp, &l.AltUp
	l.add(n.norm+".weight", l.Dim)
	l.linear(n.router, a.Streams, l.Dim, false)
	l.linear(n.predict, a.Streams*a.Streams, a.Streams, false)
	l.linear(n.correct, a.Streams, a.Streams, false)
	l.add(n.scale, l.Dim)
	l.linear(n.left, a.Rank, l.Dim, false)
	l.linear(n.right, l.Dim, a.Rank, false)
	l.add(n.post+".weight", l.Dim)
}

// latent lists the rest of the first half of a layer with a Latent.
func (l *lister) latent() {
	n, d, queries := &l.names.latent, &l.Latent, l.Heads*l.HeadDim
	if d.QueryRank > 0 {
		l.linear(n.queryDown, d.QueryRank, l.Dim, l.QKVBias)
		l.add(n.queryNorm+".weight", d.QueryRank)
		l.linear(n.queryUp, queries, d.QueryRank, false)
	} else {
		l.linear(l.names.q, queries, l.Dim, false)
	}
	l.linear(n.down, d.Rank+d.RopeDim, l.Dim, l.QKVBias)
	l.add(n.norm+".weight", d.Rank)
	l.linear(n.up, l.Heads*(d.KeyDim+d.ValueDim), d.Rank, false)
	l.linear(l.names.out, l.Dim, l.Heads*d.ValueDim, l.OutBias)
	if l.PostNorms {
		l.norm(l.names.attentionPost)
	}
}

// mlp lists the matrices of an MLP.
func (l *lister) mlp(c *Config) {
	if l.names.gateUp != "" {
		l.linear(l.names.gateUp, 2*c.Hidden, l.Dim, l.MLPBias)
	} else {
		if l.Gated {
			l.linear(l.names.gate, c.Hidden, l.Dim, l.MLPBias)
		}
		l.linear(l.names.up, c.Hidden, l.Dim, l.MLPBias || l.UpBias)
	}
	l.linear(l.names.down, l.Dim, c.Hidden, l.MLPBias)
}

// experts lists the router and the experts of a layer.
func (l *lister) experts() {
	n, e := &l.names.experts, &l.Experts
	l.linear(n.router, e.Count, l.Dim, e.Bias)
	if e.Corrected {
		l.add(n.correction, e.Count)
		l.list[len(l.list)-1].DType = fileType(snug.F32)
	}
	for i := range e.Count {
		l.linear(n.of(i, n.gate), e.Hidden, l.Dim, e.Bias)
		l.linear(n.of(i, n.up), e.Hidden, l.Dim, e.Bias)
		l.linear(n.of(i, n.down), l.Dim, e.Hidden, e.Bias)
	}
	if e.Shared > 0 {
		l.linear(n.shared+"."+n.gate, e.Shared, l.Dim, false)
		l.linear(n.shared+"."+n.up, e.Shared, l.Dim, false)
		l.linear(n.shared+"."+n.down, l.Dim, e.Shared, false)
	}
	if e.SharedGate {
		l.linear(n.sharedGate, 1, l.Dim, false)
	}
}

// of returns the name of a part of an expert.
func (n *expertNames) of(expert int, part string) string {
	return fmt.Sprintf("%s%d.%s", n.experts, expert, part)
}

// isPerLayer reports whether a matrix is one that all layers share, see [layers.PerLayer]. It stays in floats and has no adapter.
func (c *Config) isPerLayer(name string) bool {
	n := &c.names().perLayer
	return c.PerLayer > 0 && (name == n.tokens+".weight" || name == n.projection+".weight")
}

// isHeadNorm reports whether a tensor has the weights of a norm of heads that are each head's own.
func (c *Config) isHeadNorm(name string) bool {
	n := c.names()
	return n.perHead && (strings.HasSuffix(name, "."+n.qNorm+".weight") || strings.HasSuffix(name, "."+n.kNorm+".weight"))
}

// isUnused reports whether a tensor is of keys and values of a layer that reads another's.
func (c *Config) isUnused(name string) bool {
	n := c.names()
	return c.SharedKV > 0 && strings.HasPrefix(name, n.block+".") && c.reads(c.layerOf(name)) &&
		slices.ContainsFunc([]string{n.k, n.v, n.kNorm, "self_attn.v_norm"}, func(m string) bool { return strings.Contains(name, "."+m+".") })
}

// qkNorms returns the elements of the norms of q and of k.
func (c *Config) qkNorms() (q, k int) {
	if c.names().wide || c.names().perHead {
		return c.Heads * c.HeadDim, c.KVHeads * c.HeadDim
	}
	return c.HeadDim, c.HeadDim
}

// isFixed reports whether a parameter never trains: in transformers it is a buffer.
func (c *Config) isFixed(name string) bool {
	return c.LayerScalar && strings.HasSuffix(name, "."+c.names().scalar) || c.corrects(name)
}

// corrects reports whether a parameter is that of Experts.Corrected, which is of float32 in any model.
func (c *Config) corrects(name string) bool {
	return c.Experts.Corrected && strings.HasSuffix(name, "."+c.names().experts.correction)
}

// isRouter reports whether a matrix is the matrix of a router. Such a matrix is small, and errors in it would change
// the choice of experts. So it stays in floats and has no adapter.
func (c *Config) isRouter(name string) bool {
	if n := &c.names().altUp; c.AltUp.Streams > 0 {
		for _, small := range [...]string{n.router, n.predict, n.correct} {
			if strings.HasSuffix(name, "."+small+".weight") {
				return true
			}
		}
	}
	return c.Experts.Count > 0 && strings.HasSuffix(name, c.names().experts.router+".weight")
}
