package state

import "fmt"

// ZerothMagic names the state of a zeroth-order optimizer of package quant8.
const ZerothMagic = "SNUGMEZO"

// Zeroth is the header of this state. No data follows it.
type Zeroth struct{ Seed, Steps uint64 }

func describeZeroth(d *Decoder) Description {
	var s Zeroth
	d.Get(&s)
	return Description{Note: fmt.Sprintf("MeZO with seed %d, after step %d", s.Seed, s.Steps)}
}

const zerothName = "quant8's MeZO"
