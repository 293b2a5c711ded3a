package amp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/state"
)

// WriteTo writes the kept data of all parameters to w, chunk by chunk, and returns
// the number of bytes written. It writes the weights of FullMaster, the lower halves of SplitMaster
// or the bytes of Split24Master. A Master that rounds at random also writes its seed and the number of
// updates of each parameter. With forms other than FullMaster the parameters must be saved too, and
// unchanged. The order in which parameters were added and the chunk size do not matter. Errors of w and
// of the Storage are wrapped. The error wraps [snug.ErrConfig] for shards, see [Master.WriteShards].
func (m *Master) WriteTo(w io.Writer) (int64, error) {
	e := state.NewEncoder(w, state.MastersMagic)
	if err := errors.Join(m.savable(), m.all()); err != nil {
		e.Err = err
	} else {
		defer m.enter()()
		e.PutMasters(m.header())
	}
	e.Data(m.totalBytes())
	for _, name := range m.names() {
		p := m.params[name]
		for i := 0; i < m.savedChunks(p) && e.Err == nil; i++ {
			e.Err = m.visit(p, i, false, func(c masterChunk) error {
				return m.pieces(c.kept, false, func(_ int, v snug.View) error {
					e.Put(m.form.values(v))
					return e.Err
				})
			})
		}
	}
	n, err := e.Finish()
	if err != nil {
		err = fmt.Errorf("amp: save masters: %w", err)
	}
	return n, err
}

func (m *Master) names() []string { return slices.Sorted(maps.Keys(m.params)) }

// savable returns an error unless all parameters are whole.
func (m *Master) savable() error {
	if err := m.ready(); err != nil {
		return err
	}
	for _, name := range m.names() {
		if err := m.params[name].whole(); err != nil {
			return err
		}
	}
	return nil
}

// all returns an error for shards.
func (m *Master) all() error {
	for _, name := range m.names() {
		if p := m.params[name]; p.n != p.total {
			return fmt.Errorf("parameter %q: %d elements of %d: use WriteShards: %w", name, p.n, p.total, snug.ErrConfig)
		}
	}
	return nil
}

func (m *Master) header() *state.Masters {
	h := &state.Masters{Form: m.savedForm(), Seed: m.seed}
	for _, name := range m.names() {
		p := m.params[name]
		h.Params = append(h.Params, state.Master{Name: name, N: uint64(p.total), Updates: p.updates})
	}
	return h
}

// totalBytes returns the size of the kept data of whole parameters.
func (m *Master) totalBytes() (n int64) {
	for _, p := range m.params {
		n += int64(m.form.bytes(p.total))
	}
	return n
}

// savedForm returns the number that saved state has for the form and for Stochastic.
func (m *Master) savedForm() uint32 {
	if m.form == Split24Master && m.random {
		return state.Stochastic24
	}
	return uint32(m.form)
}

// formName returns the name of a form in saved state.
func formName(saved uint32) string {
	if saved == state.Stochastic24 {
		return Split24Master.String() + ", stochastic"
	}
	return MasterForm(saved).String()
}

// savedChunks returns how many chunks hold the kept data of p.
func (m *Master) savedChunks(p *masterParam) int {
	if m.form == NoMaster {
		return 0
	}
	return cpu.Chunks(p.n, m.span(p))
}

// values returns what v, in host memory, keeps as the slice that is saved.
func (f MasterForm) values(v snug.View) any {
	switch f {
	case SplitMaster:
		return rests[int16](v)
	case Split24Master:
		return snug.Host[uint8](v)
	}
	return v.Float32s()
}

// ReadFrom restores what WriteTo saved, and returns the number of bytes read. The Master must have the
// same Form, the same Stochastic and, if it rounds at random, the same Seed. The same parameters must have
// been added to it, in any order. ReadFrom reads no further than the saved state. Updates then go on bit
// for bit. With FullMaster, [Master.Copy] brings the restored weights into the parameters. The saved parameters are whole,
// and the Master may have shards of them.
//
// The error wraps [snug.ErrConfig] for another form, another seed, other names or a nil r,
// [snug.ErrShape] for another length, and [snug.ErrCorrupt] when the data is damaged, of
// another kind or of another version. m is then unchanged, unless the error came after the
// header: then all calls for its parameters are errors until a ReadFrom succeeds. Errors of r
// and the Storage are wrapped.
func (m *Master) ReadFrom(r io.Reader) (int64, error) {
	if err := m.ready(); err != nil {
		return 0, fmt.Errorf("amp: restore masters: %w", err)
	}
	defer m.enter()()
	d := state.NewDecoder(r, state.MastersMagic)
	h := d.GetMasters()
	if d.Err == nil {
		d.Err = m.checkSaved(&h)
	}
	d.Data(m.totalBytes())
	for _, p := range m.params {
		p.half = p.half || d.Err == nil && m.form != NoMaster
	}
	for i := 0; i < len(h.Params) && d.Err == nil; i++ {
		m.load(d, m.params[h.Params[i].Name])
	}
	n, err := d.Finish()
	if err != nil {
		return n, fmt.Errorf("amp: restore masters: %w", err)
	}
	for _, saved := range h.Params {
		p := m.params[saved.Name]
		p.updates, p.half = saved.Updates, false
	}
	return n, nil
}

// checkSaved returns an error unless h is the header of a Master like m.
func (m *Master) checkSaved(h *state.Masters) error {
	switch {
	case h.Form != m.savedForm():
		return fmt.Errorf("saved in the form %s, want %s: %w", formName(h.Form), formName(m.savedForm()), snug.ErrConfig)
	case m.random && h.Seed != m.seed:
		return fmt.Errorf("saved with the Seed %d, want %d: %w", h.Seed, m.seed, snug.ErrConfig)
	case len(h.Params) != len(m.params):
		return fmt.Errorf("saved with %d parameters, %d were added: %w", len(h.Params), len(m.params), snug.ErrConfig)
	}
	for _, saved := range h.Params {
		p := m.params[saved.Name]
		if p == nil {
			return fmt.Errorf("saved with parameter %q, which was not added: %w", saved.Name, snug.ErrConfig)
		}
		if saved.N != uint64(p.total) {
			return fmt.Errorf("saved with parameter %q of %d elements, want %d: %w", saved.Name, saved.N, p.total, snug.ErrShape)
		}
	}
	return nil
}

// load reads the kept data of a parameter, from the data of all of it.
func (m *Master) load(d *state.Decoder, p *masterParam) {
	d.Skip(int64(m.form.bytes(p.lo)))
	defer func() { d.Skip(int64(m.form.bytes(p.total - p.lo - p.n))) }()
	for i := 0; i < m.savedChunks(p) && d.Err == nil; i++ {
		d.Err = m.visit(p, i, true, func(c masterChunk) error {
			return m.pieces(c.kept, true, func(_ int, v snug.View) error {
				d.Get(m.form.values(v))
				return d.Err
			})
		})
	}
}

// AppendBinary appends what WriteTo writes to b.
func (m *Master) AppendBinary(b []byte) ([]byte, error) { return state.Append(b, m.WriteTo) }

// UnmarshalBinary is [Master.ReadFrom] of data, which must end where the saved
// state ends. It verifies the data before it changes m.
func (m *Master) UnmarshalBinary(data []byte) error {
	err := m.ready()
	if err == nil {
		err = state.Verify(data)
	}
	if err != nil {
		return fmt.Errorf("amp: restore masters: %w", err)
	}
	_, err = m.ReadFrom(bytes.NewReader(data))
	return err
}
