package measure

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
)

// MaxVectors is how many vectors a launch of joined passes goes over at most, as in measure.h.
const MaxVectors = 100

// Pieces returns the number of pieces of a vector of a device.
func Pieces(v snug.View) int { return cpu.Chunks(v.Len(), Piece(v.Device(), v.Len())) }

// Fits reports whether a pass over next, with records of its own, can be one launch with a pass over first and with those
// that have joined that, whose Units are the numbers of their pieces.
func Fits[J any](records, own *Records, first, next snug.View, ordinal int64, joined *driver.Joined[J]) bool {
	pieces := Pieces(first) + Pieces(next)
	if joined != nil {
		pieces += joined.Units
	}
	return records.View == own.View && pieces <= MaxParts && ordinal <= math.MaxUint32
}
