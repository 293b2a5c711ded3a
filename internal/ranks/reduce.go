package ranks

import (
	"math/bits"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// Shard returns the range lo to hi-1 of n elements that belongs to one of size ranks.
func Shard(n, rank, size int) (lo, hi int) {
	if n <= 0 || rank < 0 || rank >= size {
		return 0, 0
	}
	cut := func(i int) int {
		high, low := bits.Mul(uint(n%size), uint(i))
		share, _ := bits.Div(high, low, uint(size)) // n%size is below size, and so is high
		return n/size*i + int(share)
	}
	return cut(rank), cut(rank + 1)
}

// Reduction is a vector that is reduced, gathered, or both, in rounds. A round moves up to each elements of the part of
// each rank:
//
//	parts of the others arrive; own = part(0) + part(1) + ...; own goes to the others
//
// What is not direct is copied to a stage before the round and back after it.
type Reduction struct {
	e      *Engine
	v      snug.View
	direct bool
	size   int // bytes of an element
	each   int
	rounds int
	ahead  bool // see Engine
	t      int  // the round

	vector  driver.Mem    // the stage of v
	arrived [2]driver.Mem // the stages of parts, which rounds take in turn
}

// reduce adds the parts of all ranks, if sums is set, and sends each rank's own part to all, if results is.
func (e *Engine) reduce(v snug.View, sums, results bool) error {
	if v.Len() == 0 {
		return nil
	}
	if e.Size == 1 && (!sums || v.DType() == snug.F32) { // rounding makes a NaN of bfloat16 quiet, of one rank too
		return e.t.Wait()
	}
	r := &e.r
	*r = Reduction{e: e, v: v, direct: e.t.Direct(v), size: v.DType().Size()}
	r.each = e.Each(r.size)
	longest := (v.Len()-1)/e.Size + 1
	r.rounds = (longest-1)/r.each + 1
	r.ahead = e.Ahead && sums && r.direct && r.rounds > 1
	if err := r.takeStages(sums); err != nil {
		return err
	}
	for r.t = range r.rounds {
		if err := r.round(r.t, sums, results); err != nil {
			return err
		}
	}
	return e.t.Wait()
}

// takeStages allocates the stages that are needed.
func (r *Reduction) takeStages(sums bool) (err error) {
	if sums && r.e.Size > 1 {
		r.arrived[0], err = r.e.StageFor(StageParts)
	}
	if r.ahead && err == nil {
		r.arrived[1], err = r.e.StageFor(StageNext)
	}
	if !r.direct && err == nil {
		r.vector, err = r.e.StageFor(StageVector)
	}
	return err
}

func (r *Reduction) round(t int, sums, results bool) error {
	if !r.direct {
		if err := r.load(t, sums); err != nil {
			return err
		}
	}
	if sums && (t == 0 || !r.ahead) {
		if err := r.moveParts(t); err != nil {
			return err
		}
	}
	if err := r.e.t.Settle(); err != nil {
		return err
	}
	if r.ahead && t+1 < r.rounds {
		if err := r.moveParts(t + 1); err != nil {
			return err
		}
	}
	if sums && r.Len() > 0 {
		if err := r.e.t.Add(r); err != nil {
			return err
		}
	}
	if results {
		if err := r.moveResults(t); err != nil {
			return err
		}
	}
	if r.direct {
		return nil
	}
	if err := r.e.t.Wait(); err != nil {
		return err
	}
	return r.store(t, results)
}

// span returns the elements of a rank's part that round t moves.
func (r *Reduction) span(rank, t int) (lo, hi int) {
	lo, end := Shard(r.v.Len(), rank, r.e.Size)
	lo = min(lo+t*r.each, end)
	return lo, min(lo+r.each, end)
}

// part returns what round t moves of a rank's part: in the vector, or in its stage.
func (r *Reduction) part(rank, t int) driver.Mem {
	lo, hi := r.span(rank, t)
	if r.direct {
		return device.Mem(&r.v).Slice(lo*r.size, (hi-lo)*r.size)
	}
	return r.vector.Slice(rank*r.each*r.size, (hi-lo)*r.size)
}

// from returns where the part of another rank arrives in round t, to be added.
func (r *Reduction) from(rank, t int) driver.Mem {
	lo, hi := r.span(r.e.Rank, t)
	stage := 0
	if r.ahead {
		stage = t % 2
	}
	return r.arrived[stage].Slice(rank*r.each*r.size, (hi-lo)*r.size)
}

// moveParts begins to send the parts of round t to the ranks that add them, and to receive those that this rank adds.
func (r *Reduction) moveParts(t int) error {
	e := r.e
	e.list = e.list[:0]
	for to, from := range e.others {
		e.list = append(e.list, Transfer{r.from(from, t), from, false}, Transfer{r.part(to, t), to, true})
	}
	return e.t.Move(e.list, Parts)
}

// moveResults begins to send this rank's own part of round t to all others, and to receive theirs.
func (r *Reduction) moveResults(t int) error {
	e := r.e
	e.list = e.list[:0]
	for to, from := range e.others {
		e.list = append(e.list, Transfer{r.part(from, t), from, false}, Transfer{r.part(e.Rank, t), to, true})
	}
	return e.t.Move(e.list, Results)
}

// Len returns the elements of this rank's part in a round.
func (r *Reduction) Len() int {
	lo, hi := r.span(r.e.Rank, r.t)
	return hi - lo
}

// Part returns what is added: what has arrived of a rank, or this rank's own part, to which the sums are written.
func (r *Reduction) Part(rank int) snug.View {
	m := r.part(rank, r.t)
	if rank != r.e.Rank {
		m = r.from(rank, r.t)
	}
	return r.e.t.View(m, r.v.DType(), r.Len())
}

// load copies the parts of round t to the stage: all, or this rank's own.
func (r *Reduction) load(t int, all bool) error {
	return r.eachPart(t, all, func(here, there snug.View) error { return snug.Copy(here, there) })
}

// store copies them back.
func (r *Reduction) store(t int, all bool) error {
	return r.eachPart(t, all, func(here, there snug.View) error { return snug.Copy(there, here) })
}

func (r *Reduction) eachPart(t int, all bool, do func(here, there snug.View) error) error {
	for rank := range r.e.Size {
		if !all && rank != r.e.Rank {
			continue
		}
		lo, hi := r.span(rank, t)
		there, err := r.v.Slice(lo, hi)
		if err != nil {
			return err
		}
		if err := do(r.e.t.View(r.part(rank, t), r.v.DType(), hi-lo), there); err != nil {
			return err
		}
	}
	return nil
}
