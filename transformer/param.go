package transformer

import (
	"errors"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
)

// Param is a parameter of a model. Its Name is the published name, see [Config.Tensors], and in adapters PEFT's name; so is
// its Shape. Its Pages are Options.Pages.
type Param = layers.Param

// makeParams allocates the parameters of the model, except quantized matrices, which load makes.
func (m *Model) makeParams() error {
	list := m.config.tensors(m.config.layout())
	adapters, err := m.chooseAdapters(m.loadAdapters)
	if err != nil {
		return err
	}
	m.index = make(map[string]*Param, len(list))
	m.params = make([]Param, 0, len(list)+3*len(adapters)) // never grows: the stages point to its elements
	for _, t := range list {
		p := Param{Name: t.Name, Shape: t.Shape, Trains: m.trains(t.Name) && !m.quantizes(t) && !m.config.isFixed(t.Name)}
		paged := m.options.PageFloats && len(t.Shape) == 2 && !m.config.isHeadNorm(t.Name) && !m.quantizes(t) && !m.saved[t.Name] && m.tables.files[t.Name] == ""
		left, shared := m.leaves(t), m.sharedParam(t)
		if shared != nil {
			m.useShared(m.addParam(p), shared)
			continue
		}
		if left {
			p.Trains = false
		}
		if paged || left {
			m.pagedBytes += int64(p.Len() * m.dtype.Size())
		} else if !m.quantizes(t) {
			if m.config.corrects(t.Name) {
				p.Value, err = m.makeCorrection(p.Len())
			} else {
				p.Value, err = m.makeVector(m.dtype, p.Len())
			}
			if err != nil {
				return fmt.Errorf("%s of %v elements: %w", t.Name, t.Shape, err)
			}
		}
		switch added := m.addParam(p); {
		case left:
			added.Pages = inFolder{m.folder, added}
		case paged:
			added.Pages = page{m.options.Pages, added, m.dtype}
		}
	}
	return m.makeAdapters(adapters)
}

func (m *Model) addParam(p Param) *Param {
	m.params = append(m.params, p)
	added := &m.params[len(m.params)-1]
	m.index[p.Name] = added
	return added
}

// makeVector allocates weights.
func (m *Model) makeVector(dt snug.DType, n int) (snug.View, error) {
	v, free, err := snug.MakeView(m.dev, dt, n)
	if err != nil {
		return v, err
	}
	m.free = append(m.free, free)
	m.weightBytes += int64(v.Bytes())
	return v, nil
}

// makeCorrection allocates a parameter of float32, which counts as workspace.
func (m *Model) makeCorrection(n int) (snug.View, error) {
	before := m.weightBytes
	v, err := m.makeVector(snug.F32, n)
	m.correctionBytes += m.weightBytes - before
	m.weightBytes = before
	return v, err
}

// param returns a parameter by its name without the prefix of the family.
func (m *Model) param(name string) *Param {
	p := m.index[m.config.layout().body+name]
	if p == nil {
		panic("transformer: the model has no parameter " + name) // Tensors and stages differ
	}
	return p
}

// load reads the parameters from a source, which it closes unless matrices stay there. A matrix is quantized before the next is
// read.
func (m *Model) load(open func() (source, error)) (err error) {
	from, err := open()
	if err != nil {
		return err
	}
	if m.folder != nil {
		m.folder.from = from
	} else {
		defer func() { err = errors.Join(err, from.Close()) }()
	}
	q, err := m.newQuantizer()
	if err != nil {
		return err
	}
	var now, later []*Param
	for i := range m.params {
		p := &m.params[i]
		if m.adapted(p) || m.shared[p.Name] || m.tables.files[p.Name] != "" || m.stays(p) {
			continue
		}
		if _, joined := m.config.slot(p.Name); joined || q.wants(p) || p.Pages != nil {
			later = append(later, p)
		} else {
			now = append(now, p)
		}
	}
	if err := from.readAll(q, now); err != nil {
		return err
	}
	for _, p := range later {
		if m.stored[p.Name] {
			err = q.load(p, from)
		} else {
			err = q.read(p, from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stays reports whether a parameter is read when it is used, and not before.
func (m *Model) stays(p *Param) bool {
	_, in := p.Pages.(inFolder)
	return in || m.options.SaveOnly && m.isQuantized(p)
}

// read reads a parameter that is quantized, in the pages, or in a tensor of all experts.
func (q *quantizer) read(p *Param, from source) error {
	if p.Pages != nil {
		return p.With(true, func(v snug.View) error { return from.read(q, p, v) })
	}
	v := p.Value
	if q.wants(p) {
		v = q.staging(p)
	}
	err := from.read(q, p, v)
	if err == nil && q.wants(p) {
		err = q.put(p, v)
	}
	return err
}

// namesIn returns the name in a folder for each parameter.
func (m *Model) namesIn(w *amp.Weights) (map[string]string, error) {
	file := m.config
	file.Whole, file.Stored = m.whole, m.coded.form
	file.Vocab, file.Tied = m.tables.vocab, m.tables.tied
	found, err := file.compare(w)
	if err != nil {
		return found, err
	}
	names := make(map[string]string, len(found))
	own := m.config
	own.Vocab, own.Tied = file.Vocab, file.Tied
	published := file.tensors(file.layout())
	for i, t := range own.tensors(own.layout()) {
		names[t.Name] = found[published[i].Name]
	}
	if file.Tied && !m.config.Tied { // untied by a folder of adapters
		names[m.config.layout().head] = names[m.config.layout().body+m.config.embedding()]
	}
	return names, nil
}

// values yields the parameters of the model, which merge makes, as [amp.SaveShards] takes them: adapters are merged,
// and quantized matrices decoded, when they are written.
func (m *Model) values(merge *merger) iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		for i := range m.params {
			p := &m.params[i]
			if m.adapted(p) {
				continue
			}
			t, v := amp.Tensor{Name: p.Name, DType: fileType(m.dtype), Shape: p.Shape}, p.Value
			if m.config.corrects(p.Name) {
				t.DType = fileType(snug.F32)
			}
			if s, joined := m.config.slot(p.Name); joined {
				if !s.begins() {
					continue
				}
				t.Name, t.Shape, v = s.tensor, s.shape(&m.config), snug.View{}
				t.Make = func() (snug.View, error) { return merge.join(s) }
			} else if l := m.matrices[p]; l != nil && (l.Adapter != nil || m.isQuantized(p)) {
				t.Make, v = func() (snug.View, error) { return merge.matrix(l) }, snug.View{}
			} else if p.Pages != nil {
				t.Make, v = func() (snug.View, error) { return merge.value(p) }, snug.View{}
			}
			if !yield(t, v) {
				return
			}
		}
	}
}
