package amp

import (
	"fmt"
	"iter"
	"math"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// sweepGradients multiplies all gradients by factor in one pass and returns
// the statistics of the products. A factor of 1 writes nothing.
func sweepGradients(op string, grads iter.Seq2[string, snug.View], factor float32, only32 bool) (Stats, error) {
	s := traversals.Get().(*traversal)
	defer s.release()
	s.op, s.factor, s.only32, s.measure = op, factor, only32, true
	if err := s.run(grads); err != nil {
		return Stats{}, err
	}
	return s.stats(grads), nil
}

// scaleGradients multiplies all gradients by factor.
func scaleGradients(op string, grads iter.Seq2[string, snug.View], factor float32) error {
	s := traversals.Get().(*traversal)
	defer s.release()
	s.op, s.factor = op, factor
	return s.run(grads)
}

// traversal is two walks over gradients: the first checks them all, the second
// works. Traversals are pooled, with the functions they hand to the walker, so
// that one allocates nothing.
type traversal struct {
	op      string
	factor  float32
	only32  bool // float32 gradients only
	measure bool

	checked, worked counts
	err             error
	dev             *snug.Device      // of the records in use
	remote          snug.Array[uint8] // the records, when dev is not the CPU
	used            int               // how many of them
	records         [pieces]record
	total           record
	first           *Location

	check, work, find func(name string, grad snug.View) bool
	copied            []record // memory for the records of a device
}

type counts struct{ gradients, elements int }

var traversals = sync.Pool{New: func() any {
	s := new(traversal)
	s.check, s.work, s.find = s.checkOne, s.workOne, s.findOne
	return s
}}

// release clears s for its next use.
func (s *traversal) release() {
	*s = traversal{check: s.check, work: s.work, find: s.find, copied: s.copied}
	traversals.Put(s)
}

func (s *traversal) run(grads iter.Seq2[string, snug.View]) error {
	if grads == nil {
		return fmt.Errorf("amp: %s: no gradients, the walker is nil: %w", s.op, snug.ErrConfig)
	}
	grads(s.check)
	if s.err != nil || s.factor == 1 && !s.measure {
		return s.err
	}
	grads(s.work)
	s.collect()
	if s.err == nil && s.worked != s.checked {
		s.err = fmt.Errorf("amp: %s: the walker yielded %d gradients of %d elements, then %d of %d, want the same twice: %w", s.op,
			s.checked.gradients, s.checked.elements, s.worked.gradients, s.worked.elements, snug.ErrConfig)
	}
	return s.err
}

func (s *traversal) checkOne(name string, grad snug.View) bool {
	switch {
	case s.only32 && grad.DType() != snug.F32:
		s.err = fmt.Errorf("amp: %s: gradient %q is %s, want f32: %w", s.op, name, grad.DType(), snug.ErrDType)
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
	s.worked.add(grad)
	if grad.Len() == 0 || !grad.DType().IsFloat() {
		return true
	}
	job := sweepJob{grad: grad, factor: s.factor, ordinal: int64(s.worked.gradients)}
	if s.measure {
		if job.records, s.err = s.recordsOn(grad.Device()); s.err != nil {
			return false
		}
		s.used = max(s.used, cpu.Chunks(grad.Len(), job.piece()))
	}
	if grad.Device().IsCPU() {
		job.Run()
		return true
	}
	queued := job
	s.err = grad.Device().Launch(&queued)
	return s.err == nil
}

// recordsOn returns memory for the records on dev. They gather what all
// gradients on dev hold, until the walk comes to another device.
func (s *traversal) recordsOn(dev *snug.Device) (snug.View, error) {
	if s.dev != dev {
		if s.collect(); s.err != nil {
			return snug.View{}, s.err
		}
		if !dev.IsCPU() {
			var err error
			if s.remote, err = snug.Make[uint8](dev, devicePieces*recordSize); err != nil {
				return snug.View{}, err
			}
		}
		s.dev = dev
	}
	if dev.IsCPU() {
		return snug.SliceView(recordBytes(s.records[:])), nil
	}
	return s.remote.View(), nil
}

// collect adds the records in use to the total, in the order of the pieces,
// and frees them.
func (s *traversal) collect() {
	records := s.records[:s.used]
	if s.dev != nil && !s.dev.IsCPU() {
		if s.copied == nil {
			s.copied = make([]record, devicePieces)
		}
		records = s.copied[:s.used]
		err := s.remote.CopyOut(recordBytes(records))
		if e := s.remote.Close(); err == nil {
			err = e
		}
		if s.err == nil {
			s.err = err
		}
	}
	for i := range records {
		s.total.merge(&records[i])
	}
	s.dev, s.used, s.records = nil, 0, [pieces]record{}
}

func (s *traversal) stats(grads iter.Seq2[string, snug.View]) Stats {
	if s.total.nonFinite > 0 {
		s.worked = counts{}
		grads(s.find)
	}
	return Stats{
		Norm:      math.Sqrt(s.total.squares),
		Elements:  s.checked.elements,
		NonFinite: int(s.total.nonFinite),
		First:     s.first,
	}
}

// findOne stops the walk at the gradient of the first non-finite value.
func (s *traversal) findOne(name string, grad snug.View) bool {
	s.worked.add(grad)
	if int64(s.worked.gradients) < s.total.ordinal {
		return true
	}
	s.first = &Location{Name: name, Index: int(s.total.index), Value: s.total.value}
	return false
}

// pieces is the number of ranges that a gradient is split into, each of which
// adds to a record of its own: the sums then depend on lengths only. Devices
// other than the CPU take more, to be busy with one gradient.
const (
	pieces       = 64
	devicePieces = 4096
)

// minPiece is the least number of elements that is worth a worker, and
// minDevicePiece a block of threads.
const (
	minPiece       = 1 << 14
	minDevicePiece = 1 << 11
)

// record is what one piece of all gradients holds. Its layout is the same on
// every device.
type record struct {
	squares   float64 // sum of squares
	nonFinite int64   // number of non-finite elements, the first of them at
	ordinal   int64   // this gradient, counted from 1,
	index     int64   // this element of it,
	value     float32 // with this value
	_         [4]byte
}

const recordSize = int(unsafe.Sizeof(record{}))

func recordBytes(r []record) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r))), len(r)*recordSize)
}

