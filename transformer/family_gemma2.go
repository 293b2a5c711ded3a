package transformer

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug/internal/strictjson"
)

func init() {
	register(family{
		name: "gemma2", class: "Gemma2", mlx: "model.", names: gemmaNames, layers: gemmaLayers,
		gguf: ggufForm{arch: "gemma2", activation: GELUTanh, tiedHead: true, scaledEmbedding: true, scoreCap: true, logitCap: true, period: 2, headWidth: gemmaWidth(46)},
		std:  defaults{vocab: 256000, dim: 2304, hidden: 9216, layers: 26, heads: 8, kvHeads: 4, headDim: 256, context: 8192, bos: 2, eos: 1, pad: 0, tied: true},
		fields: func(f *fields, c *Config) {
			window := c.gemma(f)
			c.cap(f, "attn_logit_softcapping", &c.ScoreCap, 50)
			c.cap(f, "final_logit_softcapping", &c.LogitCap, 30)
			c.windowsByType(f, window, func(i int) bool { return i%2 == 0 })
			c.rope(f)
		},
	})
}

// gemmaNames are the names of Gemma 2 and 3, whose halves have norms before and after.
var gemmaNames = llamaNames.with(func(n *names) {
	n.attentionPost, n.mlpNorm, n.mlpPost = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
})

// gemmaWidth returns what llama.cpp takes the scale of scores to be the root of: the part of the width that a head has in the
// model with the most layers, and the elements of a head in the others.
func gemmaWidth(most int) func(c *Config) int {
	return func(c *Config) int {
		if c.Layers == most {
			return c.Dim / c.Heads
		}
		return c.HeadDim
	}
}

func gemmaLayers(c *Config) {
	plainLayers(c)
	c.PostNorms = true
}

// gemma has what Gemma 2 and 3 share. Their file may also have hidden_act, which transformers does not look at.
func (c *Config) gemma(f *fields) (window int) {
	c.counts(f, nil)
	c.activation(f, "hidden_activation", "gelu_pytorch_tanh")
	f.ignore("hidden_act")
	c.NormPlusOne = true
	c.bias(f, false)
	f.put("query_pre_attn_scalar", scalar(c.ScoreScale))
	x := get(f, "query_pre_attn_scalar", 256.0)
	if f.err == nil && !(x >= 1e-6 && x <= maxCount) {
		f.fail("query_pre_attn_scalar", "%v, want a number from 1e-6 to %d", x, maxCount)
	}
	c.ScoreScale = 1 / math.Sqrt(x)
	c.EmbeddingScale = math.Sqrt(float64(c.Dim))
	c.bidirectional(f)
	if f.has("sliding_window_size") && bytesOf(f, "sliding_window_size") == bytesOf(f, "sliding_window") {
		f.ignore("sliding_window_size") // of the first Gemma 2
	}
	window, _ = c.window()
	window = cmp.Or(window, 4096)
	loose(f, "sliding_window", &window, 4096)
	return window
}

// cap has a soft cap; null is none.
func (c *Config) cap(f *fields, name string, limit *float64, standard float64) {
	nullable(f, name, limit, standard)
	if f.has(name) && !(*limit > 0) {
		f.fail(name, "%v, want a positive number or null", *limit)
	}
}

// scalar returns s^-2, as an integer if it is one up to rounding.
func scalar(s float64) any {
	x := 1 / (s * s)
	if whole := math.Round(x); math.Abs(x-whole) < 1e-9*x && whole < maxCount {
		return int(whole)
	}
	return strictjson.Float(x)
}
