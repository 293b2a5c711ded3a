package remat

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Cost is the memory and time of one stage. Sizes are in bytes, times in any one unit for
// the whole chain; seconds make them comparable with measured ones.
type Cost struct {
	Name          string  `json:"name,omitempty"`           // for people; may be empty
	Output        int64   `json:"output"`                   // |a_{i+1}|, and of the gradient with respect to it
	Saved         int64   `json:"saved"`                    // |s_i|, the output included
	ForwardExtra  int64   `json:"forward_extra,omitempty"`  // f_i, transient
	BackwardExtra int64   `json:"backward_extra,omitempty"` // b_i, transient
	ForwardTime   float64 `json:"forward_time,omitempty"`   // of either forward operation
	BackwardTime  float64 `json:"backward_time,omitempty"`

	// Packed is the size of the saved set in a lossy form, such as
	// [github.com/snug-ml/snug/remat/pack.Int8]; 0 means that there is none. PackTime
	// and UnpackTime are the times of packing and unpacking.
	Packed     int64   `json:"packed,omitempty"`
	PackTime   float64 `json:"pack_time,omitempty"`
	UnpackTime float64 `json:"unpack_time,omitempty"`
}

// Costs are the memory and time of a chain. They are plain JSON in and out; all
// functions that take them validate them.
type Costs struct {
	Input  int64  `json:"input"` // |a_0| in bytes
	Stages []Cost `json:"stages"`
	Host   Rates  `json:"host,omitzero"` // between device and host memory
	Disk   Rates  `json:"disk,omitzero"` // between device memory and disk
}

// Validate reports whether c describes a chain: at least one stage, no negative
// size, no stage that saves less than its output, times from 0 to 1e200, rates of 0 or
// from 1e-30 to 1e200, and sizes whose sum an int64 holds. The error wraps
// [snug.ErrConfig].
func (c Costs) Validate() error {
	if len(c.Stages) == 0 {
		return fmt.Errorf("remat: costs: want at least one stage: %w", snug.ErrConfig)
	}
	var t total
	for range 2 { // a_0 and d_0
		if !t.add(c.Input) {
			return fmt.Errorf("remat: costs: input of %d bytes: want 0 or more, and a total that fits in 63 bits: %w", c.Input, snug.ErrConfig)
		}
	}
	for i, s := range c.Stages {
		for _, size := range [...]int64{s.Output, s.Output, s.Saved, s.ForwardExtra, s.BackwardExtra, s.Packed} {
			if !t.add(size) {
				return fmt.Errorf("remat: costs: stage %d (%q): size of %d bytes: want 0 or more, and a total that fits in 63 bits: %w", i, s.Name, size, snug.ErrConfig)
			}
		}
		if s.Saved < s.Output {
			return fmt.Errorf("remat: costs: stage %d (%q) saves %d bytes: want at least its output of %d: %w", i, s.Name, s.Saved, s.Output, snug.ErrConfig)
		}
		for _, d := range [...]float64{s.ForwardTime, s.BackwardTime, s.PackTime, s.UnpackTime} {
			if !(d >= 0 && d <= maxTime) {
				return fmt.Errorf("remat: costs: stage %d (%q): time %v: want a number from 0 to %g: %w", i, s.Name, d, maxTime, snug.ErrConfig)
			}
		}
	}
	if err := c.Host.validate(Host); err != nil {
		return err
	}
	return c.Disk.validate(Disk)
}

// maxTime limits times and rates, and minRate limits rates, so that sums of times and
// products of a time and a size are finite.
const (
	maxTime = 1e200
	minRate = 1e-30
)

// total is a sum of sizes that can be held at one time.
type total int64

// add adds size and reports whether it was not negative and the sum fits.
func (t *total) add(size int64) bool {
	if size < 0 || int64(*t) > math.MaxInt64-size {
		return false
	}
	*t += total(size)
	return true
}

// value returns |a_i|, which is |d_i|.
func (c Costs) value(i int) int64 {
	if i == 0 {
		return c.Input
	}
	return c.Stages[i-1].Output
}

// rates returns the rates of a tier.
func (c Costs) rates(t Tier) Rates {
	if t == Host {
		return c.Host
	}
	return c.Disk
}

// copySize returns the size of a copy of the result of a stage.
func (c Costs) copySize(stage int, copied form, t Tier) int64 {
	s := &c.Stages[stage]
	switch {
	case t == Packed:
		return s.Packed
	case copied == saved:
		return s.Saved
	}
	return s.Output
}

// size returns the declared size of a value.
func (c Costs) size(kind ValueKind, i int) int64 {
	switch {
	case kind == SavedSet:
		return c.Stages[i].Saved
	case kind.transient():
		return c.Stages[i].transient(kind)
	}
	return c.value(i)
}

// transient returns the declared transient bytes of a step.
func (c *Cost) transient(kind ValueKind) int64 {
	if kind == ForwardTransient {
		return c.ForwardExtra
	}
	return c.BackwardExtra
}
