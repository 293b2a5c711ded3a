package accum

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/measure"
)

// This file is the layout of a Window's saved state.

// header is what is saved of a Window before its parameters.
type header struct {
	DType                          uint32
	Step                           int64
	Seen                           float64
	TargetMicros                   int64
	TargetWeight                   float64
	Micros                         int64
	Weight, Micro                  float64
	Scale                          float32
	Full, Open, Dropped, InPlace   bool
	Windows, Skipped, Ended, Drops int64
	Noise                          noiseSums
	TotalWeight                    float64
	TotalMicros                    int64
	Params, Overflows, Records     uint32
}

type noiseSums struct {
	Sum, Weight, First, FirstWeight float64
	Counted                         int64
	InPlace                         bool
}

type paramState struct {
	Len            uint64
	Added, InPlace bool
}

type overflowState struct {
	Count, Index int64
	Value        float32
	Micro        int64
}

// header1 is the header of version 1.
type header1 struct {
	Step, Size, Micros             int64
	Weight, Micro                  float64
	Full, Open, Dropped            bool
	Windows, Skipped, Ended, Drops int64
	DropIndex                      int64
	DropValue                      float32
	Params                         uint32
}

func (h *header1) upgrade() header {
	return header{
		DType: uint32(snug.F32), Step: h.Step, TargetMicros: h.Size, Micros: h.Micros,
		Weight: h.Weight, Micro: h.Micro, Full: h.Full, Open: h.Open, Dropped: h.Dropped,
		Windows: h.Windows, Skipped: h.Skipped, Ended: h.Ended, Drops: h.Drops, TotalWeight: h.Weight,
		Params: h.Params,
	}
}

func (w *Window) header() header {
	return header{
		DType: uint32(w.dtype), Step: int64(w.progress.Step), Seen: w.progress.Weight,
		TargetMicros: int64(w.target.Micros), TargetWeight: w.target.Weight, Micros: int64(w.micros),
		Weight: w.weight, Micro: w.micro, Scale: w.scale,
		Full: w.full, Open: w.open, Dropped: w.dropped, InPlace: w.inPlace,
		Windows: int64(w.stats.Windows), Skipped: int64(w.stats.Skipped),
		Ended: int64(w.stats.Micros), Drops: int64(w.stats.Dropped),
		Noise: noiseSums{
			w.noise.sum, w.noise.weight, w.noise.first, w.noise.firstWeight, int64(w.noise.counted), w.noise.inPlace,
		},
		TotalWeight: w.total.weight, TotalMicros: int64(w.total.micros),
		Params: uint32(len(w.params)), Overflows: uint32(len(w.overflows)),
	}
}

// holds reports whether the accumulators' contents matter and are saved.
func (h *header) holds() bool { return h.Micros > 0 || h.Open || h.Full }

// check returns an error unless w can have the state h.
func (h *header) check(w *Window) error {
	for _, n := range []int64{h.Step, h.TargetMicros, h.Micros, h.Windows, h.Skipped, h.Ended, h.Drops, h.Noise.Counted, h.TotalMicros} {
		if n < 0 || n > math.MaxInt {
			return fmt.Errorf("saved state: a count of %d: %w", n, snug.ErrCorrupt)
		}
	}
	for _, x := range []float64{h.Seen, h.TargetWeight, h.Weight, h.Micro, h.TotalWeight, h.Noise.Weight, h.Noise.FirstWeight} {
		if !(x >= 0 && x <= math.MaxFloat64) {
			return fmt.Errorf("saved state: a weight of %v: %w", x, snug.ErrCorrupt)
		}
	}
	switch {
	case h.Full && (h.Open || h.Micros == 0 && h.TotalMicros == 0):
		return fmt.Errorf("saved state: a full window of %d micro-batches, open %t: %w", h.Micros, h.Open, snug.ErrCorrupt)
	case !(h.Noise.Sum >= 0 && h.Noise.First >= 0 && h.Scale >= 0):
		return fmt.Errorf("saved state: squares of %v, a scale of %v: %w", h.Noise, h.Scale, snug.ErrCorrupt)
	case h.Overflows > 1<<20 || h.Records > measure.MaxRecords:
		return fmt.Errorf("saved state: %d overflows, %d records: %w", h.Overflows, h.Records, snug.ErrCorrupt)
	case h.DType != uint32(w.dtype):
		return fmt.Errorf("saved state of %s, want %s: %w", snug.DType(h.DType), w.dtype, snug.ErrDType)
	}
	return nil
}
