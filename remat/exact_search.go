package remat

import (
	"cmp"
	"math/bits"
	"slices"
)

// search is A* over holdings, for plans of at most budget bytes. Values are dropped only
// when the next operation does not fit otherwise, and then no more of them than needed:
// holding a value longer never takes time.
type search struct {
	c      Costs
	budget int64
	forwards
	limit int // of nodes

	bySize    []stored // of all forms, largest first
	droppable []stored // values of the expanded node
	sacks     []sack

	nodes []searchNode
	index nodeIndex
	open  openNodes
	bound int64 // work that a plan must stay below
}

// searchNode is a holding, and the node before the last operation.
type searchNode struct {
	holding
	work       int64 // of the way here
	lowerBound int64 // lower bound of the work of plans through this node
	parent     int32
}

func newSearch(c Costs, budget int64, f forwards, bound int64, limit int) *search {
	n := len(c.Stages)
	s := &search{c: c, budget: budget, forwards: f, limit: limit, bound: bound}
	for i, stage := range c.Stages {
		for f, size := range map[form]int64{output: stage.Output, saved: stage.Saved} {
			if size > 0 { // nothing is gained by dropping others
				s.bySize = append(s.bySize, stored{size, i, f})
			}
		}
	}
	slices.SortFunc(s.bySize, func(a, b stored) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.stage, b.stage), cmp.Compare(a.form, b.form))
	})
	s.sacks = make([]sack, n)
	for p := range s.sacks {
		s.sacks[p] = newSack(newKnapsack(c, budget, f.work, p))
	}
	return s
}

// stored is a form in which the output of a stage is held.
type stored struct {
	size  int64
	stage int
	form  form
}

// sack is a knapsack over a subset of items.
type sack struct {
	knapsack
	ranks [(exactStages + 7) / 8][256]uint32 // sets of items, for sets of 8 stages each
}

func newSack(k knapsack) sack {
	s := sack{knapsack: k}
	for rank, item := range k.items {
		for set := range 256 {
			if set>>(item.stage%8)&1 != 0 {
				s.ranks[item.stage/8][set] |= 1 << rank
			}
		}
	}
	return s
}

// again returns a lower bound of the work of those stages of a set whose saved
// sets do not fit.
func (s *sack) again(stages uint32) int64 {
	items := s.ranks[0][stages&255] | s.ranks[1][stages>>8&255] | s.ranks[2][stages>>16]
	free := s.free
	for ; items != 0; items &= items - 1 {
		item := &s.items[bits.TrailingZeros32(items)]
		if item.size <= free {
			free -= item.size
			continue
		}
		work := item.partly(free)
		for items &= items - 1; items != 0; items &= items - 1 {
			work += s.items[bits.TrailingZeros32(items)].work
		}
		return work
	}
	return 0
}

// run returns the work and the operations of the plan with the least work, or no
// operations and a lower bound of the work of all plans: the bound that it was
// given, if the search is complete.
func (s *search) run() (work int64, ops []Op) {
	start := holding(len(s.c.Stages)) << nextShift
	if start.bytes(s.c) > s.budget {
		return s.bound, nil
	}
	s.nodes = append(s.nodes, searchNode{holding: start, parent: -1})
	s.open.push(openNode{0, 0})
	for len(s.open) > 0 {
		top := s.open.pop()
		at := s.nodes[top.node]
		switch {
		case at.lowerBound != top.lowerBound: // reached with less work since
		case at.next() < 0:
			return at.work, s.path(top.node)
		case len(s.nodes) >= s.limit:
			return top.lowerBound, nil
		default:
			s.expand(top.node)
		}
	}
	return s.bound, nil
}

// path returns the operations that lead to a node.
func (s *search) path(node int32) []Op {
	var back []Op // from the last to the first
	for s.nodes[node].parent >= 0 {
		to, from := s.nodes[node].holding, s.nodes[s.nodes[node].parent].holding
		node = s.nodes[node].parent
		op := Op{Backward, from.next()}
		for i := range from.next() + 1 {
			if f := to.form(i); from.next() == to.next() && f != absent && f != from.form(i) {
				op = Op{ForwardDiscard, i}
				if f == saved {
					op.Kind = ForwardSave
				}
			}
		}
		back = append(back, op)
		for i := range from.next() + 1 {
			switch f := from.form(i); {
			case f == saved && to.form(i) != saved && op != Op{Backward, i}:
				back = append(back, Op{DropSaved, i})
			case f == output && to.form(i) == absent:
				back = append(back, Op{DropOutput, i})
			}
		}
	}
	slices.Reverse(back)
	return back
}

