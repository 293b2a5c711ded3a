package remat

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// maxTransitions limits the work of HRevolve, to some ten seconds.
const maxTransitions int64 = 1 << 34

// maxLevelStages is the longest chain for which HRevolve has a schedule of maxOps
// operations: two steps a stage, and a load between two stages.
const maxLevelStages = maxOps / 3

// HRevolve returns the plan of the smallest makespan among plans that keep at most slots
// inputs of stages in device memory, and at most copies inputs in tier, [Host] or [Disk].
// It assumes equal stages, as [Revolve] does. [MethodHRevolve] finds the two numbers for
// a budget in bytes. The makespan is
//
//	T = n + E + Write·writes + Read·reads
//
// in forward steps: each of n stages runs forward once to save for the backward step that
// follows at once, and E forward steps are extra. Backward steps and slots take no time. Write
// and Read are the times of moving an output of the mean size at the rates of the tier, as
// multiples of the mean ForwardTime. T adds transfers to the steps; [Plan.Simulate] and runs
// overlap them. T counts a slot or a copy for a_0 too, although the plan needs
// none, because the caller holds a_0. The plan uses the tier only if that saves time.
//
// Without copies, or with a tier that is too slow, the plan is the plan of [Revolve] and T is
// n + E(n, slots). One more slot or a faster tier never makes T larger.
//
// The dynamic program is from Aupy, Herrmann, Hovland and Robert, "Optimal
// Multistage Algorithm for Adjoint Computation", SIAM J. Sci. Comput. 38(3), 2016,
// and Herrmann and Pallez, "H-Revolve: A Framework for Adjoint Computation on
// Synchronous Hierarchical Platforms", ACM TOMS 46(2), 2020, with memory in closed
// form. Their chain of l forward steps has n = l+1 backward steps; their makespan
// with forward and backward steps of one unit is T, as they count the forward step
// that saves as a part of the backward step:
//
//	A_0(k) = E(k, slots)
//	A_d(k) = min(A_0(k), Write + P_d(k))
//	P_d(k) = min(A_0(k), min over 0 < i < k of i + A_{d-1}(k-i) + Read + P_d(i))
//
// are the extra steps and transfers of k stages with d copies free, given the first input
// as the working value (A) and in one of the d copies too (P). P_d(1) = A_d(1) = 0.
//
// It takes O(d·n²) time and 16·(d+1)·n bytes in addition to the plan, where d is the number of
// useful copies, at most min(copies, n). The error wraps [snug.ErrConfig]: c is not valid or has no
// rates for the tier, slots or copies is negative or both are 0, the chain has more than
// 1,398,101 stages, d·n² is above 2^34, or the plan has more than 2^22 operations.
func HRevolve(c Costs, slots, copies int, tier Tier) (Plan, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, err
	}
	if tier != Host && tier != Disk {
		return Plan{}, fmt.Errorf("remat: hrevolve: copies in tier %v, want host or disk: %w", tier, snug.ErrConfig)
	}
	if copies > 0 && c.rates(tier) == (Rates{}) {
		return Plan{}, fmt.Errorf("remat: hrevolve: the costs have no rates for tier %v: %w", tier, snug.ErrConfig)
	}
	l := levels{memory: slots, disk: copies}
	l.write, l.read = c.transfers(tier)
	p, err := planLevels(len(c.Stages), l)
	if err != nil {
		return Plan{}, err
	}
	return p.plan(tier), nil
}

// planLevels returns the schedule of the smallest makespan for a chain of n stages.
func planLevels(n int, l levels) (schedule, error) {
	if n < 1 || n > maxLevelStages {
		return schedule{}, fmt.Errorf("remat: hrevolve: chain of %d stages: want 1 to %d: %w", n, maxLevelStages, snug.ErrConfig)
	}
	if err := l.validate(); err != nil {
		return schedule{}, err
	}
	l.memory, l.disk = min(l.memory, n), min(l.disk, n)
	h := hrevolve{levels: l}
	if !h.solve(n, maxTransitions) {
		return schedule{}, fmt.Errorf("remat: plan %s for %d stages takes more than %d steps of planning: %w", h.name(l.disk), n, maxTransitions, snug.ErrConfig)
	}
	p, ok := h.plan(n, l.disk)
	if !ok {
		return schedule{}, fmt.Errorf("remat: plan %s for %d stages has more than %d operations: %w", p.name, n, maxOps, snug.ErrConfig)
	}
	return p, nil
}

