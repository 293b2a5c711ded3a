package amp

import (
	"fmt"
	"iter"
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/snug-ml/snug/internal/sweep"
)

// pass is what a traversal does to every gradient.
type pass struct {
	op     string
	began  *bool   // of a Scaler, unless nil: becomes true when gradients may have changed
	factor float32 // multiplies; 1 writes nothing
	limit  float32 // cuts off magnitudes above; noLimit writes nothing
	noF16  bool    // refuse float16
}

var noLimit = float32(math.Inf(1))

// run goes over all gradients and returns the statistics of what they hold
// then.
func (p pass) run(grads iter.Seq2[string, snug.View]) (Stats, error) {
	s := traversals.Get().(*traversal)
	defer s.release()
	s.pass = p
	if err := s.run(grads); err != nil {
		return Stats{}, err
	}
	return s.stats(grads)
}

// traversal is two walks over gradients: the first checks them all, the second
// works. Traversals are pooled, with the functions they hand to the walker, so
// that one allocates nothing.
type traversal struct {
	pass
	checked, worked counts
	err             error
	found           measure.Gather
	holds           *snug.Device // sweeps there may join
	overflows       []snug.NonFinite

	check, work, find func(name string, grad snug.View) bool
}

type counts struct{ gradients, elements int }

var traversals = sync.Pool{New: func() any {
	s := new(traversal)
	s.check, s.work, s.find = s.checkOne, s.workOne, s.findOne
	return s
}}

// release clears s for its next use.
func (s *traversal) release() {
	_ = s.letGo() // there is another error
	s.pass, s.checked, s.worked, s.err, s.overflows = pass{}, counts{}, counts{}, nil, nil
	s.found.Reset()
	traversals.Put(s)
}

func (s *traversal) run(grads iter.Seq2[string, snug.View]) error {
	if grads == nil {
		return fmt.Errorf("amp: %s: no gradients, the walker is nil: %w", s.op, snug.ErrConfig)
	}
	grads(s.check)
	if s.err == nil && s.began != nil && s.checked.gradients == 0 {
		s.err = fmt.Errorf("amp: %s: no gradients: the walk is empty: %w", s.op, snug.ErrConfig)
	}
	if s.err != nil {
		return s.err
	}
	grads(s.work)
	if err := s.letGo(); s.err == nil {
		s.err = err
	}
	if err := s.found.Collect(); s.err == nil {
		s.err = err
	}
	if s.err == nil && s.worked != s.checked {
		s.err = fmt.Errorf("amp: %s: the walker yielded %d gradients of %d elements, then %d of %d, want the same twice: %w", s.op,
			s.checked.gradients, s.checked.elements, s.worked.gradients, s.worked.elements, snug.ErrConfig)
	}
	return s.err
}

func (s *traversal) checkOne(name string, grad snug.View) bool {
	switch {
	case s.err != nil: // the walker goes on though it was told to stop
	case s.noF16 && grad.DType() == snug.F16:
		s.err = fmt.Errorf("amp: %s: gradient %q is f16, whose range ends where a scale is needed, want f32 or bf16: %w", s.op, name, snug.ErrDType)
	case !grad.DType().IsFloat():
		s.err = fmt.Errorf("amp: %s: gradient %q is %s, want f32, f16 or bf16: %w", s.op, name, grad.DType(), snug.ErrDType)
	default:
		if _, err := snug.CommonDevice(grad); err != nil {
			s.err = fmt.Errorf("amp: %s: gradient %q: %w", s.op, name, err)
		}
	}
	s.checked.add(grad)
	return s.err == nil
}

func (c *counts) add(grad snug.View) {
	c.gradients++
	c.elements += grad.Len()
}

func (s *traversal) workOne(_ string, grad snug.View) bool {
	if s.err != nil {
		return false
	}
	if s.began != nil {
		*s.began = true
	}
	s.worked.add(grad)
	s.err = s.sweep(grad)
	return s.err == nil
}

