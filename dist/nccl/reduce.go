package nccl

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// reduction is a vector that is reduced, gathered, or both, in rounds. A round moves up to each elements of the part of
// each rank. All of it is queued for communication; only a vector that does not lie on the device is waited for.
type reduction struct {
	e      *engine
	v      snug.View
	direct bool
	size   int // bytes of an element
	each   int
	rounds int

	arrived, sums, vector driver.Mem // stages
}

// reduce adds the parts of all ranks, if sums is set, and sends each rank's own part to all, if results is.
func (e *engine) reduce(v snug.View, sums, results bool) error {
	if v.Len() == 0 {
		return nil
	}
	r := reduction{e: e, v: v, direct: v.Device() == e.home, size: v.DType().Size()}
	if r.direct {
		if err := e.ready(v); err != nil {
			return err
		}
	}
	wide := v.DType() == snug.F32
	if e.size == 1 && (!sums || wide) { // rounding makes a NaN of bfloat16 quiet, of one rank too
		return e.wait()
	}
	r.each = max(1, e.staged/(r.size*e.size))
	if r.each > 16 {
		r.each &^= 15 // parts in stages begin at multiples of 16 bytes, at which kernels are faster
	}
	longest := (v.Len()-1)/e.size + 1
	r.rounds = (longest-1)/r.each + 1
	if err := r.stages(sums, wide); err != nil {
		return err
	}
	for t := range r.rounds {
		if err := r.round(t, sums, results); err != nil {
			return err
		}
	}
	return e.wait()
}

// stages allocates the stages that are needed.
func (r *reduction) stages(sums, wide bool) (err error) {
	e := r.e
	if sums {
		if r.arrived, err = e.stageFor(stageParts, e.vectorStage()); err != nil {
			return err
		}
	}
	if sums && !wide {
		if r.sums, err = e.stageFor(stageSums, 4*r.each); err != nil {
			return err
		}
	}
	if !r.direct {
		r.vector, err = e.stageFor(stageVector, e.vectorStage())
	}
	return err
}

func (r *reduction) round(t int, sums, results bool) error {
	if !r.direct {
		if err := r.load(t, sums); err != nil {
			return err
		}
	}
	if sums {
		if err := r.exchangeParts(t); err != nil {
			return err
		}
		if err := r.addParts(t); err != nil {
			return err
		}
	}
	if results {
		if err := r.exchangeResults(t); err != nil {
			return err
		}
	}
	if r.direct {
		return nil
	}
	if err := r.e.wait(); err != nil {
		return err
	}
	return r.store(t, results)
}

// span returns the elements of a rank's part that round t moves.
func (r *reduction) span(rank, t int) (lo, hi int) {
	lo, end := accum.Shard(r.v.Len(), rank, r.e.size)
	lo = min(lo+t*r.each, end)
	return lo, min(lo+r.each, end)
}

// part returns what round t moves of a rank's part: in the vector, or in the stage of a vector that lies elsewhere.
func (r *reduction) part(rank, t int) driver.Mem {
	lo, hi := r.span(rank, t)
	if r.direct {
		return device.Mem(&r.v).Slice(lo*r.size, (hi-lo)*r.size)
	}
	return r.vector.Slice(rank*r.each*r.size, (hi-lo)*r.size)
}

// from returns where the part of another rank arrives in round t, to be added.
func (r *reduction) from(rank, t int) driver.Mem {
	lo, hi := r.span(r.e.rank, t)
	return r.arrived.Slice(rank*r.each*r.size, (hi-lo)*r.size)
}

// exchangeParts sends the parts of round t to the ranks that add them, and receives those that this rank adds.
func (r *reduction) exchangeParts(t int) error {
	e := r.e
	for to, from := range e.others {
		e.list = append(e.list, transfer{r.from(from, t), from, false}, transfer{r.part(to, t), to, true})
	}
	return e.transfer()
}

// exchangeResults sends this rank's own part of round t to all others, and receives theirs.
func (r *reduction) exchangeResults(t int) error {
	e := r.e
	for to, from := range e.others {
		e.list = append(e.list, transfer{r.part(from, t), from, false}, transfer{r.part(e.rank, t), to, true})
	}
	return e.transfer()
}

