package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/plan"
)

// shardAlign divides the blocks of state that package quant8 makes.
const shardAlign = 256

// makeShards makes the gradients of a rank, and so divides the parameters.
func (t *Trainer[B]) makeShards() (err error) {
	o := &t.options
	if _, ok := o.Reducer.(accum.SendReceiver); !ok {
		return fmt.Errorf("the Reducer is no accum.SendReceiver, which Shard wants: %w", snug.ErrConfig)
	}
	list, values, chunks := make([]accum.Param, len(t.params)), make(map[string]snug.View, len(t.params)), map[string]int{}
	for i, p := range t.params {
		list[i], values[p.name] = accum.Param{Name: p.name, Len: p.n}, p.value
		if size := p.value.DType().Size(); p.key != "" {
			chunks[p.name] = t.weights.Chunk(p.n*size) / size
		}
	}
	t.once = len(chunks) == 0 && o.Shard != plan.ShardGradients
	t.value = func(name string) snug.View { return values[name] }
	t.found = make([]float64, 2+o.Reducer.Size())
	t.shards, err = accum.NewSharded(list, accum.ShardedOptions{
		Reducer: o.Reducer, Whole: t.once, Bucket: o.Bucket, Align: shardAlign, Device: t.params[0].value.Device(),
		Chunk: func(name string) int { return chunks[name] },
	})
	return err
}

// share returns the elements of a parameter that this rank updates.
func (t *Trainer[B]) share(p param) (lo, hi int) {
	if t.shards == nil {
		return 0, p.n
	}
	return t.shards.Range(p.name, t.options.Reducer.Rank())
}

// part returns the part of a parameter that this rank updates, and its first element.
func (t *Trainer[B]) part(p param) (lo int, part snug.View, err error) {
	if p.key != "" {
		lo, b, err := t.weights.Part(p.key)
		dt := p.value.DType()
		return lo / dt.Size(), device.As(snug.SliceView(b), dt), err
	}
	lo, hi := t.share(p)
	part, err = slice(p.value, lo, hi)
	return lo, part, err
}

// change calls do with the part of a parameter that this rank updates, and with its first element.
func (t *Trainer[B]) change(p param, do func(lo int, part snug.View) error) error {
	if dt := p.value.DType(); p.key != "" {
		return t.weights.Update(p.key, func(lo int, b []byte) error { return do(lo/dt.Size(), device.As(snug.SliceView(b), dt)) })
	}
	lo, part, err := t.part(p)
	if err != nil {
		return err
	}
	return do(lo, part)
}

// divided returns the key of a parameter that lies in an accum.Pages, its number of elements, and a vector of its type
// without elements.
func (t *Trainer[B]) divided(m Paged, name string, v snug.View) (none snug.View, n int, key string, err error) {
	key, dt, n := m.Paged(name)
	if key == "" {
		return v, v.Len(), "", nil
	}
	if t.weights == nil || t.options.Shard != plan.ShardWeights {
		return v, 0, "", fmt.Errorf("parameter %q is in pages, which wants ShardWeights, with the model's accum.Pages as Reducer: %w", name, snug.ErrConfig)
	}
	none, _, err = snug.MakeView(snug.CPU(), dt, 0)
	return none, n, key, err
}

// slice returns elements lo to hi-1. An empty part begins at element 0, as the end of a vector has no address.
func slice(v snug.View, lo, hi int) (snug.View, error) {
	if lo == hi {
		lo, hi = 0, 0
	}
	return v.Slice(lo, hi)
}

// shifted returns fill for a part that begins at element lo.
func shifted(fill FirstValue, lo int) FirstValue {
	if fill == nil || lo == 0 {
		return fill
	}
	return func(at int, w []float32) error { return fill(lo+at, w) }
}

// gradient returns the gradient of what this rank updates of a parameter.
func (t *Trainer[B]) gradient(p param) (grad snug.View, err error) {
	if t.shards == nil {
		return t.window.Gradient(p.name)
	}
	_, grad, err = t.shards.Part(p.name)
	return grad, err
}

// gather sends the parts of the parameters to all ranks.
func (t *Trainer[B]) gather() error {
	if t.shards == nil {
		return nil
	}
	return t.shards.Gather(t.value)
}

// accumulateShards is accumulate with shards.
func (t *Trainer[B]) accumulateShards(ctx context.Context, batches []B) (all fused.Loss, err error) {
	more, err := t.missingPasses(len(batches))
	if err != nil {
		return all, err
	}
	t.weighs = t.weighs[:0]
	for _, b := range batches {
		t.weighs = append(t.weighs, t.model.Weight(b))
	}
	if err := t.shards.Start(t.weighs); err != nil {
		return all, err
	}
	empty := func(first bool) error {
		if more == 0 || first != t.once {
			return nil
		}
		return t.pass(ctx, more, batches[0], t.into, t.shards.BeginEmpty, t.shards.End)
	}
	if err := empty(true); err != nil {
		return all, err
	}
	for i, b := range batches {
		if err := t.shards.Begin(); err != nil {
			return all, err
		}
		loss, err := t.model.Backprop(ctx, b, t.Scale(), t.into)
		if err != nil {
			return all, fmt.Errorf("micro-batch %d: %w", i, err)
		}
		if err := t.shards.End(); err != nil {
			return all, err
		}
		all = all.Plus(loss)
	}
	if err := empty(false); err != nil {
		return all, err
	}
	return all, t.shards.Finish()
}