// hrevolve is the dynamic program. Its tables are indexed by the slots on disk d
// and the stages k.
type hrevolve struct {
	levels
	free   [][]float64 // A_d(k)
	stored [][]float64 // P_d(k); none for d = 0
}

func (h *hrevolve) name(disk int) string { return fmt.Sprintf("hrevolve(%d,%d)", h.memory, disk) }

// plan returns the schedule for n stages with some of the slots on disk, after solve.
// It reports false when the schedule is too long.
func (h *hrevolve) plan(n, disk int) (schedule, bool) {
	b := levelBuilder{hrevolve: h}
	b.reverse(0, n, min(disk, len(h.free)-1))
	return schedule{h.name(disk), n, b.ops}, !b.full()
}

// solve fills the tables for up to n stages and as many slots as are useful. If all slots
// take more than the given number of transitions, it stops early, with tables for fewer
// slots, and reports false.
func (h *hrevolve) solve(n int, transitions int64) bool {
	memory := revolveExtras(n, h.memory)
	h.free, h.stored = [][]float64{memory}, [][]float64{nil}
	for d := 1; d <= h.disk; d++ {
		if int64(d)*int64(n)*int64(n) > transitions {
			return false
		}
		before := h.free[d-1]
		free, stored := make([]float64, n+1), make([]float64, n+1)
		for k := 2; k <= n; k++ {
			_, split := bestSplit(before, stored, k)
			stored[k] = min(memory[k], split+h.read)
			free[k] = min(memory[k], h.write+stored[k])
		}
		if slices.Equal(free, before) {
			break // so would be all rows from here on
		}
		h.free, h.stored = append(h.free, free), append(h.stored, stored)
	}
	return true
}

// revolveExtras returns E(k, slots) for k up to n, which grows by the t of the closed
// form.
func revolveExtras(n, slots int) []float64 {
	extra := make([]float64, n+1)
	t, reach := int64(0), int64(1) // reach is C(slots+t, slots)
	for k := 2; k <= n; k++ {
		if slots == 0 {
			extra[k] = math.Inf(1)
			continue
		}
		if reach < int64(k) {
			t++
			reach = reach * (int64(slots) + t) / t
		}
		extra[k] = extra[k-1] + float64(t)
	}
	return extra
}

// bestSplit returns the largest i that minimizes i + free(k-i) + stored(i), and the
// minimum, for k ≥ 2.
func bestSplit(free, stored []float64, k int) (i int, cost float64) {
	i, cost = k-1, math.Inf(1)
	for j := k - 1; j > 0; j-- {
		if c := float64(j) + free[k-j] + stored[j]; c < cost {
			i, cost = j, c
		}
	}
	return i, cost
}

// levelBuilder writes the schedule of the tables, until it is too long.
type levelBuilder struct {
	*hrevolve
	ops []levelOp
}

func (b *levelBuilder) full() bool { return len(b.ops) > maxOps }

func (b *levelBuilder) add(kind levelKind, stage int) {
	b.ops = append(b.ops, levelOp{kind, stage})
}

// advance makes a_hi the working value, starting from a_lo.
func (b *levelBuilder) advance(lo, hi int) {
	for i := lo; i < hi && !b.full(); i++ {
		b.add(advance, i)
	}
}

// reverse adds the backward steps of stages lo to lo+n-1, given a_lo as the working
// value, the memory and d slots on disk.
func (b *levelBuilder) reverse(lo, n, d int) {
	if b.free[d][n] == b.free[0][n] {
		b.reverseInMemory(lo, n, b.memory)
		return
	}
	b.add(storeDisk, lo)
	for b.stored[d][n] != b.free[0][n] && !b.full() {
		i, _ := bestSplit(b.free[d-1], b.stored[d], n)
		b.advance(lo, lo+i)
		b.reverse(lo+i, n-i, d-1)
		b.add(loadDisk, lo)
		n = i
	}
	b.add(dropDisk, lo)
	b.reverseInMemory(lo, n, b.memory)
}

// reverseInMemory is reverse without a disk and with slots in memory: [Revolve].
func (b *levelBuilder) reverseInMemory(lo, n, slots int) {
	if n > 1 {
		b.add(storeMemory, lo)
		for n > 1 && !b.full() {
			i := revolveSplit(n, slots)
			b.advance(lo, lo+i)
			b.reverseInMemory(lo+i, n-i, slots-1)
			b.add(loadMemory, lo)
			n = i
		}
		b.add(dropMemory, lo)
	}
	b.add(reverse, lo)
}