// addParts adds what arrives in round t, in the order of the ranks, and writes the sums to this rank's own part. Sums of
// float32 are computed where the part of rank 0 lies; sums of bfloat16 in a stage, from which they are rounded.
func (r *reduction) addParts(t int) error {
	e, dt := r.e, r.v.DType()
	lo, hi := r.span(e.rank, t)
	n := hi - lo
	if n == 0 {
		return nil
	}
	parts := func(rank int) snug.View {
		if rank == e.rank {
			return device.View(e.side, r.part(rank, t), dt, n)
		}
		return device.View(e.side, r.from(rank, t), dt, n)
	}
	own, sum, first := parts(e.rank), parts(0), 1
	if dt != snug.F32 {
		sum, first = device.View(e.side, r.sums.Slice(0, 4*n), snug.F32, n), 0
	}
	for rank := first; rank < e.size; rank++ {
		beta := float32(1)
		if rank == 0 {
			beta = 0
		}
		if err := accum.Accumulate(sum, parts(rank), 1, beta); err != nil {
			return err
		}
	}
	switch {
	case dt != snug.F32:
		return amp.Cast(own, sum)
	case e.rank > 0:
		return snug.Copy(own, sum)
	}
	return nil
}

// loadKernels runs the kernels of sums once, on memory that is not used yet, because loading a kernel may wait for other
// work of the device, such as communication.
func (e *engine) loadKernels() error {
	sum := device.View(e.side, e.notes.Slice(0, 4), snug.F32, 1)
	wide := device.View(e.side, e.notes.Slice(16, 4), snug.F32, 1)
	low := device.View(e.side, e.notes.Slice(32, 2), snug.BF16, 1)
	for _, part := range []snug.View{wide, low} {
		if err := accum.Accumulate(sum, part, 1, 0); err != nil {
			return err
		}
	}
	if err := amp.Cast(low, sum); err != nil {
		return err
	}
	return e.stream.Sync()
}

// load copies the parts of round t to the stage: all, or this rank's own.
func (r *reduction) load(t int, all bool) error {
	return r.eachPart(t, all, func(here, there snug.View) error { return snug.Copy(here, there) })
}

// store copies them back.
func (r *reduction) store(t int, all bool) error {
	return r.eachPart(t, all, func(here, there snug.View) error { return snug.Copy(there, here) })
}

func (r *reduction) eachPart(t int, all bool, do func(here, there snug.View) error) error {
	for rank := range r.e.size {
		if !all && rank != r.e.rank {
			continue
		}
		lo, hi := r.span(rank, t)
		there, err := r.v.Slice(lo, hi)
		if err != nil {
			return err
		}
		if err := do(device.View(r.e.side, r.part(rank, t), r.v.DType(), hi-lo), there); err != nil {
			return err
		}
	}
	return nil
}

// sumAll replaces x by the sums over all ranks. Each rank's numbers come to all.
func (e *engine) sumAll(x []float64) error {
	if e.size == 1 {
		for i := range x {
			x[i] += 0 // as a sum that begins with 0: -0 becomes 0
		}
		return nil
	}
	each := max(1, e.staged/(8*e.size))
	for len(x) > 0 {
		n := min(each, len(x))
		if err := e.sumSome(x[:n]); err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

func (e *engine) sumSome(x []float64) error {
	n := len(x) * e.size
	all, err := e.stageFor(stageVector, e.vectorStage())
	if err != nil {
		return err
	}
	all = all.Slice(0, 8*n)
	if err := e.stream.CopyIn(all.Slice(8*len(x)*e.rank, 8*len(x)), bytesOf(unsafe.SliceData(x), len(x))); err != nil {
		return err
	}
	if err := e.gather(all, 8*len(x)); err != nil {
		return err
	}
	if err := e.wait(); err != nil {
		return err
	}
	if cap(e.sums) < n {
		e.sums = make([]float64, n)
	}
	sums := e.sums[:n]
	if err := e.stream.CopyOut(bytesOf(unsafe.SliceData(sums), n), all); err != nil {
		return err
	}
	for i := range x {
		sum := 0.0
		for rank := range e.size {
			sum += sums[rank*len(x)+i]
		}
		x[i] = sum
	}
	return nil
}