// gradients yields the gradients of the window, or this rank's parts.
func (t *Trainer[B]) gradients() iter.Seq2[string, snug.View] {
	if t.shards == nil {
		return t.window.Gradients()
	}
	return func(yield func(string, snug.View) bool) {
		none := true
		for name, g := range t.shards.Gradients() {
			none = false
			if !yield(name, g) {
				return
			}
		}
		if _, empty, err := t.shards.Part(t.params[0].name); none && err == nil { // a Scaler wants a gradient
			yield(t.params[0].name, empty)
		}
	}
}

// joinStats returns the statistics of the gradients of all ranks. The overflows are those of this rank.
func (t *Trainer[B]) joinStats(own amp.Stats) (amp.Stats, error) {
	if t.shards == nil {
		return own, nil
	}
	r := t.options.Reducer
	clear(t.found)
	if own.NonFinite == 0 {
		t.found[0] = own.Norm * own.Norm
	}
	t.found[1], t.found[2+r.Rank()] = float64(own.Elements), float64(own.NonFinite)
	if err := r.Sum(t.found); err != nil {
		return own, err
	}
	all := amp.Stats{Norm: math.Sqrt(t.found[0]), Gradients: len(t.params), Elements: int(t.found[1])}
	for _, n := range t.found[2:] {
		all.NonFinite += int(n)
	}
	if all.NonFinite > 0 {
		all.Norm = math.NaN()
	}
	for _, o := range own.Overflows {
		lo, _ := t.shards.Range(o.Name, r.Rank())
		o.Index += lo
		all.Overflows = append(all.Overflows, o)
	}
	return all, nil
}

// overflowsElsewhere names the ranks that have gradients that are not finite.
func (t *Trainer[B]) overflowsElsewhere() string {
	var list []string
	for rank, n := range t.found[2:] {
		if n > 0 {
			list = append(list, fmt.Sprintf("%.0f elements of gradients are not finite on rank %d", n, rank))
		}
	}
	return strings.Join(list, "; ")
}

// What rank 0 announces while it writes a checkpoint.
const (
	sendNothing   = iota // the checkpoint is written, or has failed
	sendWeights          // all ranks gather the weights that they divide
	sendMasters          // all ranks send their master weights
	sendOptimizer        // and their state
)

// announce tells all ranks on rank 0, or returns on the others, what comes next.
func (t *Trainer[B]) announce(what int) error {
	t.sums[0] = 0
	if !t.options.follows() {
		t.sums[0] = float64(what)
	}
	return t.options.Reducer.Sum(t.sums[:1])
}

// collectPart writes a part of a checkpoint, on rank 0.
func (t *Trainer[B]) collectPart(what int, w io.Writer) error {
	if err := t.announce(what); err != nil {
		return err
	}
	return t.agree(t.send(what, w))
}

// sendParts sends, on the other ranks, what rank 0 announces.
func (t *Trainer[B]) sendParts() (failed error) {
	for {
		if err := t.announce(sendNothing); err != nil {
			return err
		}
		what := int(t.sums[0])
		if what == sendNothing {
			return failed
		}
		err := t.send(what, nil)
		if t.halfway && err == nil {
			err = t.stopped()
		}
		if err := t.agree(err); failed == nil {
			failed = err
		}
	}
}

func (t *Trainer[B]) send(what int, w io.Writer) error {
	switch what {
	case sendWeights:
		return t.writeWeights(w)
	case sendMasters:
		return t.master.WriteShards(w, t.shards)
	}
	return t.opt.WriteShards(w, t.shards)
}

// writeWeights writes the parameters to w on rank 0. On the others w is nil; they gather with rank 0 the parameters that the
// ranks divide. After an error of w the gathers go on, so that later ones find the ranks in the same order.
func (t *Trainer[B]) writeWeights(w io.Writer) (failed error) {
	for _, p := range t.params {
		if !t.saves(p) {
			continue
		}
		v := p.value
		if p.key != "" {
			b, err := t.weights.Acquire(p.key, p.n*v.DType().Size())
			if err != nil {
				return errors.Join(failed, err)
			}
			v = device.As(snug.SliceView(b), v.DType())
		}
		if w != nil && failed == nil {
			failed = writeValues(w, v)
		}
		if p.key != "" {
			if err := t.weights.Release(p.key, false); err != nil {
				return errors.Join(failed, err)
			}
		}
	}
	return failed
}

// readWeights reads what writeWeights wrote. Of a parameter that the ranks divide it keeps this rank's part.
func (t *Trainer[B]) readWeights(r io.Reader) error {
	for _, p := range t.params {
		if !t.saves(p) {
			continue
		}
		if p.key == "" {
			if err := readValues(r, p.value); err != nil {
				return err
			}
			continue
		}
		size := p.value.DType().Size()
		err := t.change(p, func(lo int, part snug.View) error {
			if err := skip(r, lo*size); err != nil {
				return err
			}
			if err := readValues(r, part); err != nil {
				return err
			}
			return skip(r, (p.n-lo-part.Len())*size)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// skip reads n bytes.
func skip(r io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}
