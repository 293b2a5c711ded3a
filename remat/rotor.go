package remat

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// rotorStages is the longest chain that Rotor plans, rotorCells the number of
// entries in its tables, of 8 bytes each, and rotorAmounts the number of memory
// sizes for each stage, at most.
const (
	rotorName    = "rotor"
	rotorStages  = 500
	rotorCells   = 1 << 22
	rotorAmounts = 1 << 16
)

// Rotor returns the fastest persistent plan, of up to 500 stages, whose simulated
// peak is at most budget bytes: exact where sizes repeat or the chain is short,
// otherwise within a few percent. A persistent plan keeps a stored value, an
// output or a saved set with the input of its stage, until the backward step that
// uses it. Of equally fast plans Rotor returns one with the fewest forward steps.
//
// The dynamic program runs over the first and last stage of a part of the chain and the
// amounts of bytes that can remain for it. While these amounts are few, as where sizes
// repeat or the chain is short, the plan is optimal to the byte. Otherwise Rotor uses
// m = 2^23/(n(n+1)) amounts, at most 2^16, and rounds the remaining bytes down to the next
// one, by up to budget/m. The plan then fits in budget and is at least as fast as the best
// plan for budget·(1-h/m) bytes, where h is the most values that the best plan stores at
// one time. Rotor also uses the bytes that rounding spares, so times are within a few
// percent of the best in chains of 200 random stages.
//
// The error is a [*BudgetError] when no persistent plan fits; it wraps
// [snug.ErrConfig] when c is not valid or has more than 500 stages. Rotor takes
// O(n³m) time, less than a second for 200 stages, and 50 MiB at most.
//
// Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing
// for heterogeneous chains: how to train deep neural networks with limited
// memory", 2019, arXiv:1911.13214.
func Rotor(c Costs, budget int64) (Plan, error) {
	r, err := newRotor(c)
	if err != nil {
		return Plan{}, err
	}
	if budget < r.smallest() {
		return Plan{}, &BudgetError{Budget: budget, Minimum: r.smallest()}
	}
	r.solve(r.amountLimit(), budget)
	return r.plan(budget), nil
}

// rotor is the dynamic program. An amount of memory is the number of bytes that remain for
// the stages s to t after a_s and all values stored for earlier and later stages. The
// amount includes d_{t+1}, which shrinks and grows to d_s.
type rotor struct {
	c    Costs
	n    int
	sum  []int64   // sum[j]-sum[s] is the work of the stages s to j-1
	need [][]int64 // need[s][t-s] is the smallest amount for the stages s to t

	amounts [][]int64     // by s, ascending: the amounts with table entries
	tables  [][]rotorPart // by s and t-s
}

// rotorPart is the least extra work, beyond one forward step a stage, for the
// stages s to t: extra[i] for the amount amounts[s][from+i], noPlan for smaller
// amounts, 0 for larger ones.
type rotorPart struct {
	from  int
	extra []int64
}

func newRotor(c Costs) (*rotor, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := len(c.Stages)
	if n > rotorStages {
		return nil, fmt.Errorf("remat: plan rotor for %d stages: want %d at most: %w", n, rotorStages, snug.ErrConfig)
	}
	r := &rotor{c: c, n: n, sum: make([]int64, n+1)}
	for i, w := range newForwards(c).work {
		r.sum[i+1] = r.sum[i] + w
	}
	r.need = make([][]int64, n)
	for s := n - 1; s >= 0; s-- {
		r.need[s] = make([]int64, n-s)
		for t := s; t < n; t++ {
			r.need[s][t-s] = r.minNeed(s, t)
		}
	}
	return r, nil
}

// amountLimit returns the number of amounts for which the tables have entries, by
// stage.
func (r *rotor) amountLimit() int { return min(rotorAmounts, 2*rotorCells/(r.n*(r.n+1))) }

