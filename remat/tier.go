package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Tier is the kind of memory that keeps a copy of a value.
type Tier uint8

// The tiers.
const (
	Packed Tier = iota // device memory, in fewer bytes and not exactly
	Host               // host memory
	Disk               // files
	tiers
)

// String returns "packed", "host" or "disk".
func (t Tier) String() string {
	if t >= tiers {
		return "?"
	}
	return [...]string{"packed", "host", "disk"}[t]
}

// tier returns the tier in which an operation puts a copy.
func (k Kind) tier() Tier { return Tier(k - Pack) }

// Rates are the speeds of transfers to and from a tier, in bytes for each unit of the
// time that [Cost] uses. Transfers in the two directions, and to different tiers, do
// not delay each other or computation. 0 means that there is no such tier.
type Rates struct {
	Write float64 `json:"write"` // to the tier
	Read  float64 `json:"read"`  // from it
}

func (r Rates) validate(t Tier) error {
	for _, v := range [...]float64{r.Write, r.Read} {
		if v != 0 && !(v >= minRate && v <= maxTime) {
			return fmt.Errorf("remat: costs: rate %v of %v: want 0 or a number from %g to %g: %w", v, t, minRate, maxTime, snug.ErrConfig)
		}
	}
	if (r.Write == 0) != (r.Read == 0) {
		return fmt.Errorf("remat: costs: rates %v and %v of %v: want both, or neither: %w", r.Write, r.Read, t, snug.ErrConfig)
	}
	return nil
}

// clock is the time that a plan takes. Computation is a sequence; each tier has a
// channel to it and one from it, that take one transfer after the other.
type clock struct {
	now     float64
	waited  float64 // for transfers
	out, in [tiers]float64
	stored  []float64 // by stage: when the copy is complete
	loaded  []float64 // by stage: when the load is complete
}

// start sets the clock to 0 for a plan with copies for so many stages.
func (c *clock) start(stages int) {
	*c = clock{stored: make([]float64, stages), loaded: make([]float64, stages)}
}

// wait lets the time pass until at.
func (c *clock) wait(at float64) {
	if at > c.now {
		c.waited += at - c.now
		c.now = at
	}
}

// write begins to copy size bytes of the result of a stage.
func (c *clock) write(stage int, t Tier, size int64, rates Rates) {
	c.out[t] = max(c.out[t], c.now) + float64(size)/rates.Write
	c.stored[stage] = c.out[t]
}

// read begins to load them.
func (c *clock) read(stage int, t Tier, size int64, rates Rates) {
	c.in[t] = max(c.in[t], c.now, c.stored[stage]) + float64(size)/rates.Read
	c.loaded[stage] = c.in[t]
}