// sweep does the pass over a gradient.
func (s *traversal) sweep(grad snug.View) (err error) {
	if grad.Len() == 0 || !grad.DType().IsFloat() {
		return nil
	}
	if dev := grad.Device(); dev != s.holds { // first, for On collects what was found on another device
		if err := s.letGo(); err != nil {
			return err
		}
		device.Hold(dev)
		s.holds = dev
	}
	job := sweepJob{grad: grad, factor: s.factor, limit: s.limit, ordinal: int64(s.worked.gradients)}
	if job.records, err = s.found.On(grad); err != nil {
		return err
	}
	return device.Run(grad.Device(), job)
}

// letGo ends the Hold of a device.
func (s *traversal) letGo() error {
	dev := s.holds
	s.holds = nil
	return device.Release(dev)
}

// stats returns the results of the pass. If there are non-finite values, it reads
// every gradient once more to count them for each.
func (s *traversal) stats(grads iter.Seq2[string, snug.View]) (Stats, error) {
	total := s.found.Total
	stats := Stats{
		Norm: math.Sqrt(total.Squares), Gradients: s.checked.gradients, Elements: s.checked.elements,
		NonFinite: int(total.NonFinite),
	}
	if stats.NonFinite == 0 {
		return stats, nil
	}
	s.factor, s.limit = 1, noLimit
	grads(s.find)
	stats.Overflows = s.overflows
	return stats, s.err
}

// findOne notes the non-finite values of a gradient.
func (s *traversal) findOne(name string, grad snug.View) bool {
	if s.err != nil {
		return false
	}
	s.found.Reset()
	if s.err = s.sweep(grad); s.err == nil {
		s.err = s.found.Collect()
	}
	if s.found.Total.NonFinite > 0 {
		s.overflows = append(s.overflows, s.found.Found(name))
	}
	return s.err == nil
}

// sweepJob multiplies a gradient by factor or cuts it off at limit, and measures
// the result.
type sweepJob struct {
	grad          snug.View
	records       measure.Records // one for each piece
	factor, limit float32         // one of them has an effect at most
	ordinal       int64
	joined        *driver.Joined[sweepJob]
}

func (*sweepJob) Kernel() string { return "amp.sweep" }

func (j *sweepJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.grad, &j.records.View)
	for _, o := range j.joined.Rest() {
		o.Operands(yield)
	}
}

// Join implements [driver.Joiner].
func (j *sweepJob) Join(next driver.Job) bool {
	n, ok := next.(*sweepJob)
	if !ok || n.factor != j.factor || n.limit != j.limit || !measure.Fits(&j.records, &n.records, j.grad, n.grad, n.ordinal, j.joined) {
		return false
	}
	if !driver.Join(&j.joined, j, n, measure.MaxVectors, (*sweepJob).memory) {
		return false
	}
	j.joined.Units += measure.Pieces(n.grad)
	return true
}

func (j *sweepJob) memory() [3]driver.Mem { return [3]driver.Mem{*device.Mem(&j.grad)} }

func (j sweepJob) Run() {
	sweepTask.Run(cpu.Chunks(j.grad.Len(), j.piece()), j)
	for _, o := range j.joined.Rest() {
		o.Run()
	}
}

func (j *sweepJob) piece() int { return measure.Piece(j.grad.Device(), j.grad.Len()) }

// tile is the number of elements that are changed and then measured, while the
// caches hold them.
const tile = 1 << 13

var sweepTask = cpu.NewTask(func(j *sweepJob, piece int) {
	lo, hi := cpu.Chunk(j.grad.Len(), j.piece(), piece)
	sum := j.records.At(piece)
	for ; lo < hi; lo += tile {
		end := min(lo+tile, hi)
		var squares float64
		switch {
		case j.limit != noLimit:
			sweep.Clamp(j.grad, lo, end, j.limit)
			squares = sweep.Squares(j.grad, lo, end)
		case j.factor == 1:
			squares = sweep.Squares(j.grad, lo, end)
		default:
			squares = sweep.ScaleSquares(j.grad, lo, end, j.factor)
		}
		sum.Add(squares, j.grad, lo, end, j.ordinal)
	}
})