func (r *record) merge(o *record) {
	r.squares += o.squares
	if o.nonFinite == 0 {
		return
	}
	if r.nonFinite == 0 || o.ordinal < r.ordinal {
		r.ordinal, r.index, r.value = o.ordinal, o.index, o.value
	}
	r.nonFinite += o.nonFinite
}

// add takes the sum of the squares of elements lo to hi-1 of a gradient. It is
// finite just if they are; if not, they are counted.
func (r *record) add(squares float64, grad snug.View, lo, hi int, ordinal int64) {
	r.squares += squares
	if squares-squares == 0 {
		return
	}
	lo = sweep.FirstNotBelow(grad, lo, hi, 1, sweep.Infinity)
	scratch := tiles.Get(half.Chunk)
	defer tiles.Put(scratch)
	for ; lo < hi; lo += half.Chunk {
		tile := (*scratch)[:min(half.Chunk, hi-lo)]
		half.Load(tile, grad, lo)
		r.count(tile, lo, ordinal)
	}
}

// tiles are the float32 scratch through which 16-bit values are counted.
var tiles cpu.Scratch

// count counts the non-finite values of x, elements base and up of a gradient.
func (r *record) count(x []float32, base int, ordinal int64) {
	for i, v := range x {
		if v-v == 0 {
			continue
		}
		if r.nonFinite == 0 {
			r.ordinal, r.index, r.value = ordinal, int64(base+i), v
		}
		r.nonFinite++
	}
}

// sweepJob multiplies a gradient by factor and measures the product.
type sweepJob struct {
	grad    snug.View
	records snug.View // a record for each piece, or empty to measure nothing
	factor  float32
	ordinal int64
}

func (*sweepJob) Kernel() string { return "amp.sweep" }

func (j *sweepJob) Operands(yield func(*driver.Mem)) {
	yield(j.grad.Mem())
	yield(j.records.Mem())
}

func (j *sweepJob) Run() {
	sweepTask.Run(cpu.Chunks(j.grad.Len(), j.piece()), *j)
}

// piece returns the elements of a piece. On other devices than the CPU it is a
// multiple of the least, so that pieces start where wide accesses do.
func (j *sweepJob) piece() int {
	n := j.grad.Len()
	if j.grad.Device().IsCPU() {
		return max(minPiece, cpu.Chunks(n, pieces))
	}
	return max(1, cpu.Chunks(n, devicePieces*minDevicePiece)) * minDevicePiece
}

var sweepTask = cpu.NewTask(func(j *sweepJob, piece int) {
	lo, hi := cpu.Chunk(j.grad.Len(), j.piece(), piece)
	var sum *record
	if m := j.records.Mem(); m.Host != nil {
		sum = &unsafe.Slice((*record)(m.Host), m.Size/recordSize)[piece]
	}
	switch {
	case sum == nil:
		sweep.Scale(j.grad, lo, hi, j.factor)
	case j.factor == 1:
		sum.add(sweep.Squares(j.grad, lo, hi), j.grad, lo, hi, j.ordinal)
	default:
		sum.add(sweep.ScaleSquares(j.grad, lo, hi, j.factor), j.grad, lo, hi, j.ordinal)
	}
})
