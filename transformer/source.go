package transformer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// source is where the values of a model's parameters come from: a folder, or a file of llama.cpp's.
type source interface {
	// readAll reads parameters in floats that are in memory, each into its Value.
	readAll(q *quantizer, list []*Param) error
	// read reads the elements of a parameter into v, in the model's type, on any device.
	read(q *quantizer, p *Param, v snug.View) error
	// splits reports whether readFrom takes a parameter.
	splits(c *Config, p *Param) bool
	// readFrom is read for as many elements as v has, from one on: whole rows, and whole heads of q and k.
	readFrom(p *Param, lo int, v snug.View) error
	// quantized reads a matrix that is quantized in the source.
	quantized(q *quantizer, p *Param, dev *snug.Device) (*qlora.Weight, error)
	Close() error
}

// hubFolder is a folder with the names of transformers.
type hubFolder struct {
	w      *amp.Weights
	stored *qlora.Weights  // the same files, if matrices are quantized there
	coded  map[string]bool // matrices that are quantized there
	names  map[string]string
}

// openHubFolder opens the files of a folder, whose tensors fit the model.
func (m *Model) openHubFolder(dir string) (_ *hubFolder, err error) {
	s := &hubFolder{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.w, err = amp.OpenWeights(dir); err != nil {
		return nil, err
	}
	if s.names, err = m.namesIn(s.w); err != nil {
		return nil, err
	}
	if m.coded.form != 0 {
		s.coded = m.coded.names
		if s.stored, err = qlora.OpenWeights(dir); err == nil && m.coded.block != [2]int{} {
			err = s.stored.SetBlock(m.coded.block[0], m.coded.block[1])
		}
		if err == nil && m.coded.groups.Layout != 0 {
			err = s.stored.SetGroups(m.coded.groups)
		}
	}
	return s, err
}

func (s *hubFolder) readAll(q *quantizer, list []*Param) error {
	for _, p := range list {
		if s.coded[p.Name] {
			if err := s.decode(q, p, p.Value); err != nil {
				return err
			}
		}
	}
	return s.w.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range list {
			if !s.coded[p.Name] && !yield(s.names[p.Name], p.Value) {
				return
			}
		}
	})
}

func (s *hubFolder) read(q *quantizer, p *Param, v snug.View) error {
	if s.coded[p.Name] {
		return s.decode(q, p, v)
	}
	if at, joined := q.config.slot(p.Name); joined {
		return q.loadSlot(s.w, s.names[p.Name], at, v)
	}
	return s.w.Load(s.names[p.Name], v)
}

func (s *hubFolder) splits(c *Config, p *Param) bool {
	_, joined := c.slot(p.Name)
	return !joined && !s.coded[p.Name]
}

func (s *hubFolder) readFrom(p *Param, lo int, v snug.View) error {
	return s.w.LoadAt(s.names[p.Name], lo, v)
}

func (s *hubFolder) quantized(q *quantizer, p *Param, dev *snug.Device) (w *qlora.Weight, err error) {
	name := s.names[p.Name]
	if at, joined := q.config.slot(p.Name); joined {
		w, err = s.stored.LoadRows(name, qlora.Rows{First: at.expert*at.wide + at.first, Step: at.outStep, Count: at.out}, dev)
	} else {
		w, err = s.stored.Load(name, dev)
	}
	if err != nil {
		return nil, err
	}
	if t := w.Type(); t != q.coded.form || !slices.Equal(w.Shape(), p.Shape) {
		err = fmt.Errorf("%s is %s of %v, want %s of %v: %w", name, t, w.Shape(), q.coded.form, p.Shape, snug.ErrConfig)
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (s *hubFolder) Close() (err error) {
	if s.stored != nil {
		err = s.stored.Close()
	}
	return errors.Join(err, s.w.Close())
}
