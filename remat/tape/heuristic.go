package tape

import "math"

// Heuristic chooses which value a [Tape] evicts: the one with the smallest score.
// Staleness counts the computations since the latest use, from 1. Cost is the cost of
// the latest computation. The neighbourhood of a value is the evicted values that must be
// computed again before it, and the evicted values that would then need it: the values
// that lead to it, and the values it leads to, through evicted values only.
//
//	                score                                       time for an eviction
//	DTR             (cost + neighbourhood) / (bytes·staleness)  values held times their neighbourhoods
//	DTREquivalence  the same, the neighbourhood approximated    values held times their operands and consumers
//	DTRLocal        cost / (bytes·staleness)                    values held
//	Largest         1 / bytes                                   values held
//	LRU             1 / staleness                               values held
//
// Measured on the small models of this package's tests, this is the extra cost
// with a half and a third of the memory that all results take; thrash is more
// than eight times the cost of first computations:
//
//	                LSTM           TreeLSTM       U-Net
//	DTR             1 %, 10 %      1 %, 5 %       2 %, 202 %
//	DTREquivalence  1 %, 9 %       2 %, 5 %       3 %, 302 %
//	DTRLocal        54 %, thrash   53 %, 748 %    2 %, 225 %
//	Largest         32 %, thrash   35 %, thrash   20 %, 141 %
//	LRU             134 %, 269 %   10 %, thrash   176 %, 503 %
//
// They are h_DTR, h_DTR^eq, h_DTR^local, h_size and h_LRU of Kirisame et al.,
// "Dynamic Tensor Rematerialization", ICLR 2021, which measures staleness in
// time.
type Heuristic uint8

// The heuristics. [Options] have DTR if none is given.
const (
	DTR            Heuristic = iota // exact neighbourhood
	DTREquivalence                  // components of evicted values joined by union-find; a value that leaves takes only its own cost
	DTRLocal                        // no neighbourhood
	Largest                         // largest first
	LRU                             // least recently used first
	heuristics
)

// String returns the name of the heuristic, such as "DTR".
func (h Heuristic) String() string {
	names := [...]string{"DTR", "DTR equivalence", "DTR local", "largest", "LRU"}
	if h >= heuristics {
		return "?"
	}
	return names[h]
}

// preferFactor is how many times as likely a value is evicted that a policy
// prefers to recompute.
const preferFactor = 16

// victim returns what to evict next, nil if there is nothing, and how many
// bytes cannot be evicted.
func (t *Tape[V]) victim() (best *storage[V], kept int64) {
	lowest := math.Inf(1)
	for _, s := range t.live {
		if !s.evictable() {
			kept += s.bytes
			continue
		}
		if s.bytes == 0 {
			continue
		}
		score := 0.0
		if !s.spent {
			score = t.score(s)
		}
		if best == nil || score < lowest || score == lowest && s.id < best.id {
			best, lowest = s, score
		}
	}
	return best, kept
}

func (t *Tape[V]) score(s *storage[V]) float64 {
	staleness := float64(t.tick - s.last + 1)
	var score float64
	switch t.o.Heuristic {
	case Largest:
		score = 1 / float64(s.bytes)
	case LRU:
		score = 1 / staleness
	default:
		score = (s.cost + t.neighbourhood(s)) / (float64(s.bytes) * staleness)
	}
	if s.decision == PreferRecompute {
		score /= preferFactor
	}
	return score
}

// neighbourhood returns the cost of the evicted values around s. What is
// offloaded needs none of them.
func (t *Tape[V]) neighbourhood(s *storage[V]) float64 {
	if s.decision == Offload {
		return 0
	}
	t.mark++
	switch t.o.Heuristic {
	case DTR:
		return t.ancestors(s) + t.descendants(s)
	case DTREquivalence:
		return t.components(s)
	}
	return 0
}

// ancestors returns the cost of the evicted values that lead to s.
func (t *Tape[V]) ancestors(s *storage[V]) (cost float64) {
	t.stack = append(t.stack[:0], s)
	for len(t.stack) > 0 {
		s := t.pop()
		for _, y := range s.operands {
			cost += t.visit(y.s)
		}
	}
	return cost
}

// descendants returns the cost of the evicted values that s leads to.
func (t *Tape[V]) descendants(s *storage[V]) (cost float64) {
	t.stack = append(t.stack[:0], s)
	for len(t.stack) > 0 {
		s := t.pop()
		for _, c := range s.children {
			cost += t.visit(c)
		}
	}
	return cost
}

func (t *Tape[V]) pop() *storage[V] {
	end := len(t.stack) - 1
	s := t.stack[end]
	t.stack = t.stack[:end]
	return s
}

// visit returns the cost of s, to be walked on from, if it is evicted and met
// for the first time.
func (t *Tape[V]) visit(s *storage[V]) float64 {
	if !s.evicted() || s.mark == t.mark {
		return 0
	}
	s.mark = t.mark
	t.stack = append(t.stack, s)
	return s.cost
}

// evictedSet is a component of evicted values, as a tree. The root has the cost.
type evictedSet struct {
	parent *evictedSet // nil in the root
	cost   float64
	mark   int // of the latest walk that came here
}

func (e *evictedSet) root() *evictedSet {
	for e.parent != nil {
		if e.parent.parent != nil {
			e.parent = e.parent.parent
		}
		e = e.parent
	}
	return e
}

// components returns the cost of the components that touch s.
func (t *Tape[V]) components(s *storage[V]) (cost float64) {
	s.around(func(e *evictedSet) {
		if e.mark != t.mark {
			e.mark = t.mark
			cost += e.cost
		}
	})
	return cost
}

// around calls do with the roots of the components of the evicted operands and
// children of s, any number of times each.
func (s *storage[V]) around(do func(root *evictedSet)) {
	for _, y := range s.operands {
		if y.s.set != nil {
			do(y.s.set.root())
		}
	}
	for _, c := range s.children {
		if c.set != nil {
			do(c.set.root())
		}
	}
}

// joinSet puts s, which was just evicted, into a component with those around.
func (t *Tape[V]) joinSet(s *storage[V]) {
	if t.o.Heuristic != DTREquivalence || !s.evicted() {
		return
	}
	own := &evictedSet{cost: s.cost}
	s.set, s.setCost = own, s.cost
	s.around(func(e *evictedSet) {
		if root := own.root(); e != root {
			e.cost += root.cost
			root.parent = e
		}
	})
}

// leaveSet takes s, which is no longer evicted, out of its component. The
// others stay together, which is the approximation.
func (t *Tape[V]) leaveSet(s *storage[V]) {
	if s.set == nil {
		return
	}
	root := s.set.root()
	root.cost = max(0, root.cost-s.setCost)
	s.set = nil
}
