package accum

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Bucket is a contiguous part of a window's gradients.
type Bucket struct {
	Index  int
	Grads  snug.View // their means; with Shard, of which only the rank's own part is reduced
	Params []Param   // that lie in it, in order
}

// Reducer is how the windows of data-parallel training are joined: one of its
// ranks each. All ranks make the same calls in the same order, and every call
// waits for the others. A vector has the same length and type everywhere. The
// part of a rank is that of [Shard].
//
// A [Window] with a Reducer makes no call while it accumulates (what others call
// no_sync), and reduces its buckets, in order, when their last gradients arrive:
// the result is the mean over the samples of all ranks, weighted as the
// micro-batches are. [Local] joins goroutines of one process.
type Reducer interface {
	Rank() int // from 0
	Size() int // ranks
	// Sum replaces x by the sums over all ranks, added in the order of the ranks.
	Sum(x []float64) error
	// AllReduce replaces v, of float32 or bfloat16, by the sum over all ranks.
	AllReduce(v snug.View) error
	// ReduceScatter replaces the rank's own part of v by the sum over all ranks.
	// The rest is undefined then.
	ReduceScatter(v snug.View) error
	// AllGather replaces the parts of v by those of the ranks that own them.
	AllGather(v snug.View) error
}

// reduction is the buckets of a Window and how far they are.
type reduction struct {
	reducer  Reducer // nil without data parallelism
	shard    bool
	onBucket func(Bucket) error
	buckets  []bucket
	done     int   // buckets that are reduced
	total    total // of all ranks
	sums     [2]float64
}

type bucket struct {
	Bucket
	lo      int // where it begins in the vector
	waiting int // parameters that have not arrived
}

// total is what all ranks together have in this window.
type total struct {
	known  bool
	weight float64
	micros int
}

// init cuts the parameters into buckets.
func (r *reduction) init(params []param, vector snug.View, o *Options) error {
	r.reducer, r.shard, r.onBucket = o.Reducer, o.Shard, o.OnBucket
	hi, size := len(params), 0
	for i := len(params) - 1; i >= 0; i-- {
		size += params[i].Len
		params[i].bucket = len(r.buckets)
		if i > 0 && (o.Bucket == 0 || size < o.Bucket) {
			continue
		}
		b := bucket{Bucket: Bucket{Index: len(r.buckets)}}
		for _, p := range params[i:hi] {
			b.Params = append(b.Params, p.Param)
		}
		if size > 0 {
			b.lo = params[i].lo
		}
		var err error
		if b.Grads, err = vector.Slice(b.lo, b.lo+size); err != nil {
			return err
		}
		r.buckets = append(r.buckets, b)
		hi, size = i, 0
	}
	r.reset()
	return nil
}

// reset begins a window.
func (r *reduction) reset() {
	r.done, r.total = 0, total{}
	for i := range r.buckets {
		r.buckets[i].waiting = len(r.buckets[i].Params)
	}
}

// arrive notes that a parameter has its gradient of the open micro-batch. In the
// last one it hands on the buckets that are whole, in order, so that all ranks
// reduce the same.
func (w *Window) arrive(op string, p *param) error {
	if !w.last || p.arrived || w.reducer == nil && w.onBucket == nil {
		return nil
	}
	p.arrived = true
	w.buckets[p.bucket].waiting--
	for w.done < len(w.buckets) && w.buckets[w.done].waiting == 0 {
		if err := w.reduce(w.weight + w.micro); err != nil {
			return fmt.Errorf("accum: %s: %w", op, err)
		}
	}
	return nil
}

// finish hands on all buckets that are left.
func (w *Window) finish() error {
	for w.done < len(w.buckets) {
		if err := w.reduce(w.weight); err != nil {
			return err
		}
	}
	return nil
}

// reduce hands on the next bucket. weight is that of the window on this rank.
func (w *Window) reduce(weight float64) error {
	b := &w.buckets[w.done]
	if w.reducer != nil {
		if err := w.reduceBucket(b, weight); err != nil {
			return fmt.Errorf("bucket %d: %w", b.Index, err)
		}
	}
	w.done++
	if w.onBucket == nil {
		return nil
	}
	if err := w.onBucket(b.Bucket); err != nil {
		return fmt.Errorf("bucket %d: %w", b.Index, err)
	}
	return nil
}

// reduceBucket replaces the means of this rank by those of all: each is
// multiplied by its share of the weight, and the products are added.
func (w *Window) reduceBucket(b *bucket, weight float64) error {
	if !w.total.known {
		micros := w.micros
		if w.open {
			micros++
		}
		w.sums = [2]float64{weight, float64(micros)}
		if err := w.reducer.Sum(w.sums[:]); err != nil {
			return err
		}
		w.total = total{known: true, weight: w.sums[0], micros: int(w.sums[1])}
	}
	share := float32(0)
	if weight > 0 {
		share = float32(weight / w.total.weight)
	}
	if share != 1 {
		for _, q := range b.Params {
			p := &w.params[w.index[q.Name]]
			if err := w.accumulate(p, snug.View{}, 0, share); err != nil {
				return fmt.Errorf("parameter %q: %w", q.Name, err)
			}
		}
	}
	if w.shard {
		return w.reducer.ReduceScatter(b.Grads)
	}
	return w.reducer.AllReduce(b.Grads)
}

// part returns the elements of a parameter's gradient that this rank has, from
// lo on.
func (w *Window) part(p *param) (lo int, grad snug.View) {
	if !w.shard || p.Len == 0 {
		return 0, p.acc
	}
	b := &w.buckets[p.bucket]
	first, last := Shard(b.Grads.Len(), w.reducer.Rank(), w.reducer.Size())
	first, last = max(first+b.lo-p.lo, 0), min(last+b.lo-p.lo, p.Len)
	if first >= last {
		return 0, snug.View{}
	}
	grad, err := p.acc.Slice(first, last)
	if err != nil {
		return 0, snug.View{} // the part lies within the parameter
	}
	return first, grad
}
