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

// HRevolve returns a schedule of the smallest makespan for a chain of n equal
// stages and two levels of slots. Its makespan, which [MultilevelPlan.Simulate]
// counts too, is
//
//	T = n + E + Write·writes + Read·reads
//
// in forward steps: every stage runs forward once to save what its backward step
// uses up at once, E forward steps are extra, a backward step takes no time, and
// neither does a copy to or from memory. a_0 is the working value at the start and
// takes a slot, and a transfer if that is on disk, like any other input. The disk is
// left out where it saves nothing.
//
// Without a disk, and with one whose transfers take too long, T is n + E(n, Memory)
// as of [Revolve]. Another slot or a faster disk never makes T larger.
//
// The dynamic program is that of Aupy, Herrmann, Hovland and Robert, "Optimal
// Multistage Algorithm for Adjoint Computation", SIAM J. Sci. Comput. 38(3), 2016,
// and Herrmann and Pallez, "H-Revolve: A Framework for Adjoint Computation on
// Synchronous Hierarchical Platforms", ACM TOMS 46(2), 2020, with memory in closed
// form. Their chain of l forward steps has n = l+1 backward steps; their makespan
// with forward and backward steps of one unit is T, as they count the forward step
// that saves as a part of the backward step:
//
//	A_0(k) = E(k, Memory)
//	A_d(k) = min(A_0(k), Write + P_d(k))
//	P_d(k) = min(A_0(k), min over 0 < i < k of i + A_{d-1}(k-i) + Read + P_d(i))
//
// are the extra steps and transfers of k stages with d slots on disk free, given
// the first input as the working value (A) and on disk too, in one of the d slots
// (P). P_d(1) = A_d(1) = 0.
//
// It takes O(d·n²) time and 16·(d+1)·n bytes beside the schedule, for d the slots on
// disk that are of use, at most min(Disk, n). The error wraps [snug.ErrConfig]: n is
// below 1, l is not valid, d·n² is above 2^34, or the schedule has more than 2^22
// operations.
func HRevolve(n int, l Levels) (MultilevelPlan, error) {
	if n < 1 || n > maxLevelStages {
		return MultilevelPlan{}, fmt.Errorf("remat: chain of %d stages: want 1 to %d: %w", n, maxLevelStages, snug.ErrConfig)
	}
	if err := l.Validate(); err != nil {
		return MultilevelPlan{}, err
	}
	l.Memory, l.Disk = min(l.Memory, n), min(l.Disk, n)
	h := hrevolve{Levels: l}
	if !h.solve(n, maxTransitions) {
		return MultilevelPlan{}, fmt.Errorf("remat: plan %s for %d stages takes more than %d steps of planning: %w", h.name(l.Disk), n, maxTransitions, snug.ErrConfig)
	}
	p, ok := h.plan(n, l.Disk)
	if !ok {
		return MultilevelPlan{}, fmt.Errorf("remat: plan %s for %d stages has more than %d operations: %w", p.Name, n, maxOps, snug.ErrConfig)
	}
	return p, nil
}

// hrevolve is the dynamic program. Its tables are indexed by the slots on disk d
// and the stages k.
type hrevolve struct {
	Levels
	free   [][]float64 // A_d(k)
	stored [][]float64 // P_d(k); none for d = 0
}

func (h *hrevolve) name(disk int) string { return fmt.Sprintf("hrevolve(%d,%d)", h.Memory, disk) }

// plan returns the schedule for n stages with some of the slots on disk, after solve.
// It reports false when that is too long.
func (h *hrevolve) plan(n, disk int) (MultilevelPlan, bool) {
	b := levelBuilder{hrevolve: h}
	b.reverse(0, n, min(disk, len(h.free)-1))
	return MultilevelPlan{Name: h.name(disk), Stages: n, Ops: b.ops}, !b.full()
}

// solve fills the tables for up to n stages and as many slots as are of use. It
// stops and reports false when all slots take more than so many transitions; the
// tables then are for fewer slots.
func (h *hrevolve) solve(n int, transitions int64) bool {
	memory := revolveExtras(n, h.Memory)
	h.free, h.stored = [][]float64{memory}, [][]float64{nil}
	for d := 1; d <= h.Disk; d++ {
		if int64(d)*int64(n)*int64(n) > transitions {
			return false
		}
		before := h.free[d-1]
		free, stored := make([]float64, n+1), make([]float64, n+1)
		for k := 2; k <= n; k++ {
			_, split := bestSplit(before, stored, k)
			stored[k] = min(memory[k], split+h.Read)
			free[k] = min(memory[k], h.Write+stored[k])
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

// levelBuilder writes the schedule that the tables tell, until that is too long.
type levelBuilder struct {
	*hrevolve
	ops []LevelOp
}

func (b *levelBuilder) full() bool { return len(b.ops) > maxOps }

func (b *levelBuilder) add(kind LevelKind, stage int) {
	b.ops = append(b.ops, LevelOp{kind, stage})
}

// advance makes a_hi the working value, which is a_lo.
func (b *levelBuilder) advance(lo, hi int) {
	for i := lo; i < hi && !b.full(); i++ {
		b.add(Advance, i)
	}
}

// reverse adds the backward steps of stages lo to lo+n-1, given a_lo as the working
// value, the memory and d slots on disk.
func (b *levelBuilder) reverse(lo, n, d int) {
	if b.free[d][n] == b.free[0][n] {
		b.reverseInMemory(lo, n, b.Memory)
		return
	}
	b.add(StoreDisk, lo)
	for b.stored[d][n] != b.free[0][n] && !b.full() {
		i, _ := bestSplit(b.free[d-1], b.stored[d], n)
		b.advance(lo, lo+i)
		b.reverse(lo+i, n-i, d-1)
		b.add(LoadDisk, lo)
		n = i
	}
	b.add(DropDisk, lo)
	b.reverseInMemory(lo, n, b.Memory)
}

// reverseInMemory is reverse without a disk and with slots in memory: [Revolve].
func (b *levelBuilder) reverseInMemory(lo, n, slots int) {
	if n > 1 {
		b.add(StoreMemory, lo)
		for n > 1 && !b.full() {
			i := revolveSplit(n, slots)
			b.advance(lo, lo+i)
			b.reverseInMemory(lo+i, n-i, slots-1)
			b.add(LoadMemory, lo)
			n = i
		}
		b.add(DropMemory, lo)
	}
	b.add(Reverse, lo)
}
