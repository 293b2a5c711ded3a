package amp

import (
	"bytes"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

const (
	scalerMagic   = "SNUGSCAL"
	scalerVersion = 2
)

// scalerState is what is saved of a Scaler.
type scalerState struct {
	Mode                         uint32
	Init, Floor, Cap, Scale      float32
	Growth, Backoff              float64
	Interval, Hysteresis         int64
	Tracker, Patience            int64
	FloorError, PowerOfTwo, Used bool
}

// scalerState1 is what version 1 had.
type scalerState1 struct {
	Init, Growth, Backoff, Floor, Cap float32
	Interval, Hysteresis              int64
	Scale                             float32
	Tracker, Patience                 int64
}

func (st *scalerState1) upgrade() scalerState {
	return scalerState{
		Init: st.Init, Floor: st.Floor, Cap: st.Cap, Scale: st.Scale,
		Growth: float64(st.Growth), Backoff: float64(st.Backoff),
		Interval: st.Interval, Hysteresis: st.Hysteresis, Tracker: st.Tracker, Patience: st.Patience,
		Used: true,
	}
}

// AppendBinary appends the options and the state of s to b. The error wraps
// [snug.ErrConfig] between Unscale and Update, when the state is not whole.
func (s *Scaler) AppendBinary(b []byte) ([]byte, error) {
	if err := s.made("save scaler"); err != nil {
		return b, err
	}
	if len(s.optimizers) > 0 {
		return b, fmt.Errorf("amp: save scaler: call Update first, a step is under way: %w", snug.ErrConfig)
	}
	w := bytes.NewBuffer(b)
	e := state.NewEncoder(w, scalerMagic, scalerVersion)
	e.Put(scalerState{
		Mode: uint32(s.opts.Mode), Init: s.opts.Init, Floor: s.opts.Floor, Cap: s.opts.Cap, Scale: s.scale,
		Growth: s.opts.Growth, Backoff: s.opts.Backoff,
		Interval: int64(s.opts.Interval), Hysteresis: int64(s.opts.Hysteresis),
		Tracker: int64(s.tracker), Patience: int64(s.patience),
		FloorError: s.opts.FloorError, PowerOfTwo: s.opts.PowerOfTwo, Used: s.used,
	})
	if _, err := e.Finish(); err != nil {
		return b, fmt.Errorf("amp: save scaler: %w", err)
	}
	return w.Bytes(), nil
}

// UnmarshalBinary replaces the options and the state of s by saved ones and
// ends a step that is under way. The error wraps [snug.ErrCorrupt] when data is
// damaged, foreign or of a newer version; s is then unchanged.
func (s *Scaler) UnmarshalBinary(data []byte) error {
	var st scalerState
	err := state.Verify(data)
	if err == nil {
		d := state.NewDecoder(bytes.NewReader(data), scalerMagic, scalerVersion)
		if d.Version == 1 {
			var old scalerState1
			d.Get(&old)
			st = old.upgrade()
		} else {
			d.Get(&st)
		}
		_, err = d.Finish()
	}
	if err != nil {
		return fmt.Errorf("amp: restore scaler: %w", err)
	}
	restored, err := st.scaler()
	if err != nil {
		return fmt.Errorf("amp: restore scaler: %w", err)
	}
	*s = *restored
	return nil
}

// scaler returns the Scaler that was saved.
func (st *scalerState) scaler() (*Scaler, error) {
	for _, n := range []int64{st.Interval, st.Hysteresis, st.Tracker, st.Patience} {
		if n < 0 || n > math.MaxInt {
			return nil, fmt.Errorf("saved state: a count of %d: %w", n, snug.ErrCorrupt)
		}
	}
	if st.Mode > uint32(Disabled) {
		return nil, fmt.Errorf("saved state: a mode of %d: %w", st.Mode, snug.ErrCorrupt)
	}
	o := ScalerOptions{
		Mode: Mode(st.Mode), FloorError: st.FloorError, PowerOfTwo: st.PowerOfTwo,
		Init: st.Init, Growth: st.Growth, Backoff: st.Backoff, Floor: st.Floor, Cap: st.Cap,
		Interval: int(st.Interval), Hysteresis: int(st.Hysteresis),
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("saved state: %v: %w", err, snug.ErrCorrupt)
	}
	if !o.inRange(st.Scale) {
		return nil, fmt.Errorf("saved state: a scale of %v: %w", st.Scale, snug.ErrCorrupt)
	}
	return &Scaler{
		opts: o, scale: st.Scale, used: st.Used,
		tracker: int(st.Tracker), patience: int(st.Patience), optimizers: map[string]progress{},
	}, nil
}
