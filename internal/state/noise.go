package state

import (
	"fmt"
	"math"
)

// NoiseMagic names the state of a noise scale of package accum.
const NoiseMagic = "SNUGNOIS"

// Noise is the header of the state of a noise scale: its running means. It has no data.
type Noise struct{ Noise, Signal, Seen float64 }

// GetNoise reads and checks it.
func (d *Decoder) GetNoise() (n Noise) {
	d.Get(&n)
	if sum := n.Noise + n.Signal; math.IsNaN(sum) || math.IsInf(sum, 0) || !(n.Seen >= 0 && n.Seen <= 1) {
		d.Corrupt("a noise scale of %+v", n)
	}
	return n
}

func describeNoise(d *Decoder) Description {
	n := d.GetNoise()
	return Description{Note: fmt.Sprintf("noise %.4g, signal %.4g", n.Noise, n.Signal)}
}
