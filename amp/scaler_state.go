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
	scalerVersion = 1
)

// scalerState is what is saved of a Scaler.
type scalerState struct {
	Init, Growth, Backoff, Floor, Cap float32
	Interval, Hysteresis              int64
	Scale                             float32
	Tracker, Patience                 int64
}

// AppendBinary appends the options and the state of s to b. The error wraps
// [snug.ErrConfig] between Unscale and Update, when the state is not whole.
func (s *Scaler) AppendBinary(b []byte) ([]byte, error) {
	if len(s.optimizers) > 0 {
		return b, fmt.Errorf("amp: save scaler: call Update first, a step is under way: %w", snug.ErrConfig)
	}
	w := bytes.NewBuffer(b)
	e := state.NewEncoder(w, scalerMagic, scalerVersion)
	e.Put(scalerState{
		Init: s.opts.Init, Growth: s.opts.Growth, Backoff: s.opts.Backoff, Floor: s.opts.Floor, Cap: s.opts.Cap,
		Interval: int64(s.opts.Interval), Hysteresis: int64(s.opts.Hysteresis),
		Scale: s.scale, Tracker: int64(s.tracker), Patience: int64(s.patience),
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
		d.Get(&st)
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
	o := ScalerOptions{
		Init: st.Init, Growth: st.Growth, Backoff: st.Backoff, Floor: st.Floor, Cap: st.Cap,
		Interval: int(st.Interval), Hysteresis: int(st.Hysteresis),
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("saved state: %v: %w", err, snug.ErrCorrupt)
	}
	if !o.inRange(st.Scale) {
		return nil, fmt.Errorf("saved state: a scale of %v: %w", st.Scale, snug.ErrCorrupt)
	}
	s := &Scaler{opts: o, scale: st.Scale, tracker: int(st.Tracker), patience: int(st.Patience), optimizers: map[string]optimizer{}}
	return s, nil
}
