package transformer

import (
	"fmt"
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
// is [in, 3·out], with q, k and v side by side. The text part of a multimodal Gemma 3 has the names of the published
// folders, language_model.model.*. See [Config.Check] for folders with other names.
//
// The error wraps [snug.ErrConfig], see [Config.Validate].
func (c *Config) Tensors() ([]amp.Tensor, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("transformer: Tensors: %w", err)
	}
	return c.tensors(c.layout()), nil
}

// layout says how the names in a folder differ from the names of the family.
type layout struct {
	body string // prefix of all names except the head's
	head string // name of the head's matrix
}

// layouts returns the layouts that folders of a family may have, the usual one first.
func (c *Config) layouts() []layout {
	switch {
	case c.Multimodal: // published, and saved by transformers; as modules are named in memory since 4.52
		return []layout{{"language_model.model.", "language_model.lm_head.weight"}, {"model.language_model.", "lm_head.weight"}}
	case c.Family == "gpt2": // with a head; published, or saved without a head
		return []layout{{"transformer.", "lm_head.weight"}, {"", "lm_head.weight"}}
	}
	return []layout{{"model.", "lm_head.weight"}, {"", "lm_head.weight"}}
}

func (c *Config) layout() layout { return c.layouts()[0] }

// embedding returns the name of the embedding, without the prefix.
func (c *Config) embedding() string {
	if c.Family == "gpt2" {
		return "wte.weight"
	}
	return "embed_tokens.weight"
}

// positions returns the name of the table of learned positions, without the prefix.
func (c *Config) positions() string {
	if c.Family == "gpt2" {
		return "wpe.weight"
	}
	return "embed_positions.weight"
}

func (c *Config) tensors(names layout) []amp.Tensor {
	l := lister{dtype: fileType(c.DType)}
	l.prefix = names.body
	if c.Family == "gpt2" {
		c.gpt2(&l)
	} else {
		c.llama(&l)
	}
	if !c.Tied {
		l.prefix = ""
		l.add(names.head, c.Vocab, c.Dim)
	}
	return l.list
}

func fileType(dt snug.DType) string {
	return map[snug.DType]string{snug.F32: "F32", snug.F16: "F16", snug.BF16: "BF16"}[dt]
}

// lister lists tensors.
type lister struct {
	prefix, dtype string
	list          []amp.Tensor
}

func (l *lister) add(name string, shape ...int) {
	l.list = append(l.list, amp.Tensor{Name: l.prefix + name, DType: l.dtype, Shape: shape})
}

// linear adds a matrix [out, in] with its bias.
func (l *lister) linear(name string, out, in int, bias bool) {
	l.add(name+".weight", out, in)
	if bias {
		l.add(name+".bias", out)
	}
}

// llama lists the parameters of the families that have the names of Llama.
func (c *Config) llama(l *lister) {
	body := l.prefix
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	norm := func(name string) {
		l.add(name+".weight", c.Dim)
		if c.LayerNorm {
			l.add(name+".bias", c.Dim)
		}
	}
	l.add("embed_tokens.weight", c.Vocab, c.Dim)
	if c.LearnedPositions {
		l.add(c.positions(), c.Context, c.Dim)
	}
	for i := range c.Layers {
		l.prefix = fmt.Sprintf("%slayers.%d.", body, i)
		norm("input_layernorm")
		if c.PackedQKV {
			l.linear("self_attn.qkv_proj", queries+2*keys, c.Dim, c.QKVBias)
		} else {
			l.linear("self_attn.q_proj", queries, c.Dim, c.QKVBias)
			l.linear("self_attn.k_proj", keys, c.Dim, c.QKVBias)
			l.linear("self_attn.v_proj", keys, c.Dim, c.QKVBias)
		}
		if c.QKNorm {
			l.add("self_attn.q_norm.weight", c.HeadDim)
			l.add("self_attn.k_norm.weight", c.HeadDim)
		}
		if c.Sinks {
			l.add(sinks, c.Heads)
		}
		l.linear("self_attn.o_proj", c.Dim, queries, c.OutBias)
		norm("post_attention_layernorm")
		if c.PostNorms { // the norm after attention is the one above
			l.add("pre_feedforward_layernorm.weight", c.Dim)
		}
		if c.hasExperts(i) {
			c.listExperts(l)
		} else {
			if c.Gated {
				l.linear("mlp.gate_proj", c.Hidden, c.Dim, c.MLPBias)
			}
			l.linear("mlp.up_proj", c.Hidden, c.Dim, c.MLPBias || c.UpBias)
			l.linear("mlp.down_proj", c.Dim, c.Hidden, c.MLPBias)
		}
		if c.PostNorms {
			l.add("post_feedforward_layernorm.weight", c.Dim)
		}
	}
	l.prefix = body
	norm("norm")
}

// sinks is the name of the parameter with the sinks of a layer's heads, without the prefix of the layer.
const sinks = "self_attn.sinks"

// expertNames are the names of the router and of the experts of a layer, without the prefix of the layer.
type expertNames struct {
	router         string // without ".weight" and ".bias"
	experts        string // before the number of the expert
	gate, up, down string // of an expert, without ".weight" and ".bias"
}

func (c *Config) expertNames() expertNames {
	switch c.Family {
	case "mixtral":
		return expertNames{"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"}
	case "gpt_oss": // its files hold the experts of a layer in one tensor
		return expertNames{"mlp.router", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}
	}
	return expertNames{"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}
}

// of returns the name of a part of an expert, without ".weight" and ".bias".
func (n expertNames) of(expert int, part string) string {
	return fmt.Sprintf("%s%d.%s", n.experts, expert, part)
}

// isRouter reports whether a matrix is the matrix of a router. Such a matrix is small, and errors in it would change
// the choice of experts. So it stays in floats and has no adapter.
func (c *Config) isRouter(name string) bool {
	return c.Experts.Count > 0 && strings.HasSuffix(name, c.expertNames().router+".weight")
}

// listExperts lists the router and the experts of a layer.
func (c *Config) listExperts(l *lister) {
	n, e := c.expertNames(), c.Experts
	l.linear(n.router, e.Count, c.Dim, e.Bias)
	for i := range e.Count {
		l.linear(n.of(i, n.gate), e.Hidden, c.Dim, e.Bias)
		l.linear(n.of(i, n.up), e.Hidden, c.Dim, e.Bias)
		l.linear(n.of(i, n.down), c.Dim, e.Hidden, e.Bias)
	}
}

// gpt2 lists the parameters of GPT-2.
func (c *Config) gpt2(l *lister) {
	body := l.prefix
	norm := func(name string) {
		l.add(name+".weight", c.Dim)
		l.add(name+".bias", c.Dim)
	}
	conv := func(name string, in, out int) {
		l.add(name+".weight", in, out)
		l.add(name+".bias", out)
	}
	l.add("wte.weight", c.Vocab, c.Dim)
	l.add("wpe.weight", c.Context, c.Dim)
	for i := range c.Layers {
		l.prefix = fmt.Sprintf("%sh.%d.", body, i)
		norm("ln_1")
		conv("attn.c_attn", c.Dim, 3*c.Dim)
		conv("attn.c_proj", c.Dim, c.Dim)
		norm("ln_2")
		conv("mlp.c_fc", c.Dim, c.Hidden)
		conv("mlp.c_proj", c.Hidden, c.Dim)
	}
	l.prefix = body
	norm("ln_f")
}
