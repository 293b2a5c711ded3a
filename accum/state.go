package accum

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/snug-ml/snug/internal/state"
)

// WriteTo writes the state of w, at any moment except while its buckets are being
// reduced, to out, and returns the number of bytes written: between windows a
// few for each parameter, within a window 4 for each element too (2 in
// bfloat16). The state of the Scaler, and of a Schedule that has one, is part of
// it. It waits for the device. Errors of out and of the Scaler are wrapped; it
// wraps [snug.ErrConfig] when the last micro-batch is open and a bucket is
// reduced.
func (w *Window) WriteTo(out io.Writer) (int64, error) {
	if err := w.usable("save"); err != nil {
		return 0, err
	}
	if w.open && w.done > 0 {
		return 0, fmt.Errorf("accum: save: call End first, buckets are being reduced: %w", snug.ErrConfig)
	}
	h, err := w.header()
	if err != nil {
		return 0, fmt.Errorf("accum: save: %w", err)
	}
	found, err := w.found.Save()
	if err != nil {
		return 0, fmt.Errorf("accum: save: %w", err)
	}
	e := state.NewEncoder(out, state.WindowMagic)
	e.PutWindow(h)
	e.Put(found.Total)
	e.Put(uint32(len(found.Records)))
	e.Put(found.Records)
	e.Data(h.DataSize())
	if e.Err == nil && h.Holds() {
		order := make([]*param, len(w.params))
		for i := range w.params {
			order[i] = &w.params[i]
		}
		e.Err = w.transfer(order, false, func(acc snug.View) error {
			e.Put(hostElements(acc))
			return e.Err
		})
	}
	n, err := e.Finish()
	if err != nil {
		err = fmt.Errorf("accum: save: %w", err)
	}
	return n, err
}

// header returns the state saved before the accumulators, without measurements.
func (w *Window) header() (*state.Window, error) {
	target := w.Target()
	h := &state.Window{WindowFixed: state.WindowFixed{
		DType: uint32(w.dtype), Step: int64(w.progress.Step), Seen: w.progress.Weight,
		TargetMicros: int64(target.Micros), TargetWeight: target.Weight, Micros: int64(w.micros),
		Weight: w.weight, Micro: w.micro, Scale: w.scale,
		Full: w.full, Open: w.open, Dropped: w.dropped, InPlace: w.inPlace,
		Windows: int64(w.stats.Windows), Skipped: int64(w.stats.Skipped),
		Ended: int64(w.stats.Micros), Drops: int64(w.stats.Dropped),
		Noise: state.WindowNoise{
			Sum: w.noise.sum, Weight: w.noise.weight, First: w.noise.first, FirstWeight: w.noise.firstWeight,
			Counted: int64(w.noise.counted), InPlace: w.noise.inPlace,
		},
		TotalWeight: w.total.weight, TotalMicros: int64(w.total.micros),
	}, Overflows: w.overflows}
	for i := range w.params {
		p := &w.params[i]
		h.Params = append(h.Params, state.WindowParam{
			Name: p.Name, WindowParamFixed: state.WindowParamFixed{Len: uint64(p.Len), Added: p.added, InPlace: p.inPlace},
		})
	}
	for _, part := range []struct {
		of any
		to *string
	}{{w.schedule, &h.Schedule}, {w.scaler, &h.Scaler}} {
		s, ok := part.of.(encoding.BinaryAppender)
		if !ok {
			continue
		}
		b, err := s.AppendBinary(nil)
		if err != nil {
			return nil, err
		}
		*part.to = string(b)
	}
	return h, nil
}

// ReadFrom replaces the state of w by one that WriteTo saved and returns the
// number of bytes read; it reads no further. Accumulation then goes on bit for
// bit. w must have the same options and parameters, in any order. A window in which a
// micro-batch was begun keeps its target; one that was saved before its first takes its
// target from the Schedule of w when that begins.
//
// The error wraps [snug.ErrShape] for other parameters, [snug.ErrDType] for
// another DType, [snug.ErrConfig] where one side has a Scaler and the other has
// none, and [snug.ErrCorrupt] for data that is damaged, foreign or of a newer
// version; errors of in are wrapped. When it comes before the gradients, w is
// unchanged, otherwise its window is empty, as after Reset. The Scaler and the
// Schedule, which are restored first, may have changed then.
func (w *Window) ReadFrom(in io.Reader) (int64, error) {
	if err := w.made("restore"); err != nil {
		return 0, err
	}
	d := state.NewDecoder(in, state.WindowMagic)
	s := w.readSaved(d)
	if d.Err == nil {
		d.Err = s.restoreParts(w)
	}
	if d.Err == nil && s.Holds() {
		w.empty()
		d.Err = w.transfer(s.order, true, func(acc snug.View) error {
			d.Get(hostElements(acc))
			return d.Err
		})
	}
	n, err := d.Finish()
	if err == nil {
		err = w.found.Restore(w.device, s.found)
	}
	if err != nil {
		return n, fmt.Errorf("accum: restore: %w", err)
	}
	w.set(s)
	return n, nil
}

// AppendBinary appends what WriteTo writes to b.
func (w *Window) AppendBinary(b []byte) ([]byte, error) { return state.Append(b, w.WriteTo) }

