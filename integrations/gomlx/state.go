package gomlx

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/snug-ml/snug"
)

// This file is the state of a model besides the variables that train, in a part of the checkpoint: a magic text, the
// length of the header in 8 bytes, the header as JSON, and the bytes of the variables in its order, little-endian.

const (
	magic     = "snug gomlx 1\n"
	maxHeader = 64 << 20 // bytes
)

// header describes the state.
type header struct {
	First     int64             `json:"first"` // global_step before step 1
	Variables []described       `json:"variables"`
	Frozen    map[string][]byte `json:"frozen"`
}

// described is a variable that the graph changes.
type described struct {
	Name  string `json:"name"`
	Shape string `json:"shape"` // with the element type
	Bytes int    `json:"bytes"`
}

func describe(v *context.Variable) described {
	return described{v.ScopeAndName(), v.Shape().String(), int(v.Shape().Memory())}
}

// bytesOf calls use with the memory of a tensor.
func bytesOf(t *tensors.Tensor, use func([]byte)) error {
	if t.Size() == 0 {
		use(nil)
		return nil
	}
	return t.ConstBytes(use)
}

// WriteState writes the state.
func (m *model) WriteState(w io.Writer) error {
	s, err := snapshotOf(m.moved)
	if err != nil {
		return err
	}
	sums, err := m.sums()
	if err != nil {
		return err
	}
	h := header{First: m.first, Variables: []described{}, Frozen: sums}
	for _, v := range m.moved {
		h.Variables = append(h.Variables, describe(v))
	}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	head := binary.LittleEndian.AppendUint64([]byte(magic), uint64(len(text)))
	for _, b := range append([][]byte{head, text}, s.values...) {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// ReadState restores what WriteState wrote.
func (m *model) ReadState(r io.Reader) error {
	h, err := readHeader(r)
	if err != nil {
		return fmt.Errorf("gomlx: the state of the model: %w: %w", err, snug.ErrCorrupt)
	}
	if err := m.sameFrozen(h.Frozen); err != nil {
		return err
	}
	s := snapshot{}
	for _, d := range h.Variables {
		v := m.find(d.Name)
		if v == nil || describe(v) != d || !slices.Contains(m.moved, v) || slices.Contains(s.variables, v) {
			return fmt.Errorf("gomlx: the checkpoint has a variable %q of %s, which the model lacks or does not change: %w", d.Name, d.Shape, snug.ErrConfig)
		}
		b := make([]byte, d.Bytes)
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("gomlx: variable %q: %w: %w", d.Name, err, snug.ErrCorrupt)
		}
		s.variables, s.values = append(s.variables, v), append(s.values, b)
	}
	for _, v := range m.moved {
		if !slices.Contains(s.variables, v) {
			return fmt.Errorf("gomlx: the checkpoint lacks variable %q, which the model changes: %w", v.ScopeAndName(), snug.ErrConfig)
		}
	}
	m.first = h.First
	return s.restore()
}

func readHeader(r io.Reader) (h header, err error) {
	head := make([]byte, len(magic)+8)
	if _, err := io.ReadFull(r, head); err != nil {
		return h, err
	}
	n := binary.LittleEndian.Uint64(head[len(magic):])
	if string(head[:len(magic)]) != magic || n > maxHeader {
		return h, fmt.Errorf("it starts with %q and a header of %d bytes, want %q and at most %d", head[:len(magic)], n, magic, maxHeader)
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil || uint64(len(text)) < n {
		return h, fmt.Errorf("the header has %d bytes, want %d: %w", len(text), n, errors.Join(err, io.ErrUnexpectedEOF))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return h, d.Decode(&h)
}

// sums returns the checksums of the variables that no graph of training changes.
func (m *model) sums() (map[string][]byte, error) {
	sums := map[string][]byte{}
	for _, v := range m.frozen {
		t, err := v.Value()
		if err == nil {
			err = bytesOf(t, func(b []byte) {
				sum := sha256.Sum256(b)
				sums[v.ScopeAndName()] = sum[:]
			})
		}
		if err != nil {
			return nil, fmt.Errorf("variable %q: %w: %w", v.ScopeAndName(), err, snug.ErrConfig)
		}
	}
	return sums, nil
}

// sameFrozen returns an error unless the variables that nothing changes are those of the run, with the same values.
func (m *model) sameFrozen(saved map[string][]byte) error {
	own, err := m.sums()
	if err != nil {
		return err
	}
	all := map[string][]byte{}
	maps.Copy(all, saved)
	maps.Copy(all, own)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a, has := saved[name]
		b, uses := own[name]
		switch {
		case !has:
			err = fmt.Errorf("gomlx: the model uses variable %q, which does not train, and the run of the checkpoint did not: %w", name, snug.ErrConfig)
		case !uses:
			err = fmt.Errorf("gomlx: the run of the checkpoint used variable %q, which does not train, and the model does not: %w", name, snug.ErrConfig)
		case !bytes.Equal(a, b):
			err = fmt.Errorf("gomlx: variable %q does not train, and has other values than in the run of the checkpoint: %w", name, snug.ErrConfig)
		default:
			continue
		}
		return err
	}
	return nil
}

// find returns a variable by its scope and name.
func (m *model) find(name string) *context.Variable {
	for v := range m.ctx.IterVariables() {
		if v.ScopeAndName() == name {
			return v
		}
	}
	return nil
}

// beginStep writes the number of steps to global_step, and copies the variables that a step changes.
func (m *model) beginStep(step int) (s snapshot, err error) {
	if err := m.setStep(step); err != nil {
		return s, err
	}
	if s, err = snapshotOf(m.moved); err == nil {
		err = s.add(m.global)
	}
	return s, err
}

// setStep writes the number of steps to global_step.
func (m *model) setStep(step int) error {
	t, err := m.global.Value()
	if err == nil {
		err = tensors.MutableFlatData(t, func(n []int64) { n[0] = m.first + int64(step) })
	}
	if err != nil {
		return fmt.Errorf("global_step: %w: %w", err, snug.ErrConfig)
	}
	return nil
}

// snapshot holds values of variables.
type snapshot struct {
	variables []*context.Variable
	values    [][]byte
}

// snapshotOf copies the values of variables.
func snapshotOf(variables []*context.Variable) (s snapshot, err error) {
	for _, v := range variables {
		if err := s.add(v); err != nil {
			return s, err
		}
	}
	return s, nil
}

// add copies the value of another variable.
func (s *snapshot) add(v *context.Variable) error {
	t, err := v.Value()
	if err == nil {
		err = bytesOf(t, func(b []byte) { s.values = append(s.values, bytes.Clone(b)) })
	}
	if err != nil {
		return fmt.Errorf("variable %q: %w: %w", v.ScopeAndName(), err, snug.ErrConfig)
	}
	s.variables = append(s.variables, v)
	return nil
}

// restore brings the values back. A graph that failed may have taken the memory of a variable.
func (s *snapshot) restore() error {
	for i, v := range s.variables {
		err := catch("gomlx: variable "+v.ScopeAndName(), func() error {
			t := tensors.FromShape(v.Shape())
			if t.Size() > 0 {
				if err := t.MutableBytes(func(b []byte) { copy(b, s.values[i]) }); err != nil {
					return thrown(err)
				}
			}
			return thrown(v.SetValue(t))
		})
		if err != nil {
			return err
		}
	}
	return nil
}
