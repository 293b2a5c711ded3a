package tape

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestHeuristics: what each evicts first of four values, computed one after the
// other:
//
//	     a     b     c     d
//	cost 6     2     3     1
//	size 1     1     2     1
//
// d is computed from e, which cost 20 and is evicted. With a staleness of 5, 4, 3 and 1 at the end,
// cost/(bytes·staleness) is 1.2, 0.5, 0.5 and 1.
func TestHeuristics(t *testing.T) {
	for h, want := range map[Heuristic]string{
		DTR:            "bcad", // d with e has 21
		DTREquivalence: "bcad",
		DTRLocal:       "bcda",
		Largest:        "cabd",
		LRU:            "abcd",
	} {
		s := newTester(t, t.Context(), func(o *Options[[]float32]) { o.Heuristic = h })
		a := s.mustDo(Op{Name: "a", Cost: 6}, 1)
		b := s.mustDo(Op{Name: "b", Cost: 2}, 1)
		c := s.mustDo(Op{Name: "c", Cost: 3}, 2)
		e := s.mustDo(Op{Name: "e", Cost: 20}, 1)
		d := s.mustDo(Op{Name: "d", Cost: 1}, 1, e)
		require.NoError(t, s.free(e))
		got := ""
		for range 4 {
			victim, kept := s.tape.victim()
			require.Zero(t, kept)
			got += victim.op.Name
			s.tape.drop(victim)
		}
		require.Equal(t, want, got, h.String())
		require.Equal(t, "----", inMemory(a, b, c, d))
		victim, _ := s.tape.victim()
		require.Nil(t, victim)
		s.finish()
	}
	require.Equal(t, "?", heuristics.String())
}

// TestNeighbourhood: only evicted values count, up and down, through evicted ones.
//
//	a → b → c → d → e      with a, b and e evicted, f too
//	    ↓   ↓
//	    f   g
func TestNeighbourhood(t *testing.T) {
	s := newTestTape(t, 0, nil)
	cost := 0.5
	next := func(operands ...*tested) *tested {
		cost *= 2
		return s.mustDo(Op{Name: "op", Cost: cost}, 1, operands...)
	}
	a := next() // 1
	b := next(a)
	c := next(b) // 4
	d := next(c)
	e := next(d) // 16
	f := next(b)
	g := next(c) // 64
	for _, y := range []*tested{a, b, e, f} {
		s.tape.drop(y.s)
	}
	neighbourhood := func(y *tested) float64 { return s.tape.neighbourhood(y.s) }
	require.Equal(t, 2.0+1, neighbourhood(c), "f is not needed for it")
	require.Equal(t, 16.0, neighbourhood(d))
	require.Zero(t, neighbourhood(g))
	s.tape.drop(d.s)
	require.Equal(t, 2.0+1+8+16, neighbourhood(c))
	c.s.decision = Offload
	require.Zero(t, neighbourhood(c), "it would be moved")

	// All of a component count in the approximation, and those that left it
	// leave the others together.
	s.finish()
	s = newTester(t, t.Context(), func(o *Options[[]float32]) { o.Heuristic = DTREquivalence })
	cost = 0.5
	a = next()
	b = next(a)
	c = next(b)
	d = next(c)
	e = next(b)
	f = next(e)
	for _, y := range []*tested{a, b, e} {
		s.tape.drop(y.s)
	}
	require.Equal(t, 1.0+2+16, neighbourhood(c))
	require.Equal(t, 1.0+2+16, neighbourhood(f))
	require.NoError(t, s.get(b))
	s.tape.drop(a.s)
	require.Equal(t, 16.0, neighbourhood(f))
	require.Equal(t, 1.0+16, neighbourhood(b), "a is a component again, e another")
	require.Zero(t, neighbourhood(d))
	s.finish()
}

// TestEvictedSets: the components hold the cost of the evicted values, no more
// and no less, whatever happens.
func TestEvictedSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTester(t, t.Context(), func(o *Options[[]float32]) {
			o.Budget, o.Heuristic, o.Policy, o.MaxRecompute = 80, DTREquivalence, byValue, 1e9
		})
		for range 40 {
			_ = act(t, s, true) // some do not fit
			members, roots := s.components()
			require.InDelta(t, members, roots, 1e-6)
		}
		s.finish()
	})
}

// components returns the cost of all evicted values that the Tape knows, and that
// of all components.
func (s *tester) components() (members, roots float64) {
	seen, sets := map[*storage[[]float32]]bool{}, map[*evictedSet]bool{}
	var visit func(*storage[[]float32])
	visit = func(v *storage[[]float32]) {
		if seen[v] {
			return
		}
		seen[v] = true
		require.Equal(s.t, v.evicted(), v.set != nil)
		if v.set != nil {
			members += v.setCost
			if root := v.set.root(); !sets[root] {
				sets[root] = true
				roots += root.cost
			}
		}
		for _, y := range v.operands {
			visit(y.s)
		}
	}
	for _, y := range s.values {
		if y.s.users > 0 {
			visit(y.s)
		}
	}
	return members, roots
}