// minNeed returns need[s][t-s], given the needs of shorter parts.
func (r *rotor) minNeed(s, t int) int64 {
	need := r.saveNeed(s, t)
	if t == s {
		return need
	}
	need = max(need, r.c.Stages[s].Saved+r.need[s+1][t-s-1])
	walk := r.walkNeed(s)
	for j := s + 1; j <= t; j++ {
		need = min(need, max(walk+r.c.value(t+1), r.c.value(j)+r.need[j][t-j], r.need[s][j-1-s]))
		walk = max(walk, r.stepNeed(j))
	}
	return need
}

// smallest returns the smallest budget for the whole chain.
func (r *rotor) smallest() int64 { return r.c.Input + r.need[0][r.n-1] }

// saveNeed returns the amount that the forward and the backward step of stage s need,
// with the stages s+1 to t between them.
func (r *rotor) saveNeed(s, t int) int64 {
	stage := &r.c.Stages[s]
	return stage.Saved + max(r.c.value(t+1)+stage.ForwardExtra, r.c.value(s)+stage.BackwardExtra)
}

// walkNeed returns the amount, without d_{t+1}, that a forward step of stage s needs.
// stepNeed returns the amount for a later stage, whose input is held in addition to a_s.
func (r *rotor) walkNeed(s int) int64 { return r.c.Stages[s].Output + r.c.Stages[s].ForwardExtra }
func (r *rotor) stepNeed(k int) int64 { return r.c.value(k) + r.walkNeed(k) }

// choice is how the stages s to t start: with a forward step that saves stage s
// (split is s), or with forward steps that discard the stages s to split-1.
type choice struct {
	split int
	extra int64
}

// choose returns the best choice for the stages s to t and an amount, which need
// not be one of the tables'.
func (r *rotor) choose(s, t int, amount int64) choice {
	best := choice{s, noPlan}
	if t == s {
		return choice{s, 0}
	}
	if amount >= r.saveNeed(s, t) {
		best.extra = r.lookup(s+1, t, amount-r.c.Stages[s].Saved)
	}
	walk := r.walkNeed(s)
	for j := s + 1; j <= t && amount >= walk+r.c.value(t+1); j++ {
		again := r.sum[j] - r.sum[s]
		if again >= best.extra {
			break
		}
		if extra := again + r.lookup(j, t, amount-r.c.value(j)) + r.lookup(s, j-1, amount); extra < best.extra {
			best = choice{j, extra}
		}
		walk = max(walk, r.stepNeed(j))
	}
	return best
}

// lookup returns the least extra work of the stages s to t for the largest of
// the tables' amounts up to amount.
func (r *rotor) lookup(s, t int, amount int64) int64 {
	i, exact := slices.BinarySearch(r.amounts[s], amount)
	if !exact {
		i--
	}
	return r.tables[s][t-s].at(i)
}

func (p *rotorPart) at(i int) int64 {
	switch i -= p.from; {
	case i < 0:
		return noPlan
	case i < len(p.extra):
		return p.extra[i]
	}
	return 0
}

// plan returns the plan for a budget, after solve.
func (r *rotor) plan(budget int64) Plan {
	return Plan{Name: rotorName, Stages: r.n, Ops: r.append(nil, 0, r.n-1, budget-r.c.Input)}
}

// append appends the operations for the stages s to t.
func (r *rotor) append(ops []Op, s, t int, amount int64) []Op {
	var pending []int // stages whose backward step comes last
	for {
		switch j := r.choose(s, t, amount).split; j {
		case s:
			ops = append(ops, Op{ForwardSave, s})
			pending = append(pending, s)
			if s < t {
				amount -= r.c.Stages[s].Saved
				s++
				continue
			}
			for _, i := range slices.Backward(pending) {
				ops = append(ops, Op{Backward, i})
			}
			return ops
		default:
			for k := s; k < j; k++ {
				ops = append(ops, Op{ForwardDiscard, k})
				if k > s {
					ops = append(ops, Op{DropOutput, k - 1})
				}
			}
			ops = r.append(ops, j, t, amount-r.c.value(j))
			ops = append(ops, Op{DropOutput, j - 1})
			t = j - 1
		}
	}
}
