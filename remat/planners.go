package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// maxOps limits the length of the plans that planners make: a stage takes up to four.
const maxOps = 4 * maxStages

// KeepAll returns the plan that saves every stage and recomputes nothing, the
// fastest one: [Every] with k = 1.
func KeepAll(c Costs) (Plan, error) { return Every(c, 1) }

// RecomputeAll returns the plan that keeps only a_0 and computes the input of every
// backward step from it, with n(n-1)/2 extra forward steps: [Revolve] with one slot.
func RecomputeAll(c Costs) (Plan, error) { return Revolve(c, 1) }

// Every returns the plan that cuts the chain into ⌈n/k⌉ segments of k stages. It saves the
// last stage of each segment in the forward pass. In the backward pass it runs the other
// stages of a segment once more and saves them. It takes n-⌈n/k⌉ extra forward steps. It
// holds saved sets between segments; where they are much larger than outputs, [Revolve] with
// many slots holds less.
//
// The error wraps [snug.ErrConfig]: c is not valid, k is below 1, or the plan
// has more than 2^22 operations. A k above n is n.
func Every(c Costs, k int) (Plan, error) { return segments.plan(c, k) }

// Chen returns the plan that cuts the chain into segments of ⌈√n⌉ stages. In the forward
// pass it keeps the inputs of the segments and saves the last segment at once. In the
// backward pass it runs each other segment once more and saves it. This is the schedule of
// torch.utils.checkpoint_sequential: O(√n) memory for less than one extra forward pass.
//
// Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory
// Cost", 2016, arXiv:1604.06174.
func Chen(c Costs) (Plan, error) {
	p, err := periodic.plan(c, chenLength(len(c.Stages)))
	if err != nil {
		return Plan{}, err
	}
	p.Name = "chen"
	return p, nil
}

// chenLength returns ⌈√n⌉, and 1 for an empty chain.
func chenLength(n int) int {
	k := 1
	for k < (n+k-1)/k {
		k++
	}
	return k
}

// Revolve returns the plan with the fewest forward steps among those that keep
// at most slots outputs to restart from, a_0 included, and one saved set at a
// time. With t the smallest number for which C(slots+t, slots) ≥ n, it takes
//
//	E(n, slots) = t·n - C(slots+t, slots+1)
//
// extra forward steps, and runs no stage forward more than t+1 times. It counts slots, not
// bytes, and treats all stages as equal: for a chain of different stages the plan is valid
// but perhaps not the best.
//
// The error wraps [snug.ErrConfig]: c is not valid, slots is below 1, or the
// plan has more than 2^22 operations. More than n slots are n.
//
// Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000.
func Revolve(c Costs, slots int) (Plan, error) { return revolve.plan(c, slots) }

// planner is a family of plans with one parameter from 1 to n.
type planner struct {
	param  string
	name   func(param int) string
	length func(n, param int) int64          // upper bound of the operations
	append func(ops []Op, n, param int) []Op // for n stages
}

var (
	segments = planner{"k", segmentsName, segmentsLength, appendSegments}
	periodic = planner{"k", periodicName, segmentsLength, appendPeriodic}
	revolve  = planner{"slots", revolveName, revolveLength, appendRevolve}
)

func (pl *planner) plan(c Costs, param int) (Plan, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, err
	}
	if param < 1 {
		return Plan{}, fmt.Errorf("remat: %s is %d: want 1 or more: %w", pl.param, param, snug.ErrConfig)
	}
	n := len(c.Stages)
	param = min(param, n)
	length := pl.length(n, param)
	if length > maxOps {
		return Plan{}, fmt.Errorf("remat: plan %s for %d stages has %d operations: want %d at most: %w", pl.name(param), n, length, maxOps, snug.ErrConfig)
	}
	return Plan{Name: pl.name(param), Stages: n, Ops: pl.append(make([]Op, 0, length), n, param)}, nil
}

func segmentsName(k int) string {
	if k == 1 {
		return "keep-all"
	}
	return fmt.Sprintf("every(%d)", k)
}

// segmentsLength counts two forward, one backward and one drop operation.
func segmentsLength(n, _ int) int64 { return 4 * int64(n) }

