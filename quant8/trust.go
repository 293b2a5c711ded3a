package quant8

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/optim"
)

// LAMB is the rule of You et al. 2019, arXiv:1904.00962. With c1 = 1-β1^t and
// c2 = √(1-β2^t) at step t, and the Euclidean norms of a whole parameter, it computes
//
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	u = m/c1/(√v/c2 + ε) + wd·p
//	p ← p - lr·|p|/|u|·u
//
// where the trust ratio |p|/|u| is 1 if a norm is 0, and for parameters with
// ParamOptions.NoTrust. A step has two passes: one reads parameter, gradient and state
// for the norms, the other updates, with any width of the state. The norms are sums in
// float64. They have the same bits for any number of workers, and depend on Block and
// Chunk. During the step the sums take 16 bytes for every 16384 elements, and at least 16
// for every chunk. A device other than the CPU adds in another order, so that the step
// size, which is rounded to float32, can in rare cases differ in its last bit. There the
// sums take 16 bytes for every 4096 elements, up to 32 KiB, and the step waits for them.
//
// It has the states of [AdamW], with the same bytes and the same limits for sparse
// gradients.
//
// Each process must hold the whole parameter, unless Options.SumNorms adds the norms of
// its shards: without it [Optimizer.AddShard] of a part is an error.
// [Optimizer.StepRange] of a part is always an error. If p makes a norm that is not
// finite, the step returns an error that wraps [snug.ErrNonFinite] and writes nothing.
type LAMB struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-6
	WeightDecay float32 // default 0
}

func (r LAMB) equation() equation {
	e := equation{name: "LAMB", hyper: optim.Hyper{Rule: optim.LAMB, WeightDecay: float64(r.WeightDecay)}}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-6, math.MaxFloat32)
	return e
}

// LARS is the rule of You, Gitman and Ginsburg 2017, arXiv:1708.03888. With momentum μ
// and the Euclidean norms of a whole parameter it computes
//
//	m ← μ·m + lr·η·|p|/(|g| + wd·|p|)·(g + wd·p)
//	p ← p - m
//
// where the trust ratio η·|p|/(|g| + wd·|p|) is 1 if a norm is 0, and for parameters with
// ParamOptions.NoTrust. Passes, norms, their memory, shards and errors are the same as
// with [LAMB].
//
// The state is m, with the bytes of [Lion]'s state.
type LARS struct {
	Momentum    float32 // in (0,1), default 0.9
	Trust       float32 // η, above 0, default 1e-3
	WeightDecay float32 // default 0
}

func (r LARS) equation() equation {
	e := equation{name: "LARS", hyper: optim.Hyper{Rule: optim.LARS, WeightDecay: float64(r.WeightDecay)}}
	e.number("Momentum", &e.hyper.Beta1, r.Momentum, 0.9, 1)
	e.number("Trust", &e.hyper.Trust, r.Trust, 1e-3, math.MaxFloat32)
	return e
}

// limit returns the constants of a step of p and its state, with the step size that
// follows from their norms. The job has no factors.
func (a *Optimizer) limit(dev *snug.Device, q *param, h optim.Hyper, j stepJob) (optim.Hyper, error) {
	sums := squareSums.Get().(*squares)
	defer squareSums.Put(sums)
	sums.parameter, sums.update = 0, 0
	if q.factored {
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