// UnmarshalBinary is [Window.ReadFrom] of data, which must end where the saved
// state ends. It verifies the data first: when it is damaged, neither w nor its Scaler nor
// its Schedule has changed.
func (w *Window) UnmarshalBinary(data []byte) error {
	if err := w.made("restore"); err != nil {
		return err
	}
	if err := state.Verify(data); err != nil {
		return fmt.Errorf("accum: restore: %w", err)
	}
	_, err := w.ReadFrom(bytes.NewReader(data))
	return err
}

// saved is the state read before the accumulators.
type saved struct {
	*state.Window
	found measure.Saved
	order []*param
}

func (w *Window) readSaved(d *state.Decoder) *saved {
	s := &saved{Window: d.GetWindow()}
	d.Get(&s.found.Total)
	s.found.Records = make([]measure.Record, min(d.Count(binary.Size(measure.Record{})), measure.MaxRecords))
	d.Get(s.found.Records)
	for _, r := range append(s.found.Records, s.found.Total) {
		if r.NonFinite < 0 || r.Index < 0 || r.NonFinite > 0 && (r.Ordinal < 1 || r.Ordinal > int64(len(s.Params))) {
			d.Corrupt("a record of %+v", r)
		}
	}
	d.Data(s.DataSize())
	if d.Err == nil {
		d.Err = s.match(w)
	}
	return s
}

// match returns an error unless the state is of a window like w.
func (s *saved) match(w *Window) error {
	if s.DType != uint32(w.dtype) {
		return fmt.Errorf("saved state of %s, want %s: %w", snug.DType(s.DType), w.dtype, snug.ErrDType)
	}
	if len(s.Params) != len(w.params) {
		return fmt.Errorf("saved state of %d parameters, want %d: %w", len(s.Params), len(w.params), snug.ErrShape)
	}
	seen := map[string]bool{}
	for _, p := range s.Params {
		i, found := w.index[p.Name]
		if !found || seen[p.Name] || p.Len != uint64(w.params[i].Len) {
			return fmt.Errorf("saved state of parameter %q with %d elements, which the window lacks: %w", p.Name, p.Len, snug.ErrShape)
		}
		seen[p.Name] = true
		s.order = append(s.order, &w.params[i])
	}
	if (w.scaler != nil) != (s.Scaler != "") {
		return fmt.Errorf("saved state with a scaler: %t, the window has one: %t: %w", s.Scaler != "", w.scaler != nil, snug.ErrConfig)
	}
	return nil
}

// restoreParts hands the schedule and the scaler their states.
func (s *saved) restoreParts(w *Window) error {
	for _, part := range []struct {
		of    any
		state string
	}{{w.schedule, s.Schedule}, {w.scaler, s.Scaler}} {
		u, ok := part.of.(encoding.BinaryUnmarshaler)
		if !ok || part.state == "" {
			continue
		}
		if err := u.UnmarshalBinary([]byte(part.state)); err != nil {
			return err
		}
	}
	return nil
}

// set takes the state that was saved.
func (w *Window) set(s *saved) {
	w.progress = Progress{int(s.Step), s.Seen}
	w.target = Target{int(s.TargetMicros), s.TargetWeight}
	w.micros, w.weight, w.micro, w.scale = int(s.Micros), s.Weight, s.Micro, s.Scale
	w.full, w.open, w.dropped, w.inPlace = s.Full, s.Open, s.Dropped, s.InPlace
	w.last = w.target.reached(w.micros+1, w.weight+w.micro)
	w.alpha, w.beta = factors(w.weight, w.micro)
	w.stats = Stats{Windows: int(s.Windows), Skipped: int(s.Skipped), Micros: int(s.Ended), Dropped: int(s.Drops)}
	w.noise = noise{s.Noise.Sum, s.Noise.Weight, s.Noise.First, s.Noise.FirstWeight, int(s.Noise.Counted), s.Noise.InPlace}
	w.overflows = s.Overflows
	w.reduction.reset()
	for i := range w.params {
		w.params[i].arrived = false
	}
	if w.full {
		w.done = len(w.buckets)
		w.total = total{s.TotalWeight, int(s.TotalMicros)}
	}
	for i, p := range s.order {
		p.added, p.inPlace = s.Params[i].Added, s.Params[i].InPlace
	}
}

// hostElements returns the elements of a host view as a slice.
func hostElements(v snug.View) any {
	if x := v.Float32s(); x != nil {
		return x
	}
	return v.BFloat16s()
}

// stageLen is the number of elements that transfer moves at a time.
const stageLen = 1 << 14

// transfer hands the accumulators to move, part by part, as host memory:
// filled with what they hold, or, for restore, to be filled with what they
// shall hold.
func (w *Window) transfer(params []*param, restore bool, move func(part snug.View) error) error {
	stage, _, err := snug.MakeView(snug.CPU(), w.dtype, stageLen)
	if err != nil {
		return err
	}
	for _, p := range params {
		for lo := 0; lo < p.Len; lo += stageLen {
			n := min(stageLen, p.Len-lo)
			acc, err := p.acc.Slice(lo, lo+n)
			host, e := stage.Slice(0, n)
			if err = errors.Join(err, e); err == nil {
				err = moveOne(acc, host, restore, move)
			}
			if err != nil {
				return fmt.Errorf("parameter %q: %w", p.Name, err)
			}
		}
	}
	return nil
}

func moveOne(acc, host snug.View, restore bool, move func(part snug.View) error) error {
	switch {
	case acc.Device().IsCPU():
		return move(acc)
	case restore:
		if err := move(host); err != nil {
			return err
		}
		return snug.Copy(acc, host)
	}
	if err := snug.Copy(host, acc); err != nil {
		return err
	}
	return move(host)
}
