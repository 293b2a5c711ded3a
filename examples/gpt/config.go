package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/transformer"
)

// preset is the size of a model and of its training run.
type preset struct {
	name               string
	vocab, dim         int
	layers, heads      int
	context            int // tokens in a sequence
	microBatch, window int // sequences in a micro-batch, micro-batches in a step
	steps              int
	lr                 float32
	lossRows           int // rows of logits that exist at a time on the CPU; elsewhere see fitLossRows
	chunk              int // elements of a page of optimizer state
	hostShare          int // with offload, 1/hostShare of the state stays in host memory
	text               int // bytes of text to read at most
	heldOut            int // sequences to measure the loss on
	sampled            int // tokens to write at the end
}

var presets = []preset{
	{
		name: "tiny", vocab: 320, dim: 32, layers: 2, heads: 2, context: 32, microBatch: 1, window: 4,
		steps: 20, lr: 3e-3, lossRows: 16, chunk: 512, hostShare: 4, text: 1 << 20, heldOut: 8, sampled: 16,
	}, {
		name: "small", vocab: 1024, dim: 128, layers: 4, heads: 4, context: 128, microBatch: 1, window: 4,
		steps: 200, lr: 1e-3, lossRows: 64, chunk: 4096, hostShare: 4, text: 4 << 20, heldOut: 16, sampled: 96,
	}, {
		name: "34m", vocab: 16384, dim: 512, layers: 8, heads: 8, context: 512, microBatch: 2, window: 4,
		steps: 20, lr: 6e-4, lossRows: 64, chunk: 65536, hostShare: 16, text: 8 << 20, heldOut: 2, sampled: 16,
	},
}

func presetNamed(name string) (preset, error) {
	var names []string
	for _, p := range presets {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return preset{}, fmt.Errorf("unknown preset %q, want one of %s", name, strings.Join(names, ", "))
}

// technique is one way to save memory.
type technique int

const (
	useAMP technique = iota
	useAccum
	useRemat
	useQuant8
	useAttention
	useOffload
	numTechniques
)

var techniqueNames = []string{"amp", "accum", "remat", "quant8", "attention", "offload"}

// techniques is a set of techniques.
type techniques [numTechniques]bool

func allTechniques() (t techniques) {
	for i := range t {
		t[i] = true
	}
	return t
}

// names returns the techniques of the set in a fixed order; never nil.
func (t techniques) names() []string {
	names := []string{}
	for i, on := range t {
		if on {
			names = append(names, techniqueNames[i])
		}
	}
	return names
}

// String returns "all", "none" or the names with plus signs between them.
func (t techniques) String() string {
	switch t {
	case allTechniques():
		return "all"
	case techniques{}:
		return "none"
	}
	return strings.Join(t.names(), "+")
}

// without takes the techniques that a comma-separated list names out of t.
func (t techniques) without(list string) (techniques, error) {
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		i := slices.Index(techniqueNames, name)
		if i < 0 {
			return t, fmt.Errorf("unknown technique %q, want some of %s", name, strings.Join(techniqueNames, ","))
		}
		t[i] = false
	}
	return t, nil
}

// config has everything that the losses of a run depend on, and how the run is limited, saved and watched.
type config struct {
	preset
	on     techniques
	rule   string     // optimizer: a name of optimizers, or empty for adamw
	policy amp.Policy // element types
	seed   uint64
	ends   []int   // last steps of the run before it was extended, ascending
	first  float64 // loss on held-out text before training, in a resumed run

	limit     int64         // limit of the bytes held at one time; 0 is none
	host      int64         // limit of the bytes of paged state in host memory; 0 is a share of the state
	fit       accum.Batch   // micro-batches that fit in limit, if there is one
	saves     bool          // whether the run has checkpoints
	saveEvery int           // steps between checkpoints
	reducer   accum.Reducer // joins the ranks, or is nil
	ranks     int
	shard     plan.Sharding // what the ranks divide
	poison    int           // step that gets a NaN in its gradients, to see what happens; 0 is none
}

