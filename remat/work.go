package remat

import (
	"cmp"
	"iter"
	"math"
	"math/bits"
	"slices"
)

// noPlan exceeds the work of any plan. The sum of two noPlan and the work of a plan fits in
// an int64.
const noPlan = 1 << 61

// forwards stands for the forward steps of a chain in integers, whose sums
// order plans by forward time and, where that is the same, by the number of
// forward steps, whatever the order of the additions.
type forwards struct {
	work  []int64 // of one forward step of each stage
	total int64   // of one of every stage
	steps int     // bits of work that count forward steps
	unit  float64 // time for the other bits
	grain int64   // what divides the time of every stage, in units
	whole int64   // what divides the work of every stage
}

// newForwards rounds the times down to multiples of 2^-k of their sum or less,
// with k = 60 - 3·⌈log2(n+1)⌉ for n stages. The work of up to n runs of every
// stage is below noPlan.
func newForwards(c Costs) forwards {
	n := len(c.Stages)
	longest, sum := 0.0, 0.0
	for _, s := range c.Stages {
		longest = max(longest, s.ForwardTime)
	}
	_, exponent := math.Frexp(longest)
	for _, s := range c.Stages {
		sum += math.Ldexp(s.ForwardTime, -exponent) // of 1 at most
	}
	_, more := math.Frexp(sum)
	runs := bits.Len(uint(n))
	digits := 60 - 3*runs - more
	f := forwards{work: make([]int64, n), steps: 2 * runs, unit: math.Ldexp(math.Ldexp(1, exponent), -digits)}
	for i, s := range c.Stages {
		f.work[i] = int64(math.Ldexp(math.Ldexp(s.ForwardTime, -exponent), digits))<<f.steps + 1
		f.total += f.work[i]
		f.grain = divisor(f.grain, f.work[i]>>f.steps)
		f.whole = divisor(f.whole, f.work[i])
	}
	return f
}

// divisor returns the greatest common divisor.
func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ceil returns the minimum work of a plan with at least this work: the time and the work of
// a plan are multiples of the divisors of all stages.
func (f *forwards) ceil(work int64) int64 {
	if time := work >> f.steps; f.grain > 0 && time%f.grain != 0 {
		time += f.grain - time%f.grain
		work = time<<f.steps + int64(len(f.work)) // one step a stage
	}
	if r := work % f.whole; r > 0 {
		work += f.whole - r
	}
	return work
}

// of returns the work of a plan.
func (f *forwards) of(p Plan) int64 {
	var work int64
	for _, op := range p.Ops {
		if op.isForward() {
			work += f.work[op.Stage]
		}
	}
	return work
}

// bound returns a time that plans of at least this work take.
func (f *forwards) bound(c Costs, work int64) float64 {
	forward, backward := 0.0, 0.0
	for _, s := range c.Stages {
		forward += s.ForwardTime
		backward += s.BackwardTime
	}
	return max(forward, float64(work>>f.steps)*f.unit) + backward
}

// boundItems is about the number of items, of 24 bytes, in the knapsacks of a lower
// bound.
const boundItems = 1 << 21

// boundStages yields the stages whose backward steps a lower bound examines: all of up to
// 2048 stages. Of longer chains it yields some, with the last one, whose knapsacks have
// boundItems together.
func boundStages(n int) iter.Seq[int] {
	step := 1 + int(int64(n)*int64(n)/(2*boundItems+1))
	return func(yield func(int) bool) {
		for p := n - 1; p >= 0 && yield(p); p -= step {
		}
	}
}

// knapsack is the memory at the backward step of stage p beyond its needs. Its items are saved
// sets of earlier stages, sorted by work for each byte, most first.
type knapsack struct {
	free  int64
	items []sackItem
}

type sackItem struct {
	stage      int
	size, work int64
}

func newKnapsack(c Costs, budget int64, work []int64, p int) knapsack {
	stage := &c.Stages[p]
	budget = max(budget, 0) // what is less leaves no more room, and could be so little that room overflows
	k := knapsack{free: budget - c.Input - stage.Saved - c.value(p) - stage.BackwardExtra}
	for i := range p {
		k.items = append(k.items, sackItem{i, c.Stages[i].Saved, work[i]})
	}
	if p > 0 { // a_p is held in any case, and within s_{p-1} if that is
		k.free -= c.value(p)
		k.items[p-1].size -= c.value(p)
	}
	k.sort()
	return k
}

func (k *knapsack) sort() {
	slices.SortStableFunc(k.items, func(a, b sackItem) int {
		return cmp.Compare(float64(a.size)*float64(b.work), float64(b.size)*float64(a.work))
	})
}

// again returns a lower bound of the work of the items that do not fit.
func (k knapsack) again() int64 {
	var work int64
	for i := range k.items {
		item := &k.items[i]
		if k.free < item.size {
			work += item.partly(k.free)
			k.free = 0
			continue
		}
		k.free -= item.size
	}
	return work
}

// partly returns a lower bound of the work of an item if only free bytes of it fit.
func (i *sackItem) partly(free int64) int64 {
	if free <= 0 {
		return i.work
	}
	return max(0, i.work-int64(float64(i.work)*(float64(free)/float64(i.size)))-i.work>>40-1)
}

// minWork returns a lower bound of the work of all plans under a budget. Every stage takes
// one forward step. A stage before stage p takes one more if its saved set does not fit at
// the backward step of p. The choice of the sets that fit is a knapsack, which is relaxed
// here: it may take parts of items.
func (f *forwards) minWork(c Costs, budget int64) int64 {
	var most int64
	for p := range boundStages(len(c.Stages)) {
		most = max(most, newKnapsack(c, budget, f.work, p).again())
	}
	return f.ceil(f.total + most)
}