// expand pushes the successors of a node.
func (s *search) expand(from int32) {
	at := s.nodes[from]
	t := at.next()
	held := at.bytes(s.c)
	s.listHeld(at.holding)
	stage := &s.c.Stages[t]
	if at.form(t) == saved && at.hasInput(t) {
		peak := held - stage.Output + s.c.value(t) + stage.BackwardExtra
		s.drop(step{from, Op{Backward, t}, at.work}, at.holding, peak-s.budget, 0)
		if peak <= s.budget && s.c.value(t) <= stage.Output+stage.Saved {
			return // what else can be done now can be done after it
		}
	}
	for i := range t + 1 {
		if !at.hasInput(i) {
			continue
		}
		stage := &s.c.Stages[i]
		excess := held + stage.ForwardExtra - s.budget
		switch at.form(i) {
		case output:
			excess -= stage.Output
		case saved:
			excess -= stage.Saved
		}
		work := at.work + s.work[i]
		if at.form(i) != output && i < t {
			s.drop(step{from, Op{ForwardDiscard, i}, work}, at.holding, excess+stage.Output, 0)
		}
		if at.form(i) != saved {
			s.drop(step{from, Op{ForwardSave, i}, work}, at.holding, excess+stage.Saved, 0)
		}
	}
}

// step is an operation after a node, and the work with it.
type step struct {
	from int32
	op   Op
	work int64
}

// listHeld lists the values of h that could be dropped, largest first.
func (s *search) listHeld(h holding) {
	s.droppable = s.droppable[:0]
	for _, v := range s.bySize {
		if h.form(v.stage) == v.form {
			s.droppable = append(s.droppable, v)
		}
	}
}

// drop drops droppable values from the k-th on, of at least excess bytes, in every way
// that drops no more of them than needed, and pushes the successors.
func (s *search) drop(to step, h holding, excess int64, k int) {
	if excess <= 0 {
		s.push(to, h)
		return
	}
	for ; k < len(s.droppable); k++ {
		v := &s.droppable[k]
		if v.stage != to.op.Stage && v.stage != to.op.Stage-1 {
			s.drop(to, h.with(v.stage, absent), excess-v.size, k+1)
		}
	}
}

// push makes the holding after the operation an open node, unless it was reached with as
// little work already or leads to no plan below the bound.
func (s *search) push(to step, h holding) {
	h = h.after(to.op)
	slot := s.index.at(h)
	if slot.node != 0 && slot.cost <= to.work {
		return
	}
	lowerBound := s.ceil(to.work + s.remaining(h, s.bound-to.work))
	if lowerBound >= s.bound {
		return
	}
	node := slot.node - 1
	if slot.node == 0 {
		node = int32(len(s.nodes))
		s.nodes = append(s.nodes, searchNode{})
	}
	s.nodes[node] = searchNode{h, to.work, lowerBound, to.from}
	s.index.set(slot, h, to.work, node)
	s.open.push(openNode{lowerBound, node})
}

// remaining returns a lower bound of the work after h. Every stage whose saved set is not
// held takes a forward step. The backward step of stage p needs a_p and s_p in memory. Each
// of two kinds of saved sets takes one more forward step if it does not fit next to them:
// the sets held now, and the sets of the stages that lead to a_p, which have run by then.
// The choice is a knapsack, which is relaxed here: it may take parts of items.
func (s *search) remaining(h holding, enough int64) int64 {
	t := h.next()
	savedSets := uint32(0)
	var work, most int64
	for i := range t + 1 {
		if h.form(i) == saved {
			savedSets |= 1 << i
		} else {
			work += s.work[i]
		}
	}
	reach := t + 1
	for p := t; p >= 0 && work+most < enough; p-- {
		if reach > p {
			for reach = p; !h.hasInput(reach); {
				reach--
			}
		}
		candidates := (savedSets | ^(1<<reach - 1)) & (1<<p - 1)
		most = max(most, s.sacks[p].again(candidates))
	}
	return work + most
}
