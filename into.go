package snug

import "fmt"

// Into says how a result g, such as a gradient or a product, enters an accumulator acc:
//
//	acc = Beta·acc + Alpha·g
//
// The zero value overwrites: with Beta 0 the accumulator is not read, and an Alpha of 0
// means 1. Into{Beta: 1} adds. The weighted running mean of a window of micro-batches,
// acc += w·(g − acc), is Into{Alpha: w, Beta: 1 - w}. To add nothing, do not call.
type Into struct {
	Alpha float32 // factor of g; 0 means 1
	Beta  float32 // factor of what the accumulator holds
}

// Factors returns the factors of g and of the accumulator, for a loop or a kernel that
// applies o. The error wraps [ErrConfig]: a factor is NaN or infinite.
func (o Into) Factors() (alpha, beta float32, err error) {
	for _, f := range [...]float32{o.Alpha, o.Beta} {
		if f-f != 0 {
			return 0, 0, fmt.Errorf("accumulate with Alpha %v and Beta %v, want finite numbers: %w", o.Alpha, o.Beta, ErrConfig)
		}
	}
	if o.Alpha == 0 {
		return 1, o.Beta, nil
	}
	return o.Alpha, o.Beta, nil
}
