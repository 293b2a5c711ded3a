package gomlx

import (
	"bytes"
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
	s, err := m.snapshot()
	if err != nil {
		return err
	}
	h := header{First: m.first, Variables: []described{}, Frozen: m.frozen}
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
		if v == nil || v.Trainable || describe(v) != d {
			return fmt.Errorf("gomlx: the checkpoint has a variable %q of %s, which the model lacks: %w", d.Name, d.Shape, snug.ErrConfig)
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
	m.compare(&built{moved: s.variables})
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

// sameFrozen returns an error if a variable that nothing changes has other values than in the run.
func (m *model) sameFrozen(saved map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(m.frozen)) {
		if sum, has := saved[name]; has && !bytes.Equal(sum, m.frozen[name]) {
			return fmt.Errorf("gomlx: variable %q does not train, and has other values than in the run of the checkpoint: %w", name, snug.ErrConfig)
		}
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

// snapshot copies the variables that the graph changes.
func (m *model) snapshot() (s snapshot, err error) {
	for _, v := range m.moved {
		t, err := v.Value()
		if err == nil {
			err = bytesOf(t, func(b []byte) { s.values = append(s.values, bytes.Clone(b)) })
		}
		if err != nil {
			return s, fmt.Errorf("variable %q: %w: %w", v.ScopeAndName(), err, snug.ErrConfig)
		}
		s.variables = append(s.variables, v)
	}
	return s, nil
}

// restore brings the values back. A graph that failed may have taken the memory of a variable.
func (s snapshot) restore() error {
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
