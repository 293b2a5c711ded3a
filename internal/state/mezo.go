package state

import "fmt"

// MeZOMagic names the state of MeZO of package quant8.
const MeZOMagic = "SNUGMEZO"

// MeZO is the header of the state of MeZO. No data follows it.
type MeZO struct{ Seed, Steps uint64 }

func describeMeZO(d *Decoder) Description {
	var s MeZO
	d.Get(&s)
	return Description{Note: fmt.Sprintf("MeZO with seed %d, after step %d", s.Seed, s.Steps)}
}
