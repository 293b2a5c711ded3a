package dataset

import (
	"iter"
	"slices"
)

// commonPrefix returns how many elements at the beginning of two lists are equal.
func commonPrefix[E comparable](a, b []E) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// cut returns the tokens that the context leaves, with the one that is a label only.
func (s *Set) cut(tokens []int32) []int32 { return tokens[:min(s.options.Context+1, len(tokens))] }

// predicted returns how many tokens after the first count as labels.
func predicted(tokens []int32) (n int) {
	for i, t := range tokens {
		if t >= 0 && i > 0 {
			n++
		}
	}
	return n
}

// Pairs returns the number of pairs, including those that are held out. Their numbers are 0 to Pairs-1.
func (s *Set) Pairs() int {
	if !s.options.Pairs {
		return 0
	}
	return s.list.n
}

// Once yields the pairs that steps first to last-1 train on and the held-out pairs, each pair once, in micro-batches of
// at most micro. A pair is in the same micro-batch whatever the steps are, so Once may also yield pairs that these steps
// do not train on. It ends after an error.
func (s *Set) Once(first, last, samples, micro int) iter.Seq2[Batch, error] {
	n := s.training()
	needed := make([]bool, n)
	for i := range min(int64(last-first)*int64(samples), 2*int64(n)) { // 2·n in a row contain a whole epoch
		needed[s.number(int64(first)*int64(samples)+i)] = true
	}
	s.enter(0)
	order := slices.Clone(s.order)
	return func(yield func(Batch, error) bool) {
		for lo := 0; lo < n; lo += micro {
			var group []int
			for _, i := range order[lo:min(lo+micro, n)] {
				group = append(group, int(i))
			}
			if !slices.ContainsFunc(group, func(i int) bool { return needed[i] }) {
				continue
			}
			if b, err := s.batch(group); !yield(b, err) || err != nil {
				return
			}
		}
		s.HeldOut(micro)(yield)
	}
}
