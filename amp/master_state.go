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
	"github.com/snug-ml/snug/internal/state"
)

const (
	masterMagic   = "SNUGMAST"
	masterVersion = 1
)

// WriteTo writes all master weights to w, chunk by chunk, and returns the
// number of bytes written. The order in which parameters were added and the
// chunk size do not matter. Errors of w and of the Storage are wrapped.
func (m *Master) WriteTo(w io.Writer) (int64, error) {
	e := state.NewEncoder(w, masterMagic, masterVersion)
	e.Put(uint32(len(m.params)))
	for _, name := range slices.Sorted(maps.Keys(m.params)) {
		m.save(e, name)
	}
	n, err := e.Finish()
	if err != nil {
		err = fmt.Errorf("amp: save masters: %w", err)
	}
	return n, err
}

func (m *Master) save(e *state.Encoder, name string) {
	p := m.params[name]
	e.PutName(name)
	e.Put(uint64(p.n))
	for i := 0; i < len(p.keys) && e.Err == nil; i++ {
		e.Err = m.visit(p, i, false, func(_ int, w []float32) error {
			e.Put(w)
			return e.Err
		})
	}
}

// ReadFrom registers the parameters that WriteTo saved, with their weights, and
// returns the number of bytes read. It reads no further than the saved state.
// m must have no parameters, else the error wraps [snug.ErrConfig]. It wraps
// [snug.ErrCorrupt] when the data is damaged, foreign or of a newer version;
// then, as after errors of r and the Storage, m still has no parameters.
func (m *Master) ReadFrom(r io.Reader) (int64, error) {
	if len(m.params) > 0 {
		return 0, fmt.Errorf("amp: restore masters: %d parameters were added, want none: %w", len(m.params), snug.ErrConfig)
	}
	d := state.NewDecoder(r, masterMagic, masterVersion)
	var count uint32
	d.Get(&count)
	params := map[string]*masterParam{}
	for i := uint32(0); i < count && d.Err == nil; i++ {
		m.load(d, params)
	}
	n, err := d.Finish()
	if err != nil {
		return n, fmt.Errorf("amp: restore masters: %w", errors.Join(err, closeAll(params)))
	}
	m.params = params
	return n, nil
}

// load reads a parameter into params.
func (m *Master) load(d *state.Decoder, params map[string]*masterParam) {
	name := d.GetName()
	var n uint64
	d.Get(&n)
	if _, taken := params[name]; taken || n > math.MaxInt/4 {
		d.Corrupt("parameter %q of %d elements", name, n)
	}
	if d.Err != nil {
		return
	}
	p, err := m.create(name, int(n), func(_ int, w []float32) error {
		d.Get(w)
		return d.Err
	})
	if d.Err = err; err == nil {
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
