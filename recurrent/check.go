package recurrent

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Batch is how rows divide into sequences.
type Batch struct {
	Rows      int
	Sequences int   // of Rows/Sequences rows each; 0 stands for 1
	Starts    []int // unless nil, sequence i has the rows Starts[i] to Starts[i+1]-1, and Sequences is 0 or their number
}

// count returns the number of sequences.
func (b *Batch) count() int {
	if b.Starts != nil {
		return len(b.Starts) - 1
	}
	return max(1, b.Sequences)
}

// rows returns the rows lo to hi-1 of sequence i.
func (b *Batch) rows(i int) (lo, hi int) {
	if b.Starts != nil {
		return b.Starts[i], b.Starts[i+1]
	}
	n := b.Rows / b.count()
	return i * n, (i + 1) * n
}

func (b *Batch) check() error {
	n := b.count()
	switch {
	case b.Rows < 1 || b.Rows > math.MaxInt32:
		return fmt.Errorf("%d rows, want 1 to 2^31-1: %w", b.Rows, snug.ErrShape)
	case b.Sequences < 0 || b.Starts != nil && b.Sequences != 0 && b.Sequences != n:
		return fmt.Errorf("%d sequences, and %d Starts: %w", b.Sequences, len(b.Starts), snug.ErrShape)
	case b.Starts == nil && b.Rows%n != 0:
		return fmt.Errorf("%d rows, want a multiple of %d sequences: %w", b.Rows, n, snug.ErrShape)
	case b.Starts != nil && (n < 1 || b.Starts[0] != 0 || b.Starts[n] != b.Rows):
		return fmt.Errorf("the Starts are %v, want 0 first and the %d rows last: %w", b.Starts[:min(len(b.Starts), 8)], b.Rows, snug.ErrShape)
	}
	for i := range n {
		if lo, hi := b.rows(i); hi <= lo {
			return fmt.Errorf("sequence %d has the rows %d to %d, want one or more: %w", i, lo, hi-1, snug.ErrShape)
		}
	}
	return nil
}

// kept returns the number of states of a head that the first sequences keep, one for every SegmentRows rows but the first.
func (b *Batch) kept(sequences int) (n int) {
	if b.Starts == nil {
		return sequences * ((b.Rows/b.count() - 1) / SegmentRows)
	}
	for i := range sequences {
		lo, hi := b.rows(i)
		n += (hi - lo - 1) / SegmentRows
	}
	return n
}

// longest returns the rows of the longest sequence, chunkRows or SegmentRows at most.
func (b *Batch) longest(most int) (n int) {
	if b.Starts == nil {
		return min(b.Rows/b.count(), most)
	}
	for i := range b.count() {
		lo, hi := b.rows(i)
		n = max(n, hi-lo)
	}
	return min(n, most)
}

// operand is a vector with its name in errors and the elements that it has, or at least has.
type operand struct {
	name     string
	view     snug.View
	want     int
	longer   bool // may have more
	optional bool // may have none
}

// check returns an error unless floats have one type of floats, singles hold float32, all have their lengths, and all lie on the CPU.
func check(op string, floats, singles []operand) error {
	dt, first := snug.DType(0), ""
	for _, o := range floats {
		switch have := o.view.DType(); {
		case o.view.Len() == 0:
		case !have.IsFloat():
			return fmt.Errorf("recurrent: %s: %s holds %v, want f32, f16 or bf16: %w", op, o.name, have, snug.ErrDType)
		case dt == 0:
			dt, first = have, o.name
		case have != dt:
			return fmt.Errorf("recurrent: %s: %s holds %v, want %v as %s: %w", op, o.name, have, dt, first, snug.ErrDType)
		}
	}
	for _, o := range singles {
		if o.view.Len() > 0 && o.view.DType() != snug.F32 {
			return fmt.Errorf("recurrent: %s: %s holds %v, want f32: %w", op, o.name, o.view.DType(), snug.ErrDType)
		}
	}
	for _, list := range [...][]operand{floats, singles} {
		for _, o := range list {
			have := o.view.Len()
			if have == o.want || o.longer && have > o.want || o.optional && have == 0 {
				continue
			}
			return fmt.Errorf("recurrent: %s: %s has %d elements, want %d: %w", op, o.name, have, o.want, snug.ErrShape)
		}
	}
	for _, list := range [...][]operand{floats, singles} {
		for _, o := range list {
			if o.view.Len() > 0 && !o.view.Device().IsCPU() {
				return fmt.Errorf("recurrent: %s: %s is on %s, and the CPU alone computes this: %w", op, o.name, o.view.Device(), snug.ErrDevice)
			}
		}
	}
	return nil
}

// product returns the product of positive factors, or an error above 2^40, which is more than any vector has.
func product(factors ...int) (int, error) {
	n := int64(1)
	for _, f := range factors {
		if f < 1 || n > 1<<40/int64(f) {
			return 0, fmt.Errorf("sizes %v, want 1 or more each and 2^40 elements at most: %w", slices.Clone(factors), snug.ErrShape)
		}
		n *= int64(f)
	}
	if n > math.MaxInt {
		return 0, fmt.Errorf("%d elements are too many for this machine: %w", n, snug.ErrShape)
	}
	return int(n), nil
}

// tiles cuts a buffer.
type tiles []float32

func (t *tiles) take(n int) []float32 {
	x := (*t)[:n:n]
	*t = (*t)[n:]
	return x
}

// floats returns elements lo to lo+n-1 of a state, nil if it has none.
func floats(v snug.View, lo, n int) []float32 {
	if v.Len() == 0 {
		return nil
	}
	return snug.Host[float32](v)[lo:][:n:n]
}
