package quant8

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/optim"
)

// limit returns the constants of a step of p and its state, with the step size that
// follows from their norms. The job has no factors.
func (a *Optimizer) limit(dev *snug.Device, q *param, h optim.Hyper, j stepJob) (optim.Hyper, error) {
	sums := squareSums.Get().(*squares)
	defer squareSums.Put(sums)
	sums.parameter, sums.update = 0, 0
	if q.replaced > 0 {
		j.states = 0 // the norms do not depend on them
	}
	j.sums, j.rule, j.signed = sums, h.Measure(), j.signs(h.Rule)
	if j.p.Len() > 0 {
		if err := a.run(dev, q, 0, j); err != nil {
			return h, err
		}
	}
	if a.o.joint() {
		both := [...]float64{sums.parameter, sums.update}
		if err := a.o.SumNorms(q.name, &both); err != nil {
			return h, fmt.Errorf("norms of all shards: %w", err)
		}
		sums.parameter, sums.update = both[0], both[1]
	}
	if sum := sums.parameter + sums.update; sum-sum != 0 {
		return h, fmt.Errorf("a norm of the parameter or of its update is not finite: %w", snug.ErrNonFinite)
	}
	return h.Sized(sums.parameter, sums.update, q.total), nil
}

// squares are sums of squares over a parameter.
type squares struct {
	parameter, update float64
	items             [][2]float64 // sums of the items of a job
}

var squareSums = sync.Pool{New: func() any { return new(squares) }}

// begin prepares the sums of the items of a job.
func (s *squares) begin(items int) {
	s.items = slices.Grow(s.items[:0], items)[:items]
	clear(s.items)
}

// end adds the sums of the items, in order.
func (s *squares) end() {
	for _, x := range s.items {
		s.parameter += x[0]
		s.update += x[1]
	}
}

// perPair is the approximate number of elements that each pair of sums of another device
// covers. maxPairs is the maximum number of pairs.
const (
	perPair  = 1 << 12
	maxPairs = 1 << 11
)

// pairsOf returns the pairs of sums of n elements.
func pairsOf(n int) int { return min(cpu.Chunks(n, perPair), maxPairs) }

// pairSize is the size of a pair of float64.
const pairSize = 16

// measureOn adds to j.sums on a device other than the CPU, and waits for the device.
func measureOn(dev *snug.Device, j stepJob) error {
	there, err := snug.Make[uint8](dev, pairSize*pairsOf(j.p.Len()))
	if err != nil {
		return err
	}
	j.sums.begin(pairsOf(j.p.Len()))
	if err = device.Queue(dev, measureJob{j, there.View()}); err == nil {
		err = there.CopyOut(pairBytes(j.sums.items))
	}
	if e := there.Close(); err == nil {
		err = e
	}
	j.sums.end()
	return err
}

// pairBytes returns the memory of pairs.
func pairBytes(pairs [][2]float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(pairs))), pairSize*len(pairs))
}

// measureJob writes pairs of sums of squares. Their totals are the totals that Run of
// stepJob adds to its sums.
type measureJob struct {
	stepJob
	pairs snug.View
}

func (j *measureJob) Kernel() string { return "quant8.squares" }

// Join is not that of the stepJob: nothing joins.
func (*measureJob) Join(driver.Job) bool { return false }

func (j *measureJob) Operands(yield func(*driver.Mem)) {
	j.stepJob.Operands(yield)
	yield(device.Mem(&j.pairs))
}

// Run writes the first pair only; the memory is 0.
func (j *measureJob) Run() {
	var total squares
	j.sums = &total
	j.stepJob.Run()
	copy(snug.Host[uint8](j.pairs), pairBytes([][2]float64{{total.parameter, total.update}}))
}
