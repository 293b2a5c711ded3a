package optim

import "slices"

// Mark is how far a part of a parameter is in the current step.
type Mark uint8

const (
	Waiting Mark = iota // not updated since the step began
	Claimed             // a call that is to update it has written nothing of it
	Begun               // such a call writes it, or has left it half-way
	Updated
)

// Marks are the marks of the parts of a parameter. The caller guards them against concurrent
// calls.
type Marks []Mark

// NewMarks returns marks for a number of parts, at least one.
func NewMarks(parts int) Marks { return make(Marks, max(1, parts)) }

// Claim claims parts first to last-1 if all of them wait, and returns -1. Otherwise it claims
// none and returns the first part that does not wait.
func (m Marks) Claim(first, last int) int {
	if i := slices.IndexFunc(m[first:last], func(x Mark) bool { return x != Waiting }); i >= 0 {
		return first + i
	}
	m.Set(first, last, Claimed)
	return -1
}

// Set marks parts first to last-1.
func (m Marks) Set(first, last int, x Mark) {
	for i := first; i < last; i++ {
		m[i] = x
	}
}

// Settle ends a claim. After a failure the parts wait again, unless they are updated or
// begun: then Settle reports that the state is half of one step and half of another.
func (m Marks) Settle(first, last int, ok bool) (half bool) {
	if ok {
		m.Set(first, last, Updated)
		return false
	}
	for i := first; i < last; i++ {
		if m[i] == Claimed {
			m[i] = Waiting
		}
		half = half || m[i] == Begun
	}
	return half
}

// All says whether all parts have a mark.
func (m Marks) All(x Mark) bool { return !slices.ContainsFunc(m, func(y Mark) bool { return y != x }) }

// Bits returns a bit for every part, the first in the lowest of byte 0: whether it is
// updated.
func (m Marks) Bits() []byte {
	bits := make([]byte, BitBytes(len(m)))
	for i, x := range m {
		if x == Updated {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

// ValidBits says whether b can be the Bits of so many parts.
func ValidBits(b []byte, parts int) bool {
	parts = max(1, parts)
	return len(b) == BitBytes(parts) && b[len(b)-1]>>((parts-1)%8) <= 1
}

// BitBytes returns the length of the Bits of so many parts.
func BitBytes(parts int) int { return (max(1, parts)-1)/8 + 1 }
