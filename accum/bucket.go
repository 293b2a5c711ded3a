package accum

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// Bucket is a contiguous part of a window's gradients.
type Bucket struct {
	Index  int
	Grads  snug.View // their means; with Shard, only the rank's own part is reduced
	Params []Param   // that lie in it, in order
}

// Reducer is how the windows of data-parallel training are joined: one of its
// ranks each. All ranks make the same calls in the same order, and every call
// waits for the others. A vector has the same length and type everywhere. The
// part of a rank is the part that [Shard] returns.
//
// A [Window] with a Reducer makes no call while it accumulates (what others call
// no_sync). It reduces its buckets, in order, on a goroutine of its own, from when
// their last gradients arrive until [Window.End]: the result is the mean over the
// samples of all ranks, weighted as the micro-batches are. [Local] joins goroutines
// of one process.
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
	// AllGather replaces each part of v by the part of the rank that owns it.
	AllGather(v snug.View) error
}

// Overlapper is a [Reducer] that has a queue of its own on the device of the gradients. A [Window] or a [Sharded] calls Mark
// when a bucket is complete, so that the bucket is reduced while the device's queue goes on with the backward pass.
type Overlapper interface {
	// Mark notes that v, a bucket, is complete when the work queued so far on its device is done.
	Mark(v snug.View) error
	// Turn returns the device with the Reducer's queue. Work that is queued there on v runs after the work that Mark saw.
	// It is queued before the next call with v.
	Turn(v snug.View) (*snug.Device, error)
}

// reduction is the buckets of a Window and how far they are.
type reduction struct {
	reducer  Reducer // nil without data parallelism
	shard    bool
	onBucket func(Bucket) error
	buckets  []bucket
	done     int   // buckets that were handed on
	total    total // of all ranks, once the window is full

	// While a window is reduced, a goroutine takes buckets from queue until that
	// is closed, and then puts the first error into result.
	queue  chan handed
	result chan outcome
}

// outcome is how the goroutine of a reduction has ended.
type outcome struct {
	err    error
	panics any // what a Reducer or OnBucket has panicked with
}

type bucket struct {
	Bucket
	lo      int // where it begins in the vector
	waiting int // parameters that have not arrived
}

// handed is a bucket that is whole on this rank.
type handed struct {
	bucket int
	weight float64 // of the window on this rank
	micros int
	seed   uint64 // of the rounding
	call   orderedCall
}

// total is what all ranks together have in this window.
type total struct {
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

// reset begins a window. It waits for a reduction that is under way.
func (r *reduction) reset() {
	_ = r.drain() // the window is thrown away, or was full
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
		if err := w.handOn(w.weight+w.micro, w.micros+1); err != nil {
			return fmt.Errorf("accum: %s: %w", op, err)
		}
	}
	return nil
}

// finish hands on all buckets that are left, and waits for them.
func (w *Window) finish() error {
	for w.done < len(w.buckets) {
		if err := w.handOn(w.weight, w.micros); err != nil {
			return err
		}
	}
	return w.wait()
}

// handOn hands on the next bucket: to the goroutine that reduces, so that the
// backward pass goes on meanwhile.
func (w *Window) handOn(weight float64, micros int) error {
	b := &w.buckets[w.done]
	w.done++
	if w.reducer == nil {
		return w.call(b)
	}
	if o, ok := w.reducer.(Overlapper); ok {
		if err := o.Mark(b.Grads); err != nil {
			return fmt.Errorf("bucket %d: %w", b.Index, err)
		}
	}
	if w.queue == nil {
		w.queue, w.result = make(chan handed, len(w.buckets)), make(chan outcome, 1)
		go w.reduceAll(w.queue, w.result)
	}
	call, err := reserve(w.reducer)
	if err != nil {
		return fmt.Errorf("bucket %d: %w", b.Index, err)
	}
	w.queue <- handed{b.Index, weight, micros, w.roundingSeed(snug.View{}), call}
	return nil
}

// wait waits until all buckets that were handed on are reduced, and panics as the
// goroutine that did has.
func (r *reduction) wait() error {
	o := r.drain()
	if o.panics != nil {
		panic(o.panics)
	}
	return o.err
}

// drain waits until all buckets that were handed on are reduced.
func (r *reduction) drain() outcome {
	if r.queue == nil {
		return outcome{}
	}
	close(r.queue)
	o := <-r.result
	r.queue, r.result = nil, nil
	return o
}

func (w *Window) call(b *bucket) error {
	if w.onBucket == nil {
		return nil
	}
	if err := w.onBucket(b.Bucket); err != nil {
		return fmt.Errorf("bucket %d: %w", b.Index, err)
	}
	return nil
}

// reduceAll reduces the buckets of a window. After an error or a panic it leaves the rest.
func (w *Window) reduceAll(queue <-chan handed, result chan<- outcome) {
	first, ended := error(nil), false
	defer func() {
		o := outcome{err: first, panics: recover()}
		if !ended && o.panics == nil {
			o.err = fmt.Errorf("a Reducer or OnBucket has ended its goroutine: %w", snug.ErrConfig)
		}
		for h := range queue { // after a panic
			h.call.skip()
		}
		result <- o
	}()
	known := false
	for h := range queue {
		if first != nil {
			h.call.skip()
			continue
		}
		b := &w.buckets[h.bucket]
		first = h.call.run(func(r Reducer) (err error) {
			if !known {
				w.total, err = h.sum(r)
				known = true
			}
			if err == nil {
				err = w.reduce(r, b, h)
			}
			return err
		})
		if first != nil {
			first = fmt.Errorf("bucket %d: %w", h.bucket, first)
			continue
		}
		first = w.call(b)
	}
	ended = true
}

// sum returns what all ranks have.
func (h handed) sum(r Reducer) (total, error) {
	sums := [2]float64{h.weight, float64(h.micros)}
	err := r.Sum(sums[:])
	return total{sums[0], int(sums[1])}, err
}

// reduce replaces the means of this rank by the means of all ranks: each is multiplied by
// its share of the weight, and the products are added.
func (w *Window) reduce(r Reducer, b *bucket, h handed) error {
	share := float32(0)
	if h.weight > 0 {
		share = float32(h.weight / w.total.weight)
	}
	if share != 1 {
		dev := w.device
		if o, ok := w.reducer.(Overlapper); ok {
			var err error
			if dev, err = o.Turn(b.Grads); err != nil {
				return err
			}
		}
		if err := w.decayAll(dev, b.Params, share, h.seed); err != nil {
			return err
		}
	}
	if w.shard {
		return r.ReduceScatter(b.Grads)
	}
	return r.AllReduce(b.Grads)
}

// decayAll is decay of some parameters.
func (w *Window) decayAll(dev *snug.Device, params []Param, beta float32, seed uint64) (err error) {
	device.Hold(dev)
	defer func() { err = errors.Join(err, device.Release(dev)) }()
	for _, q := range params {
		if err := w.decay(dev, &w.params[w.index[q.Name]], beta, seed); err != nil {
			return fmt.Errorf("parameter %q: %w", q.Name, err)
		}
	}
	return nil
}

// decay queues acc = beta·acc for a parameter, on the window's device or on another queue of it.
func (w *Window) decay(dev *snug.Device, p *param, beta float32, seed uint64) error {
	switch {
	case p.Len == 0:
		return nil
	case w.dtype == snug.F32:
		return accumulateJob{acc: p.acc, beta: beta}.launch(dev)
	}
	return roundedJob{acc: p.acc, beta: beta, seed: seed, tensor: p.stream}.launch(dev)
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
