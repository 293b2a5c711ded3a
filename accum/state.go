package accum

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/snug-ml/snug/internal/state"
)

const (
	magic   = "SNUGACCU"
	version = 2
)

// WriteTo writes the state of w, at any moment but while its buckets are being
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
	if out == nil {
		return 0, fmt.Errorf("accum: save: the writer is nil: %w", snug.ErrConfig)
	}
	if w.open && w.done > 0 {
		return 0, fmt.Errorf("accum: save: call End first, buckets are being reduced: %w", snug.ErrConfig)
	}
	parts, err := w.saveParts()
	if err != nil {
		return 0, fmt.Errorf("accum: save: %w", err)
	}
	found, err := w.found.Save()
	if err != nil {
		return 0, fmt.Errorf("accum: save: %w", err)
	}
	e := state.NewEncoder(out, magic, version)
	h := w.header()
	h.Records = uint32(len(found.Records))
	e.Put(h)
	for _, part := range parts {
		e.PutName(string(part))
	}
	for _, o := range w.overflows {
		e.PutName(o.Name)
		e.Put(overflowState{int64(o.Count), int64(o.Index), o.Value, int64(o.Micro)})
	}
	e.Put(found.Total)
	e.Put(found.Records)
	order := make([]*param, len(w.params))
	for i := range w.params {
		p := &w.params[i]
		order[i] = p
		e.PutName(p.Name)
		e.Put(paramState{uint64(p.Len), p.added, p.inPlace})
	}
	if e.Err == nil && h.holds() {
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

// saveParts returns the states of the schedule and of the scaler, empty for one
// that has none.
func (w *Window) saveParts() (parts [2][]byte, err error) {
	for i, part := range []any{w.schedule, w.scaler} {
		s, ok := part.(encoding.BinaryAppender)
		if !ok {
			continue
		}
		if parts[i], err = s.AppendBinary(nil); err != nil {
			return parts, err
		}
		if len(parts[i]) > state.MaxName {
			return parts, fmt.Errorf("a schedule's or a scaler's state of %d bytes, want at most %d: %w", len(parts[i]), state.MaxName, snug.ErrConfig)
		}
	}
	return parts, nil
}

// ReadFrom replaces the state of w by one that WriteTo saved and returns the
// number of bytes read; it reads no further. Accumulation then goes on bit for
// bit. The saved parameters must be those of w, in any order, and its DType that
// of w; the other options are those of w, though a window that was begun keeps
// its target.
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
	if in == nil {
		return 0, fmt.Errorf("accum: restore: the reader is nil: %w", snug.ErrConfig)
	}
	d := state.NewDecoder(in, magic, version)
	s := w.readSaved(d)
	if d.Err == nil {
		d.Err = s.restoreParts(w)
	}
	if d.Err == nil && s.holds() {
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
func (w *Window) AppendBinary(b []byte) ([]byte, error) {
	out := bytes.NewBuffer(b)
	if _, err := w.WriteTo(out); err != nil {
		return b, err
	}
	return out.Bytes(), nil
}

// UnmarshalBinary is [Window.ReadFrom] of data, which must end where the saved
// state ends. It looks at the checksum first: when data is damaged, neither w
// nor its Scaler nor its Schedule has changed.
func (w *Window) UnmarshalBinary(data []byte) error {
	if err := state.Verify(data); err != nil {
		return fmt.Errorf("accum: restore: %w", err)
	}
	_, err := w.ReadFrom(bytes.NewReader(data))
	return err
}

// saved is what is read before the accumulators.
type saved struct {
	header
	first     bool      // of version 1, which had no scaler
	parts     [2]string // of the schedule and of the scaler
	overflows []snug.NonFinite
	found     measure.Saved
	order     []*param
	flags     []paramState
}

func (w *Window) readSaved(d *state.Decoder) *saved {
	s := new(saved)
	if d.Version == 1 {
		var old header1
		d.Get(&old)
		d.GetName() // of the last drop
		s.header, s.first = old.upgrade(), true
	} else {
		d.Get(&s.header)
		for i := range s.parts {
			s.parts[i] = d.GetName()
		}
	}
	if d.Err == nil {
		d.Err = s.check(w)
	}
	for range s.Overflows {
		name := d.GetName()
		var o overflowState
		if d.Get(&o); d.Err != nil {
			return s
		}
		if o.Count < 0 || o.Index < 0 || o.Micro < 0 || max(o.Count, o.Index, o.Micro) > math.MaxInt {
			d.Corrupt("an overflow of %+v", o)
		}
		s.overflows = append(s.overflows, snug.NonFinite{Name: name, Count: int(o.Count), Index: int(o.Index), Value: o.Value, Micro: int(o.Micro)})
	}
	if d.Version > 1 && d.Err == nil {
		s.found.Records = make([]measure.Record, s.Records)
		d.Get(&s.found.Total)
		d.Get(s.found.Records)
		s.checkRecords(d, w)
	}
	s.readParams(d, w)
	return s
}

// checkRecords looks for records that name no parameter.
func (s *saved) checkRecords(d *state.Decoder, w *Window) {
	for _, r := range append(s.found.Records, s.found.Total) {
		if r.NonFinite < 0 || r.Index < 0 || r.NonFinite > 0 && (r.Ordinal < 1 || r.Ordinal > int64(len(w.params))) {
			d.Corrupt("a record of %+v", r)
		}
	}
}

// readParams reads the list of parameters, which must be those of w.
func (s *saved) readParams(d *state.Decoder, w *Window) {
	if d.Err == nil && int64(s.Params) != int64(len(w.params)) {
		d.Err = fmt.Errorf("saved state of %d parameters, want %d: %w", s.Params, len(w.params), snug.ErrShape)
	}
	seen := map[string]bool{}
	for range w.params {
		name := d.GetName()
		var p paramState
		if d.Version == 1 {
			var old struct {
				Len   uint64
				Added bool
			}
			d.Get(&old)
			p = paramState{Len: old.Len, Added: old.Added}
		} else {
			d.Get(&p)
		}
		if d.Err != nil {
			return
		}
		i, found := w.index[name]
		if !found || seen[name] || p.Len != uint64(w.params[i].Len) {
			d.Err = fmt.Errorf("saved state of parameter %q with %d elements, which the window lacks: %w", name, p.Len, snug.ErrShape)
			return
		}
		seen[name] = true
		s.order, s.flags = append(s.order, &w.params[i]), append(s.flags, p)
	}
}

// restoreParts hands the schedule and the scaler their states.
func (s *saved) restoreParts(w *Window) error {
	if !s.first && (w.scaler != nil) != (s.parts[1] != "") {
		return fmt.Errorf("saved state with a scaler: %t, the window has one: %t: %w", s.parts[1] != "", w.scaler != nil, snug.ErrConfig)
	}
	for i, part := range []any{w.schedule, w.scaler} {
		u, ok := part.(encoding.BinaryUnmarshaler)
		if !ok || s.parts[i] == "" {
			continue
		}
		if err := u.UnmarshalBinary([]byte(s.parts[i])); err != nil {
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
	w.overflows = s.overflows
	w.reduction.reset()
	for i := range w.params {
		w.params[i].arrived = false
	}
	if w.full {
		w.done = len(w.buckets)
		w.total = total{s.TotalWeight, int(s.TotalMicros)}
	}
	for i, p := range s.order {
		p.added, p.inPlace = s.flags[i].Added, s.flags[i].InPlace
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
