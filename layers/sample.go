package layers

import "slices"

// Split divides a sample of n sequences into the first n/2, rounded down, and the rest. ok is false if n is below 2, if the
// sequences do not divide the rows, as no model takes them, or if Sample.Decoder or Parts cannot be split. It is a function for
// train.Trainer.SplitBy. To split a batch of images, which do not depend on each other, set Sequences to their number.
//
// The halves share the memory of s, except for new Starts and Parts in b. The Draw of b is s.Draw + n/2. So that random numbers are drawn once,
// leave n-1 unused values after the Draw of a sample.
func (s Sample) Split() (a, b Sample, ok bool) {
	n := max(1, s.Sequences)
	if s.Starts != nil {
		n = len(s.Starts) - 1
	}
	if n < 2 {
		return a, b, false
	}
	first := n / 2
	rows, before := n, first // cut takes the ratio only
	if s.Starts != nil {
		rows, before = s.Starts[n], s.Starts[first]
	}
	for i := range len(s.Starts) - 1 {
		if s.Starts[0] != 0 || s.Starts[i] >= s.Starts[i+1] {
			return a, b, false
		}
	}
	if len(s.X)%rows+len(s.Y)%rows+len(s.Tokens)%rows+len(s.Labels)%rows > 0 {
		return a, b, false
	}
	for _, list := range s.Positions {
		if len(list)%rows > 0 {
			return a, b, false
		}
	}
	a, b = s, s
	cut(&a.X, &b.X, before, rows)
	cut(&a.Y, &b.Y, before, rows)
	cut(&a.Tokens, &b.Tokens, before, rows)
	cut(&a.Labels, &b.Labels, before, rows)
	a.Positions, b.Positions = slices.Clone(s.Positions), slices.Clone(s.Positions)
	for i := range s.Positions {
		cut(&a.Positions[i], &b.Positions[i], before, rows)
	}
	if n := len(s.Parts); n > 0 {
		middle := s.Parts[n-1] / rows * before
		at, found := slices.BinarySearch(s.Parts, middle)
		if !found {
			return Sample{}, Sample{}, false
		}
		a.Parts, b.Parts = s.Parts[:at+1], slices.Clone(s.Parts[at:])
		for i := range b.Parts {
			b.Parts[i] -= middle
		}
	}
	b.Draw = s.Draw + uint64(first)
	if a.Sequences, b.Sequences = first, n-first; s.Starts != nil {
		a.Sequences, b.Sequences = 0, 0
		a.Starts, b.Starts = s.Starts[:first+1], make([]int, n-first+1)
		for i := range b.Starts {
			b.Starts[i] = s.Starts[first+i] - before
		}
	}
	if s.Decoder != nil {
		x, y, ok := s.Decoder.Split()
		if a.Decoder, b.Decoder = &x, &y; !ok {
			return Sample{}, Sample{}, false
		}
	}
	return a, b, true
}

// cut leaves the elements of the first rows, so many as before, in a, and moves the others to b.
func cut[T any](a, b *[]T, before, rows int) {
	at := len(*a) / rows * before
	*a, *b = (*a)[:at], (*b)[at:]
}
