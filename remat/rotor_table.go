package remat

import (
	"math"
	"slices"
)

// solve fills the tables for budgets, which ascend, with at most about limit amounts
// a stage.
func (r *rotor) solve(limit int, budgets ...int64) {
	left := make([]int64, len(budgets)) // for the whole chain
	high := r.enough(0)
	for i, b := range budgets {
		left[i] = min(b-r.c.Input, high)
	}
	if !r.allAmounts(left, limit) {
		r.someAmounts(left, limit)
	}
	r.tables = make([][]rotorPart, r.n)
	for s := r.n - 1; s >= 0; s-- {
		r.solveFrom(s)
	}
}

// allAmounts lists for every stage the amounts that plans can leave it. It
// reports whether there are at most limit of them for each.
func (r *rotor) allAmounts(left []int64, limit int) bool {
	r.amounts = make([][]int64, r.n)
	r.amounts[0] = left
	var earlier, scratch []int64 // amounts of all stages before s
	for s := 1; s < r.n; s++ {
		low, high := slices.Min(r.need[s]), r.enough(s)
		earlier, scratch = merge(scratch[:0], earlier, r.amounts[s-1], 0), earlier
		list := merge(nil, less(earlier, r.c.value(s), low, high), less(r.amounts[s-1], r.c.Stages[s-1].Saved, low, high), low)
		if len(list) > limit || len(earlier) > 16*limit {
			return false
		}
		r.amounts[s] = list
	}
	return true
}

// enough returns an amount from which on no stage from s on needs to be run
// twice.
func (r *rotor) enough(s int) int64 {
	var held, high int64
	for k := s; k < r.n; k++ {
		for t := k; t < r.n; t++ {
			high = max(high, held+r.saveNeed(k, t))
		}
		held += r.c.Stages[k].Saved
	}
	return high
}

// someAmounts lists left for the first stage. For each other stage it lists about limit
// amounts up to the largest of left, and the minimum amounts of its parts. For a single
// budget the amounts have one distance. For several budgets, the distances between lower
// amounts shrink in proportion to the amounts.
func (r *rotor) someAmounts(left []int64, limit int) {
	low, high := r.need[0][0], left[len(left)-1]
	for _, need := range r.need {
		low = min(low, slices.Min(need))
	}
	distance, ratio := (high-low)/int64(limit), float64(high)
	if len(left) > 1 {
		distance *= 2
		ratio = math.Pow(float64(high)/float64(max(low, 1)), 2/float64(limit)) - 1
	}
	var list []int64
	for a := low; a < high; {
		list = append(list, a)
		step := max(1, int64(min(float64(distance), float64(a)*ratio)))
		if step >= high-a {
			break
		}
		a += step
	}
	list = append(list, high)
	r.amounts[0] = left
	for s := 1; s < r.n; s++ {
		needs := slices.Sorted(slices.Values(r.need[s]))
		r.amounts[s] = merge(nil, list, needs, needs[0])
	}
}

// less returns the amounts of list less size. It leaves out results below least and
// limits the others to most.
func less(list []int64, size, low, high int64) []int64 {
	var l []int64
	for _, a := range list {
		if a -= size; a >= low {
			l = append(l, min(a, high))
		}
	}
	return l
}

// merge appends the amounts of two ascending lists that are at least least, each once.
func merge(to, a, b []int64, low int64) []int64 {
	for len(a)+len(b) > 0 {
		if len(a) == 0 || len(b) > 0 && b[0] < a[0] {
			a, b = b, a
		}
		if v := a[0]; v >= low && (len(to) == 0 || v > to[len(to)-1]) {
			to = append(to, v)
		}
		a = a[1:]
	}
	return to
}

// solveFrom fills the tables of the parts from stage s on, given the tables of later
// stages.
func (r *rotor) solveFrom(s int) {
	amounts := r.amounts[s]
	r.tables[s] = make([]rotorPart, r.n-s)
	saved := r.indices(s, s+1, r.c.Stages[s].Saved)
	discarded := make([][]int32, r.n) // by split
	for j := s + 1; j < r.n; j++ {
		discarded[j] = r.indices(s, j, r.c.value(j))
	}
	scratch := make([]int64, len(amounts))
	for t := s; t < r.n; t++ {
		from := atLeast(amounts, r.need[s][t-s])
		part := &r.tables[s][t-s]
		part.from = from
		if t == s {
			part.extra = []int64{0}
			continue
		}
		if from == len(amounts) {
			continue
		}
		best := scratch[from:]
		for i := range best {
			best[i] = noPlan
		}
		after := &r.tables[s+1][t-s-1]
		for i := atLeast(amounts, max(r.saveNeed(s, t), r.c.Stages[s].Saved+r.need[s+1][t-s-1])); i < len(amounts); i++ {
			scratch[i] = after.at(int(saved[i]))
		}
		walk := r.walkNeed(s)
		to := len(amounts) // before it, a split at j can be better
		for j := s + 1; j <= t; j++ {
			again := r.sum[j] - r.sum[s]
			for to > from && scratch[to-1] <= again {
				to--
			}
			if to == from {
				break
			}
			need := max(walk+r.c.value(t+1), r.c.value(j)+r.need[j][t-j], r.need[s][j-1-s])
			if i := atLeast(amounts[:to], need); i < to {
				split(scratch[i:to], again, &r.tables[j][t-j], discarded[j][i:to], &r.tables[s][j-1-s], i)
			}
			walk = max(walk, r.stepNeed(j))
		}
		// Everything after the first zero is zero.
		end := slices.Index(best, 0) + 1
		if end == 0 {
			end = len(best)
		}
		part.extra = slices.Clone(best[:end])
	}
}

// indices returns, for every amount of stage s less size, the index of the
// largest amount of stage j up to it, -1 if there is none.
func (r *rotor) indices(s, j int, size int64) []int32 {
	if j == r.n {
		return nil
	}
	list := make([]int32, len(r.amounts[s]))
	k := 0
	for i, a := range r.amounts[s] {
		for k < len(r.amounts[j]) && r.amounts[j][k] <= a-size {
			k++
		}
		list[i] = int32(k - 1)
	}
	return list
}

// split lowers best to again + right + left, where right is for the amounts at indices and
// left for the amounts from first on. Both parts have an entry for every amount. None of
// the three grows with the amount.
func split(best []int64, again int64, right *rotorPart, indices []int32, left *rotorPart, first int) {
	last := len(right.extra) - 1
	top := len(best) - 1
	extra := again + right.extra[min(int(indices[top])-right.from, last)]
	if k := top + first - left.from; k < len(left.extra) {
		extra += left.extra[k]
	}
	for top >= 0 && best[top] <= extra { // no smaller amount takes less
		top--
	}
	best = best[:top+1]
	indices = indices[:len(best)]
	entries := left.extra[min(first-left.from, len(left.extra)):]
	entries = entries[:min(len(entries), len(best))]
	for i, l := range entries {
		best[i] = min(best[i], again+l+right.extra[min(int(indices[i])-right.from, last)])
	}
	for i := len(entries); i < len(best); i++ {
		best[i] = min(best[i], again+right.extra[min(int(indices[i])-right.from, last)])
	}
}

// atLeast returns the index of the first amount from least on.
func atLeast(amounts []int64, low int64) int {
	i, _ := slices.BinarySearch(amounts, low)
	return i
}
