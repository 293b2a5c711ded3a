package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// sharded holds this rank's parts of the mean gradients of all ranks, and updates these parts of the parameters.
type sharded[B any] struct {
	updater[B]
	acc     *accum.Sharded
	once    bool // the ranks add their gradients once in a step
	values  map[string]snug.View
	weights []float64 // of the micro-batches of a step
	found   []float64 // in all gradients: the square of the norm, elements, and those not finite on each rank
}

// shardAlign divides the blocks of state that package quant8 makes.
const shardAlign = 256

func (*sharded[B]) traits() traits { return traits{held: true, backward: true} }

func (*sharded[B]) excludes(o *Options) []fault.Rule {
	_, sends := o.Reducer.(accum.SendReceiver)
	return []fault.Rule{
		{o.Shard == plan.ShardWeights && !o.paged(), "ShardWeights wants an accum.Pages as Reducer"},
		{o.Measure || o.CountLost, "Shard does not go with Measure and CountLost, which look at whole parameters"},
		{!sends, "the Reducer is no accum.SendReceiver, which Shard wants"},
	}
}

// make makes the gradients first, which divide the parameters.
func (s *sharded[B]) make() (err error) {
	t, o := s.t, &s.t.options
	list, chunks := make([]accum.Param, len(t.params)), map[string]int{}
	s.values = make(map[string]snug.View, len(t.params))
	for i, p := range t.params {
		list[i], s.values[p.name] = accum.Param{Name: p.name, Len: p.n}, p.value
		if size := p.value.DType().Size(); p.key != "" {
			chunks[p.name] = p.pages.Chunk(p.n*size) / size
		}
	}
	s.found, s.once = make([]float64, 2+t.ranks.Size()), len(chunks) == 0 && o.Shard != plan.ShardGradients
	s.acc, err = accum.NewSharded(list, accum.ShardedOptions{
		Reducer: o.Reducer, Whole: s.once, Bucket: o.Bucket, Align: shardAlign, Device: t.params[0].value.Device(),
		Chunk: func(name string) int { return chunks[name] },
	})
	if err != nil {
		return err
	}
	t.closes(s.acc.Close)
	for i := range t.params {
		p := &t.params[i]
		p.lo, p.hi = s.acc.Range(p.name, t.ranks.Rank())
	}
	return s.updater.make()
}

func (s *sharded[B]) bytes() meter.Bytes {
	b := s.updater.bytes()
	b[meter.Gradients] = s.acc.Bytes()
	return b
}

func (s *sharded[B]) pass(ctx context.Context, batches []B, _ float32) (all fused.Loss, err error) {
	t := s.t
	more, err := t.missingPasses(len(batches))
	if err != nil {
		return all, err
	}
	s.weights = s.weights[:0]
	for _, b := range batches {
		s.weights = append(s.weights, t.model.Weight(b))
	}
	if err := s.acc.Start(s.weights); err != nil {
		return all, err
	}
	empty := func(first bool) error {
		if more == 0 || first != s.once {
			return nil
		}
		return t.emptyPasses(ctx, more, batches[0], s.acc, func(B) error { return s.acc.BeginEmpty() }, s.acc.End)
	}
	if err := empty(true); err != nil {
		return all, err
	}
	if all, err = t.passes(ctx, batches, s.acc, func(B) error { return s.acc.Begin() }, s.acc.End); err != nil {
		return all, err
	}
	if err := empty(false); err != nil {
		return all, err
	}
	return all, s.acc.Finish()
}

// norm joins what the ranks have found. It names the gradients of this rank's parts, or else the ranks that have others.
func (s *sharded[B]) norm() (f found, err error) {
	own, err := s.t.scale.measure(s.gradients)
	if err != nil {
		return f, err
	}
	r, all := &s.t.ranks, s.found
	clear(all)
	if own.NonFinite == 0 {
		all[0] = own.Norm * own.Norm
	}
	all[1], all[2+r.Rank()] = float64(own.Elements), float64(own.NonFinite)
	if err := r.Sum(all); err != nil {
		return f, err
	}
	f.Stats = amp.Stats{Norm: math.Sqrt(all[0]), Gradients: len(s.t.params), Elements: int(all[1])}
	var elsewhere []string
	for rank, n := range all[2:] {
		if f.NonFinite += int(n); n > 0 {
			elsewhere = append(elsewhere, fmt.Sprintf("%.0f elements of gradients are not finite on rank %d", n, rank))
		}
	}
	if f.NonFinite > 0 {
		f.Norm = math.NaN()
	}
	for _, o := range own.Overflows {
		lo, _ := s.acc.Range(o.Name, r.Rank())
		o.Index += lo
		f.Overflows = append(f.Overflows, o)
	}
	f.overflows = cmp.Or(named(f.Overflows), strings.Join(elsewhere, "; "))
	return f, nil
}

// gradients yields this rank's parts, also empty ones: a Scaler wants a gradient.
func (s *sharded[B]) gradients(yield func(string, snug.View) bool) {
	for _, p := range s.t.params {
		if _, g, err := s.acc.Part(p.name); err != nil || !yield(p.name, g) {
			return
		}
	}
}

func (s *sharded[B]) apply(ctx context.Context, rate float32, norm float64) error {
	err := s.update(ctx, rate, norm, func(name string) (snug.View, error) {
		_, grad, err := s.acc.Part(name)
		return grad, err
	})
	if err != nil {
		return err
	}
	return s.gather()
}

func (s *sharded[B]) end(bool) { s.acc.Reset() }

func (s *sharded[B]) gather() error {
	return s.acc.Gather(func(name string) snug.View { return s.values[name] })
}

// parts are those of whole parameters, which all ranks send to rank 0 when it announces their number, from 1.
func (s *sharded[B]) parts() []savedPart {
	list := s.updater.parts()
	for i := range list {
		list[i].write = func(w io.Writer) error {
			if _, err := s.announce(i + 1); err != nil {
				return err
			}
			return s.t.ranks.agree(s.send(i, w))
		}
		if list[i].name == optimizerPart {
			list[i].read = func(r io.Reader) error { return s.opt.ReadShards(r) }
		}
	}
	return list
}

func (s *sharded[B]) send(i int, w io.Writer) error {
	switch p := s.updater.parts()[i]; p.name {
	case mastersPart:
		return s.master.WriteShards(w, s.acc)
	case optimizerPart:
		return s.opt.WriteShards(w, s.acc)
	default:
		return p.write(w)
	}
}

// announce says on rank 0 which part comes next, 0 for none. It returns what rank 0 says.
func (s *sharded[B]) announce(part int) (int, error) {
	next := s.t.ranks.sums[:1]
	if next[0] = float64(part); s.t.options.follows() {
		next[0] = 0
	}
	err := s.t.ranks.Sum(next)
	return int(next[0]), err
}

func (s *sharded[B]) together(save func() error) (failed error) {
	if !s.t.options.follows() {
		err := save()
		_, done := s.announce(0)
		return errors.Join(err, done)
	}
	for {
		part, err := s.announce(0)
		if err != nil {
			return err
		}
		if part == 0 {
			return failed
		}
		err = s.send(part-1, nil)
		if s.t.halfway && err == nil {
			err = s.t.stopped()
		}
		if err := s.t.ranks.agree(err); failed == nil {
			failed = err
		}
	}
}
