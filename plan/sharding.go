package plan

import (
	"fmt"
	"math"
	"slices"
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
	// ShardWeights divides the matrices of the model too, as ZeRO-3 does: a rank holds its part of them, two layers, and the
	// matrix in use, see accum.Pages. The ranks send the matrices for each pass through the model. Under adapters a rank
	// holds all gradients, as with ShardState.
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

// part returns what a rank has of n bytes or elements, if the ranks divide them.
func (t Task) part(divided bool, n int64) int64 {
	if !divided {
		return n
	}
	ranks := int64(t.Ranks)
	return (n + ranks - 1) / ranks
}

// shardedWeights are the weights that the ranks divide.
type shardedWeights struct {
	bytes, pages int64 // of all of them
	held         int64 // of the whole matrices that a rank holds beside the one in use: those of two layers
	used         int64 // of the largest one that can be held
	large        int64 // of the largest one that cannot, such as an embedding; 0 if there is none
	whole        int64 // elements of parameters that train and are not divided
	longest      int64 // elements of the largest matrix
	layer        int64 // and of the largest one of the layers
}

// shardedWeights returns the matrices that the ranks divide: all, except those that train beside adapters.
func (t Task) shardedWeights(r Run) (s shardedWeights) {
	if r.Shard != ShardWeights {
		return s
	}
	beside := slices.Clone(t.Beside)
	of := func(p tensor) int64 {
		if len(p.shape) != 2 {
			return 0
		}
		if !p.linear {
			return p.len() * r.elem()
		}
		return t.frozenBytes(r, p)
	}
	var sizes []int64
	for p := range t.Model.tensors() {
		if i := slices.IndexFunc(beside, func(shape []int) bool { return slices.Equal(shape, p.shape) }); i >= 0 && !p.linear {
			beside = slices.Delete(beside, i, i+1)
			continue
		}
		n := of(p)
		if n == 0 {
			if t.Rank == 0 {
				s.whole += int64(p.times) * p.len()
			}
			continue
		}
		s.bytes, s.pages, s.longest = s.bytes+int64(p.times)*n, s.pages+int64(p.times), max(s.longest, p.len())
		if sizes = append(sizes, n); p.linear {
			s.layer = max(s.layer, p.len())
		}
	}
	_, _, layers := t.parts(of)
	s.held = min(s.bytes, 2*slices.Max(layers))
	for _, n := range sizes {
		if n > s.held {
			s.large = max(s.large, n)
		} else {
			s.used = max(s.used, n)
		}
	}
	return s
}

// partAlign divides the bytes of the parts of divided weights.
const partAlign = 1024

// weightsHeld returns the bytes that a rank holds of the weights that the ranks divide: its part, and whole matrices.
func (t Task) weightsHeld(s shardedWeights) int64 {
	return t.part(true, s.bytes) + s.pages*partAlign/2 + min(s.bytes, s.held+s.used+s.large)
}

// dividesGradients reports whether a rank holds its part of the gradients: also if it trains weights that are divided.
func (t Task) dividesGradients(r Run) bool {
	return r.Shard == ShardGradients || r.Shard == ShardWeights && t.Rank == 0
}

// bucketBytes returns the bytes of the buckets of gradients, and of the memory through which parameters of 16 bits are sent.
// A bucket ends with the parameter that brings it to t.Bucket elements.
func (t Task) bucketBytes(r Run, trained, largest int64) int64 {
	if r.Shard == Replicate {
		return 0
	}
	const align = 256 // of the parts, in elements
	if s := t.shardedWeights(r); s.bytes > 0 && t.Rank == 0 {
		// Each matrix is a bucket. A buffer for the largest one serves others too, but a tied one is held for the whole
		// backward pass. Matrices that read the same input, such as q, k and v, are open together.
		buffers := s.longest + s.layer + s.layer/2
		if t.Model.Head.Tied {
			buffers += s.layer
		}
		n := 4*(buffers+4*partAlign*int64(t.Ranks)) + 4*s.whole
		if r.elem() == 2 {
			n += 2 * min(s.whole, int64(t.Bucket))
		}
		return n
	}
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
// goes on: two thirds of its time hide them. Divided weights are gathered for each pass, while the layer before is
// computed.
func (t Task) network(r Run, f *fixed, w work) (sent int64, waits float64) {
	if t.Ranks <= 1 {
		return 0, 0
	}
	trained, others, d := f.trained, float64(t.Ranks-1), t.Device
	buckets := min(math.Ceil(float64(trained)/float64(t.Bucket)), float64(f.params))
	times := 1.0 // that the gradients are added
	if t.dividesGradients(r) {
		times = float64(r.Window)
	}
	gradients := times * 4 * float64(trained) * others / float64(t.Ranks)
	updated := trained
	if f.divided.bytes > 0 && t.Rank == 0 { // the others are sent when they are gathered
		updated = f.divided.whole
	}
	back := float64(t.trainedElem(r)) * float64(updated) * others / float64(t.Ranks)
	time := func(bytes, messages float64) float64 { return bytes/d.Network + messages*d.Latency }
	during, after := time(gradients, times*buckets*others), time(back, buckets*others)
	if r.Shard == Replicate { // the sums come back at once, in float32
		back = gradients
		during, after = 2*during, 0
	}
	hidden := times * 2 / 3 * w.seconds * float64(r.Micro)
	if f.divided.bytes > 0 {
		passes := float64(r.Window) * (2 + w.again)
		weights := passes * float64(f.divided.bytes) * others / float64(t.Ranks)
		compute := float64(r.Window) * float64(r.Micro) * w.seconds
		gather := time(weights, passes*float64(f.divided.pages)*others)
		waits, hidden = max(0, gather-compute), hidden*max(0, 1-gather/compute)
		back += weights
	}
	during = max(during-hidden, during/(times*buckets))
	waits += during + after
	return int64(gradients + back), waits
}
