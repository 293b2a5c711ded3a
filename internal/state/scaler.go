package state

import "fmt"

// ScalerMagic names the state of a loss scaler of package amp.
const ScalerMagic = "SNUGSCAL"

// Scaler is the header of the state of a loss scaler. It has no data.
type Scaler struct {
	Mode                         uint32
	Init, Floor, Cap, Scale      float32
	Growth, Backoff              float64
	Interval, Hysteresis         int64
	Tracker, Patience            int64
	FloorError, PowerOfTwo, Used bool
}

func describeScaler(d *Decoder) Description {
	var s Scaler
	d.Get(&s)
	return Description{Note: fmt.Sprintf("a scale of %v, %d finite steps of %d", s.Scale, s.Tracker, s.Interval)}
}