// optimizers are the names of -optimizer, and by what they multiply the learning rate of a preset.
var optimizers = map[string]float32{"adamw": 1, "": 1, "apollo": 5, "apollo-mini": 5, "galore": 5, "schedule-free": 2.5}

// lowRank is the rank of apollo and galore: a quarter of the width, as in their papers. It is 0 for others.
func (c config) lowRank() int {
	if c.rule == "apollo" || c.rule == "galore" {
		return c.dim / 4
	}
	return 0
}

// optimizer returns the rule.
func (c config) optimizer() quant8.Rule {
	switch c.rule {
	case "apollo", "apollo-mini":
		return quant8.Apollo{Rank: c.lowRank(), Tensor: c.rule == "apollo-mini", Beta2: 0.95, WeightDecay: 0.01}
	case "galore":
		return quant8.GaLore{Rank: c.lowRank(), Beta2: 0.95, WeightDecay: 0.01}
	case "schedule-free":
		return quant8.ScheduleFree{Beta2: 0.95, WeightDecay: 0.01}
	}
	return quant8.AdamW{Beta2: 0.95, WeightDecay: 0.01}
}

// architecture returns a GPT: LayerNorm, one matrix for q, k and v, GELU, and an output layer that shares the
// embedding's table. Of the matrices only the one before GELU has a bias.
func (c config) architecture() *transformer.Config {
	return &transformer.Config{
		Family: transformer.Custom, Vocab: c.vocab, Dim: c.dim, Hidden: 4 * c.dim, Layers: c.layers,
		Heads: c.heads, KVHeads: c.heads, HeadDim: c.dim / c.heads, Context: c.context,
		LayerNorm: true, NormEps: 1e-5, PackedQKV: true, UpBias: true, Activation: transformer.GELUTanh, LearnedPositions: true,
		Windows: make([]int, c.layers), ScoreScale: 1 / math.Sqrt(float64(c.dim/c.heads)), EmbeddingScale: 1, Tied: true, InitStd: 0.02,
	}
}

// policyOf returns the policy of a run: parameters and logits in float32, and with mixed precision all else in the type
// low.
func policyOf(on techniques, low snug.DType) amp.Policy {
	p := amp.Policy{Params: snug.F32, Compute: snug.F32, Output: snug.F32}
	if on[useAMP] {
		p.Compute = low
	}
	return p
}

func (c config) stateBits() int {
	if c.on[useQuant8] {
		return 8
	}
	return 32
}

// batch returns the micro-batches of a step, whose samples are sequences. The number of sequences of a step does not
// depend on the techniques.
func (c config) batch() accum.Batch {
	all := c.microBatch * c.window
	switch {
	case c.fit.Window > 0:
		return c.fit
	case c.ranks > 1: // some have nothing to do when there are more ranks than sequences
		micro := c.microBatch
		if !c.on[useAccum] {
			micro = (all + c.ranks - 1) / c.ranks
		}
		return accum.Batch{Global: all, Micro: micro, Window: (all + c.ranks*micro - 1) / (c.ranks * micro), Ranks: c.ranks}
	case c.on[useAccum]:
		return accum.Batch{Global: all, Micro: c.microBatch, Window: c.window, Ranks: 1}
	}
	return accum.Batch{Global: all, Micro: all, Window: 1, Ranks: 1}
}

// rank returns the number of this rank, 0 for a run without others.
func (c config) rank() int {
	if c.reducer == nil {
		return 0
	}
	return c.reducer.Rank()
}

// learningRate warms up over a tenth of the run and falls linearly to a tenth of its peak. An extension does the same
// over its own steps, so that the rates of earlier steps do not depend on it.
func (c config) learningRate(step int) float32 {
	start, end, peak := 0, c.steps, c.lr*optimizers[c.rule]
	for _, e := range c.ends {
		if step < e {
			end = e
			break
		}
		start = e
	}
	step, steps := step-start, end-start
	warm := max(1, steps/10)
	if step < warm {
		return peak * float32(step+1) / float32(warm)
	}
	if c.rule == "schedule-free" {
		return peak
	}
	done := float32(step-warm) / float32(max(1, steps-warm))
	return peak * (1 - 0.9*done)
}
