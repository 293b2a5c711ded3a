package layers

// Split divides a sample of several sequences in two, as train.Trainer.SplitBy wants it: the first half, rounded down, and the rest. ok
// is false for one sequence. Rows that do not belong together, such as images, are sequences of one row. The second half draws other
// random numbers: Draw and as many numbers after it as there are sequences belong to the sample.
func (s Sample) Split() (a, b Sample, ok bool) {
	n := max(1, s.Sequences)
	if s.Starts != nil {
		n = len(s.Starts) - 1
	}
	if n < 2 {
		return a, b, false
	}
	first := n / 2
	rows, before := n, first // any number in this ratio
	if s.Starts != nil {
		rows, before = s.Starts[n], s.Starts[first]
	}
	a, b = s, s
	cut(&a.X, &b.X, before, rows)
	cut(&a.Y, &b.Y, before, rows)
	cut(&a.Tokens, &b.Tokens, before, rows)
	cut(&a.Labels, &b.Labels, before, rows)
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

// cut leaves before of rows in a, and the rest in b.
func cut[T any](a, b *[]T, before, rows int) {
	at := len(*a) / rows * before
	*a, *b = (*a)[:at], (*b)[at:]
}
