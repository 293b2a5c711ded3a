package plan

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug/quant8"
)

// Sharding is what the ranks of data-parallel training divide among themselves, as ZeRO does (Rajbhandari et al. 2020,
// arXiv:1910.02054). Each rank updates its part of every parameter, and then sends it to the others.
type Sharding int

const (
	// Replicate divides nothing: each rank holds all gradients, master weights and state.
	Replicate Sharding = iota
	// ShardState divides the optimizer's state and the master weights, as ZeRO-1 does.
	ShardState
	// ShardGradients divides the gradients too, as ZeRO-2 does: a rank holds its part of them, and two buckets; three
	// with a tied embedding. The ranks add the gradients of each micro-batch, where otherwise they add those of a step.
	ShardGradients
	// ShardWeights divides the state and the master weights, and the matrices that are frozen in fewer than 16 bits under
	// adapters, as ZeRO-3 does: a rank holds its part of these matrices, two layers, and the matrix in use, see accum.Pages. The
	// ranks send the matrices for each pass through the model.
	ShardWeights
)

var shardingNames = [...]string{"replicate", "state", "gradients", "weights"}

// String returns "replicate", "state", "gradients" or "weights".
func (s Sharding) String() string {
	if s < 0 || int(s) >= len(shardingNames) {
		return fmt.Sprintf("Sharding(%d)", int(s))
	}
	return shardingNames[s]
}

// shardable reports whether ranks can divide the state: whether the optimizer updates parts of parameters. With
// schedule-free package train keeps the parameters in training beside their averages, which it does not divide.
func (t Task) shardable() bool {
	return quant8.Elementwise(rules[t.Optimizer]) && t.Optimizer != "schedule-free"
}

// part returns what a rank has of n bytes or elements, if the ranks divide them.
func (t Task) part(divided bool, n int64) int64 {
	if !divided {
		return n
	}
	ranks := int64(t.Ranks)
	return (n + ranks - 1) / ranks
}

// shardedWeights returns the bytes of the matrices that the ranks divide, and of the whole matrices that a rank holds:
// those of two layers, and the one in use.
func (t Task) shardedWeights(r Run) (divided, held, used int64) {
	if r.Shard != ShardWeights || !r.quantized() {
		return 0, 0, 0
	}
	t.PagesFrozen = true
	for p := range t.Model.tensors() {
		if p.linear && !p.float {
			used = max(used, t.frozenBytes(r, p))
		}
	}
	w := t.pagedWeights(r)
	return w.bytes, w.two, used
}

// bucketBytes returns the bytes of the buckets of gradients, and of the memory through which parameters of 16 bits are sent.
// A bucket ends with the parameter that brings it to t.Bucket elements.
func (t Task) bucketBytes(r Run, trained, largest int64) int64 {
	if r.Shard == Replicate {
		return 0
	}
	const align = 256 // of the parts, in elements
	padding, params := int64(0), int64(0)
	for p := range t.trained() {
		padding += int64(p.times) * (-p.len() & (align - 1))
		params += int64(p.times)
	}
	buckets := min((trained+int64(t.Bucket)-1)/int64(t.Bucket), params)
	bucket, n := min(trained+padding, int64(t.Bucket)-1+largest)+align*int64(t.Ranks), 4*(padding+buckets*align*int64(t.Ranks)/2)
	if r.Shard == ShardGradients {
		several := int64(2)
		switch {
		case buckets == 1 && r.Window == 1:
			several = 1
		case buckets > 1 && t.Rank == 0 && t.Model.Head.Tied:
			several = 3
		}
		n = several * 4 * bucket
	}
	if t.trainedElem(r) == 2 {
		n += 2 * min(bucket, int64(t.Bucket))
	}
	return n
}

// network returns the bytes that a rank sends in a step, and the seconds in which it waits for those of others: a model of
// latency and bandwidth (Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994). A rank sends its
// part of a bucket to each other rank at once. The gradients of all buckets but the last are sent while the backward pass
// goes on, of which it takes two thirds of the time. Divided weights are gathered for each pass, while the layer before is
// computed.
func (t Task) network(r Run, f *fixed, w work) (sent int64, waits float64) {
	if t.Ranks <= 1 {
		return 0, 0
	}
	trained, others, d := f.trained, float64(t.Ranks-1), t.Device
	buckets := min(math.Ceil(float64(trained)/float64(t.Bucket)), float64(f.params))
	times := 1.0 // that the gradients are added
	if r.Shard == ShardGradients {
		times = float64(r.Window)
	}
	gradients := times * 4 * float64(trained) * others / float64(t.Ranks)
	back := float64(t.trainedElem(r)) * float64(trained) * others / float64(t.Ranks)
	time := func(bytes, messages float64) float64 { return bytes/d.Network + messages*d.Latency }
	during, after := time(gradients, times*buckets*others), time(back, buckets*others)
	if r.Shard == Replicate { // the sums come back at once, in float32
		back = gradients
		during, after = 2*during, 0
	}
	if hidden := times * 2 / 3 * w.seconds * float64(r.Micro); r.Shard != ShardWeights {
		during = max(during-hidden, during/(times*buckets))
	}
	waits = during + after
	if f.divided > 0 {
		passes := float64(r.Window) * (2 + w.again)
		weights := passes * float64(f.divided) * others / float64(t.Ranks)
		waits += max(0, time(weights, passes*float64(f.pages)*others)-float64(r.Window)*float64(r.Micro)*w.seconds)
		back += weights
	}
	return int64(gradients + back), waits
}