func appendSegments(ops []Op, n, k int) []Op {
	for i := range n { // the forward pass
		if (i+1)%k == 0 || i == n-1 {
			ops = append(ops, Op{ForwardSave, i})
		} else {
			ops = append(ops, Op{ForwardDiscard, i})
		}
		if i%k != 0 && i != n-1 {
			ops = append(ops, Op{DropOutput, i - 1})
		}
	}
	for hi := n; hi > 0; { // the segment lo to hi-1
		lo := (hi - 1) / k * k
		last := hi - 1
		if hi == n && last > lo {
			// a_last is still held: take its backward step before the others
			// of the segment are saved.
			ops = append(ops, Op{Backward, last}, Op{DropOutput, last - 1})
			last--
		}
		for i := lo; i < hi-1; i++ {
			ops = append(ops, Op{ForwardSave, i})
		}
		for i := last; i >= lo; i-- {
			ops = append(ops, Op{Backward, i})
		}
		hi = lo
	}
	return ops
}

func periodicName(k int) string { return fmt.Sprintf("chen(%d)", k) }

func appendPeriodic(ops []Op, n, k int) []Op {
	last := (n - 1) / k * k // where the last segment begins
	for i := range last {
		ops = append(ops, Op{ForwardDiscard, i})
		if i%k != 0 {
			ops = append(ops, Op{DropOutput, i - 1})
		}
	}
	for lo, hi := last, n; hi > 0; lo, hi = lo-k, lo {
		if hi < n {
			ops = append(ops, Op{DropOutput, hi - 1}) // the input of the segment after it
		}
		for i := lo; i < hi; i++ {
			ops = append(ops, Op{ForwardSave, i})
		}
		for i := hi - 1; i >= lo; i-- {
			ops = append(ops, Op{Backward, i})
		}
	}
	return ops
}

func revolveName(slots int) string {
	if slots == 1 {
		return "recompute-all"
	}
	return fmt.Sprintf("revolve(%d)", slots)
}

// revolveLength counts one drop for every discarded output, and a ForwardSave
// and a Backward for every stage.
func revolveLength(n, slots int) int64 {
	return 2*revolveExtra(n, slots) + 2*int64(n)
}

// revolveExtra returns E(n, slots) = Σ_{j<t} (n - C(slots+j, slots)), which the
// hockey-stick identity makes t·n - C(slots+t, slots+1).
func revolveExtra(n, slots int) int64 {
	total, s := int64(n), int64(slots)
	extra := int64(0)
	for j, reach := int64(0), int64(1); reach < total; j++ {
		extra += total - reach
		reach = reach * (s + j + 1) / (j + 1)
	}
	return extra
}

// revolveSplit returns where to place the next checkpoint in n ≥ 2 stages: the
// i that minimizes i + E(i, slots) + E(n-i, slots-1).
func revolveSplit(n, slots int) int {
	total, s := int64(n), int64(slots)
	t, reach := int64(0), int64(1) // reach is C(s+t-1, s), below n
	for next := reach; next < total; {
		reach = next
		next = next * (s + t + 1) / (t + 1)
		t++
	}
	// Any i with C(s+t-2, s) ≤ i ≤ C(s+t-1, s) and C(s+t-2, s-1) ≤ n-i ≤
	// C(s+t-1, s-1) is optimal. This is the largest.
	right := reach * s / (s + t - 1) // C(s+t-2, s-1)
	return int(min(reach, total-right))
}

func appendRevolve(ops []Op, n, slots int) []Op {
	return appendRevolveFrom(ops, 0, n, slots)
}

// appendRevolveFrom appends the backward steps of stages lo to lo+n-1, given
// a_lo, and slots further slots, one for a_lo.
func appendRevolveFrom(ops []Op, lo, n, slots int) []Op {
	for n > 1 {
		i := revolveSplit(n, slots)
		for j := lo; j < lo+i; j++ {
			ops = append(ops, Op{ForwardDiscard, j})
			if j > lo {
				ops = append(ops, Op{DropOutput, j - 1})
			}
		}
		ops = appendRevolveFrom(ops, lo+i, n-i, slots-1)
		ops = append(ops, Op{DropOutput, lo + i - 1})
		n = i
	}
	return append(ops, Op{ForwardSave, lo}, Op{Backward, lo})
}
