package amp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/state"
)

// masterVersion is 2 since there are forms; version 1 holds full masters.
const (
	masterMagic   = "SNUGMAST"
	masterVersion = 2
)

// WriteTo writes what is kept of all parameters to w, chunk by chunk, and returns
// the number of bytes written: the weights of FullMaster, what SplitMaster has
// beside the parameters, or the seed and the numbers of updates of NoMaster. With
// the last two, the parameters must be saved too, and unchanged. The order in which
// parameters were added and the chunk size do not matter. Errors of w and of the
// Storage are wrapped.
func (m *Master) WriteTo(w io.Writer) (int64, error) {
	if err := m.savable(w); err != nil {
		return 0, fmt.Errorf("amp: save masters: %w", err)
	}
	defer m.enter()()
	e := state.NewEncoder(w, masterMagic, masterVersion)
	e.Put(uint32(m.form))
	e.Put(m.seed)
	e.Put(uint32(len(m.params)))
	for _, name := range slices.Sorted(maps.Keys(m.params)) {
		m.save(e, m.params[name])
	}
	n, err := e.Finish()
	if err != nil {
		err = fmt.Errorf("amp: save masters: %w", err)
	}
	return n, err
}

// savable returns an error unless there is something to write, and where to.
func (m *Master) savable(w io.Writer) error {
	if err := m.ready(); err != nil {
		return err
	}
	if w == nil {
		return fmt.Errorf("the writer is nil: %w", snug.ErrConfig)
	}
	for _, name := range slices.Sorted(maps.Keys(m.params)) {
		if err := m.params[name].whole(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Master) save(e *state.Encoder, p *masterParam) {
	e.PutName(p.name)
	e.Put(uint64(p.n))
	if m.form == NoMaster {
		e.Put(p.updates)
		return
	}
	for i := 0; i < cpu.Chunks(p.n, m.span(p)) && e.Err == nil; i++ {
		e.Err = m.visit(p, i, false, func(c masterChunk) error {
			return m.pieces(c.kept, false, func(_ int, v snug.View) error {
				e.Put(m.form.values(v))
				return e.Err
			})
		})
	}
}

// values returns what v, in host memory, keeps as the slice that is saved.
func (f MasterForm) values(v snug.View) any {
	if f == SplitMaster {
		return rests(v)
	}
	return v.Float32s()
}

// ReadFrom registers the parameters that WriteTo saved, with what was kept of them,
// and returns the number of bytes read. It reads no further than the saved state.
// It also takes up the saved seed, so that updates with NoMaster go on bit for bit.
// m must have the saved form and no parameters, else the error wraps
// [snug.ErrConfig]. It wraps [snug.ErrCorrupt] when the data is damaged, foreign or
// of a newer version; then, as after errors of r and the Storage, m still has no
// parameters.
func (m *Master) ReadFrom(r io.Reader) (int64, error) {
	if err := m.ready(); err != nil {
		return 0, fmt.Errorf("amp: restore masters: %w", err)
	}
	if r == nil {
		return 0, fmt.Errorf("amp: restore masters: the reader is nil: %w", snug.ErrConfig)
	}
	if len(m.params) > 0 {
		return 0, fmt.Errorf("amp: restore masters: %d parameters were added, want none: %w", len(m.params), snug.ErrConfig)
	}
	d := state.NewDecoder(r, masterMagic, masterVersion)
	seed, count := m.loadHeader(d)
	params, ended := map[string]*masterParam{}, false
	defer m.enter()()
	defer func() {
		if !ended { // but panicked
			_ = closeAll(params)
		}
	}()
	for i := uint32(0); i < count && d.Err == nil; i++ {
		m.load(d, params)
	}
	n, err := d.Finish()
	ended = true
	if err != nil {
		return n, fmt.Errorf("amp: restore masters: %w", errors.Join(err, closeAll(params)))
	}
	m.params, m.seed = params, seed
	return n, nil
}

// loadHeader reads what comes before the parameters.
func (m *Master) loadHeader(d *state.Decoder) (seed uint64, count uint32) {
	form := uint32(FullMaster)
	if d.Version > 1 {
		d.Get(&form)
		d.Get(&seed)
	}
	d.Get(&count)
	switch {
	case d.Err != nil:
	case form >= uint32(len(masterForms)):
		d.Corrupt("form %d of masters", form)
	case MasterForm(form) != m.form:
		d.Err = fmt.Errorf("saved in the form %s, want %s: %w", MasterForm(form), m.form, snug.ErrConfig)
	}
	return seed, count
}

// load reads a parameter into params.
func (m *Master) load(d *state.Decoder, params map[string]*masterParam) {
	name := d.GetName()
	var n, updates uint64
	d.Get(&n)
	if m.form == NoMaster {
		d.Get(&updates)
	}
	if _, taken := params[name]; taken || n > math.MaxInt/4 {
		d.Corrupt("parameter %q of %d elements", name, n)
	}
	if d.Err != nil {
		return
	}
	start := func(c masterChunk) error {
		return m.pieces(c.kept, true, func(_ int, v snug.View) error {
			d.Get(m.form.values(v))
			return d.Err
		})
	}
	if m.form == NoMaster {
		start = nil // and a false length costs no time
	}
	p, err := m.create(name, int(n), start)
	if d.Err = err; err == nil {
		p.updates = updates
		params[name] = p
	}
}

// AppendBinary appends what WriteTo writes to b.
func (m *Master) AppendBinary(b []byte) ([]byte, error) {
	w := bytes.NewBuffer(b)
	if _, err := m.WriteTo(w); err != nil {
		return b, err
	}
	return w.Bytes(), nil
}

// UnmarshalBinary is [Master.ReadFrom] of data, which must end where the saved
// state ends. It looks at the checksum before it writes to the Storage.
func (m *Master) UnmarshalBinary(data []byte) error {
	if err := state.Verify(data); err != nil {
		return fmt.Errorf("amp: restore masters: %w", err)
	}
	_, err := m.ReadFrom(bytes.NewReader(data))
	return err
}
