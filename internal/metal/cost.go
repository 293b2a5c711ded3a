//go:build metal

package metal

import "math/bits"

// The system kills a command buffer that keeps the GPU for too long from what draws the screen.
// How long that is is not documented, so the driver keeps all of them short: it measures how long
// command buffers take, derives what a block of every kernel costs, commits when the work is
// worth budget, and launches a grid that is worth more in pieces. A command buffer takes at most
// twice the budget, as far as kernels cost what they did before.
const (
	budget = 0.05 // seconds

	// guess is the time of a launch of few blocks that was never measured.
	guess = budget / 4
	// probe is how many blocks of a kernel run alone, to measure them, before more are queued.
	probe = 64

	secondsPerMAC  = 1e-12    // of a product that was never measured: 2 TFLOP/s
	secondsPerByte = 1 / 2e10 // of a copy
)

// cost is what a unit of a command takes: a block of a kernel, a multiplication of a product, a
// byte of a copy. 0 is unknown.
type cost struct{ seconds float64 }

// costs are the costs of a kernel's blocks by the bytes of its operands: a block of attention takes
// the longer the more keys there are.
type costs [65]cost

func (c *costs) of(operands []part) *cost {
	bytes := 0
	for _, p := range operands {
		bytes += p.n
	}
	return &c[bits.Len(uint(bytes))]
}

// charge is what a command of a command buffer costs.
type charge struct {
	*cost
	units float64
}

// seconds is how long the command is expected to take.
func (c charge) expected() float64 {
	if c.seconds == 0 {
		return guess
	}
	return c.seconds * c.units
}

// learn corrects costs by the time of a command buffer with these charges. If some of them were
// unknown they take what the others leave.
func learn(charges []charge, seconds float64) {
	var known, unknown, units float64
	for _, c := range charges {
		if c.seconds == 0 {
			unknown++
			units += c.units
			continue
		}
		known += c.expected()
	}
	switch {
	case seconds <= 0 || len(charges) == 0:
		return // the system did not measure
	case unknown > 0:
		each := max(seconds-known, seconds/float64(1+len(charges))) / units
		for _, c := range charges {
			if c.seconds == 0 {
				c.seconds = each
			}
		}
	default:
		for i, c := range charges {
			if !chargedBefore(charges[:i], c.cost) {
				c.seconds *= seconds / known
			}
		}
	}
}

func chargedBefore(charges []charge, c *cost) bool {
	for _, x := range charges {
		if x.cost == c {
			return true
		}
	}
	return false
}

// piece is struct SnugPiece of metal.h: where a launch begins in its grid, and the size of the
// grid, both in blocks.
type piece struct{ first, blocks [3]uint32 }

// next returns the largest box of a grid, of at most limit blocks and at least one, that begins
// at block number at, counted along the first dimension, then the second, then the third. Boxes
// one after the other cover the grid.
func next(grid [3]int, at, limit int) (first, extent [3]int) {
	row, plane := grid[0], grid[0]*grid[1]
	first = [3]int{at % row, at / row % grid[1], at / plane}
	switch {
	case first[0] == 0 && first[1] == 0 && limit >= plane:
		extent = [3]int{row, grid[1], min(grid[2]-first[2], limit/plane)}
	case first[0] == 0 && limit >= row:
		extent = [3]int{row, min(grid[1]-first[1], limit/row), 1}
	default:
		extent = [3]int{min(row-first[0], max(1, limit)), 1, 1}
	}
	return first, extent
}
