package accum

import (
	"bytes"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

const (
	magic   = "SNUGACCU"
	version = 1
)

// header is what is saved of a Window before its parameters.
type header struct {
	Step, Size, Micros             int64
	Weight, Micro                  float64
	Full, Open, Dropped            bool
	Windows, Skipped, Ended, Drops int64
	DropIndex                      int64
	DropValue                      float32
	Params                         uint32
}

func (w *Window) header() header {
	return header{
		Step: int64(w.step), Size: int64(w.size), Micros: int64(w.micros),
		Weight: w.weight, Micro: w.micro, Full: w.full, Open: w.open, Dropped: w.dropped,
		Windows: int64(w.stats.Windows), Skipped: int64(w.stats.Skipped),
		Ended: int64(w.stats.Micros), Drops: int64(w.stats.Dropped),
		DropIndex: int64(w.stats.LastDrop.Index), DropValue: w.stats.LastDrop.Value, Params: uint32(len(w.params)),
	}
}

// holds reports whether the bucket's contents matter and are saved.
func (h *header) holds() bool { return h.Micros > 0 || h.Open }

// check returns an error unless a Window can have the state h.
func (h *header) check() error {
	for _, n := range []int64{h.Step, h.Size, h.Micros, h.Windows, h.Skipped, h.Ended, h.Drops, h.DropIndex} {
		if n < 0 || n > math.MaxInt {
			return fmt.Errorf("saved state: a count of %d: %w", n, snug.ErrCorrupt)
		}
	}
	for _, x := range []float64{h.Weight, h.Micro} {
		if !(x >= 0 && x <= math.MaxFloat64) {
			return fmt.Errorf("saved state: a weight of %v: %w", x, snug.ErrCorrupt)
		}
	}
	if h.Full && (h.Open || h.Micros == 0) {
		return fmt.Errorf("saved state: a full window of %d micro-batches, open %t: %w", h.Micros, h.Open, snug.ErrCorrupt)
	}
	return nil
}

// set takes the state that was saved.
func (w *Window) set(h *header, dropName string) {
	w.step, w.size, w.micros = int(h.Step), int(h.Size), int(h.Micros)
	w.weight, w.micro, w.full, w.open, w.dropped = h.Weight, h.Micro, h.Full, h.Open, h.Dropped
	w.alpha, w.beta = factors(w.weight, w.micro)
	w.stats = Stats{
		Windows: int(h.Windows), Skipped: int(h.Skipped), Micros: int(h.Ended), Dropped: int(h.Drops),
		LastDrop: Location{dropName, int(h.DropIndex), h.DropValue},
	}
}

// WriteTo writes the state of w, at any moment, to out, and returns the number
// of bytes written: between windows a few for each parameter, within a window 4
// for each element too. It waits for the device. Errors of out are wrapped.
func (w *Window) WriteTo(out io.Writer) (int64, error) {
	e := state.NewEncoder(out, magic, version)
	h := w.header()
	e.Put(h)
	e.PutName(w.stats.LastDrop.Name)
	order := make([]*param, len(w.params))
	for i := range w.params {
		p := &w.params[i]
		e.PutName(p.Name)
		e.Put(uint64(p.Len))
		e.Put(p.added)
		order[i] = p
	}
	if h.holds() && e.Err == nil {
		e.Err = w.transfer(order, false, func(acc []float32) error {
			e.Put(acc)
			return e.Err
		})
	}
	n, err := e.Finish()
	if err != nil {
		err = fmt.Errorf("accum: save: %w", err)
	}
	return n, err
}

// ReadFrom replaces the state of w by one that WriteTo saved and returns the
// number of bytes read; it reads no further. Accumulation then goes on bit for
// bit. The saved parameters must be those of w, in any order; the schedule and
// the overflow policy are those of w, though a window that was begun keeps its
// size.
//
// The error wraps [snug.ErrShape] for other parameters and [snug.ErrCorrupt]
// for data that is damaged, foreign or of a newer version; errors of in are
// wrapped. When it comes before the gradients, w is unchanged, otherwise its
// window is empty, as after Reset.
func (w *Window) ReadFrom(in io.Reader) (int64, error) {
	d := state.NewDecoder(in, magic, version)
	var h header
	d.Get(&h)
	dropName := d.GetName()
	order, added := w.readParams(d, h.Params)
	if d.Err == nil {
		d.Err = h.check()
	}
	if d.Err == nil && h.holds() {
		w.empty()
		d.Err = w.transfer(order, true, func(acc []float32) error {
			d.Get(acc)
			return d.Err
		})
	}
	n, err := d.Finish()
	if err != nil {
		return n, fmt.Errorf("accum: restore: %w", err)
	}
	w.set(&h, dropName)
	for i, p := range order {
		p.added = added[i]
	}
	return n, nil
}

// readParams reads the list of parameters, which must be those of w.
func (w *Window) readParams(d *state.Decoder, count uint32) (order []*param, added []bool) {
	if d.Err == nil && int64(count) != int64(len(w.params)) {
		d.Err = fmt.Errorf("saved state of %d parameters, want %d: %w", count, len(w.params), snug.ErrShape)
	}
	seen := map[string]bool{}
	for range w.params {
		name := d.GetName()
		var n uint64
		var flag bool
		d.Get(&n)
		d.Get(&flag)
		if d.Err != nil {
			return nil, nil
		}
		i, found := w.index[name]
		if !found || seen[name] || n != uint64(w.params[i].Len) {
			d.Err = fmt.Errorf("saved state of parameter %q with %d elements, which the window lacks: %w", name, n, snug.ErrShape)
			return nil, nil
		}
		seen[name] = true
		order, added = append(order, &w.params[i]), append(added, flag)
	}
	return order, added
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
// state ends. It looks at the checksum first: after an error, w is unchanged.
func (w *Window) UnmarshalBinary(data []byte) error {
	if err := state.Verify(data); err != nil {
		return fmt.Errorf("accum: restore: %w", err)
	}
	_, err := w.ReadFrom(bytes.NewReader(data))
	return err
}

// stageLen is the number of elements that transfer moves at a time.
const stageLen = 1 << 14

// transfer hands the accumulators to move, part by part, as host memory:
// filled with what they hold, or, for restore, to be filled with what they
// shall hold.
func (w *Window) transfer(params []*param, restore bool, move func(part []float32) error) error {
	s := stage{device: w.device}
	if !w.device.IsCPU() {
		var err error
		if s.remote, err = snug.Make[float32](w.device, stageLen); err != nil {
			return err
		}
		s.host = make([]float32, stageLen)
	}
	err := s.moveAll(params, restore, move)
	if e := s.remote.Close(); err == nil {
		err = e
	}
	return err
}

// stage is the memory through which elements of a device pass.
type stage struct {
	device *snug.Device
	remote snug.Array[float32]
	host   []float32
}

func (s *stage) moveAll(params []*param, restore bool, move func(part []float32) error) error {
	for _, p := range params {
		for lo := 0; lo < p.Len; lo += stageLen {
			acc, err := p.acc.Slice(lo, min(lo+stageLen, p.Len))
			if err == nil {
				err = s.move(acc, restore, move)
			}
			if err != nil {
				return fmt.Errorf("parameter %q: %w", p.Name, err)
			}
		}
	}
	return nil
}

func (s *stage) move(acc snug.View, restore bool, move func(part []float32) error) error {
	if s.device.IsCPU() {
		return move(acc.Float32s())
	}
	host := s.host[:acc.Len()]
	remote, err := s.remote.View().Slice(0, acc.Len())
	if err != nil {
		return err
	}
	if restore {
		if err := move(host); err != nil {
			return err
		}
		if err := s.remote.CopyIn(host); err != nil {
			return err
		}
		return accumulate(s.device, acc, remote, 1, 0)
	}
	if err := accumulate(s.device, remote, acc, 1, 0); err != nil {
		return err
	}
	if err := s.remote.CopyOut(host); err != nil {
		return err
	}
	return move(host)
}
