package amp

import (
	"bytes"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

// AppendBinary appends the options and the state of s to b. The error wraps
// [snug.ErrConfig] between Unscale and Update, when the state is not whole.
func (s *Scaler) AppendBinary(b []byte) ([]byte, error) {
	if err := s.made("save scaler"); err != nil {
		return b, err
	}
	if len(s.optimizers) > 0 {
		return b, fmt.Errorf("amp: save scaler: call Update first, a step is under way: %w", snug.ErrConfig)
	}
	e := state.NewHeader(state.ScalerMagic)
	e.Put(state.Scaler{
		Mode: uint32(s.opts.Mode), Init: s.opts.Init, Floor: s.opts.Floor, Cap: s.opts.Cap, Scale: s.scale,
		Growth: s.opts.Growth, Backoff: s.opts.Backoff,
		Interval: int64(s.opts.Interval), Hysteresis: int64(s.opts.Hysteresis),
		Tracker: int64(s.tracker), Patience: int64(s.patience),
		FloorError: s.opts.FloorError, PowerOfTwo: s.opts.PowerOfTwo, Used: s.used,
	})
	saved, err := e.Bytes()
	if err != nil {
		return b, fmt.Errorf("amp: save scaler: %w", err)
	}
	return append(b, saved...), nil
}

// UnmarshalBinary restores what AppendBinary saved, options included, as torch's
// load_state_dict does, and ends a step that is under way. The error wraps
// [snug.ErrCorrupt] when data is damaged, of another kind or of another version; s is
// then unchanged.
func (s *Scaler) UnmarshalBinary(data []byte) error {
	if err := s.made("restore scaler"); err != nil {
		return err
	}
	restored, err := unmarshalScaler(data)
	if err != nil {
		return fmt.Errorf("amp: restore scaler: %w", err)
	}
	*s = *restored
	return nil
}

// unmarshalScaler returns the Scaler that was saved.
func unmarshalScaler(data []byte) (*Scaler, error) {
	if err := state.Verify(data); err != nil {
		return nil, err
	}
	d := state.NewDecoder(bytes.NewReader(data), state.ScalerMagic)
	var st state.Scaler
	d.Get(&st)
	for _, n := range []int64{st.Interval, st.Hysteresis, st.Tracker, st.Patience} {
		if n < 0 || n > math.MaxInt {
			d.Corrupt("a count of %d", n)
		}
	}
	if st.Mode > uint32(Disabled) {
		d.Corrupt("mode %d", st.Mode)
	}
	if _, err := d.Finish(); err != nil {
		return nil, err
	}
	o := ScalerOptions{
		Mode: Mode(st.Mode), FloorError: st.FloorError, PowerOfTwo: st.PowerOfTwo,
		Init: st.Init, Growth: st.Growth, Backoff: st.Backoff, Floor: st.Floor, Cap: st.Cap,
		Interval: int(st.Interval), Hysteresis: int(st.Hysteresis),
	}
	if err := o.check(); err != nil {
		d.Corrupt("options: %v", err)
	} else if !o.inRange(st.Scale) {
		d.Corrupt("a scale of %v", st.Scale)
	}
	return &Scaler{
		opts: o, scale: st.Scale, used: st.Used,
		tracker: int(st.Tracker), patience: int(st.Patience), optimizers: map[string]progress{},
	}, d.Err
}
