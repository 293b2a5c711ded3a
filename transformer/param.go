package transformer

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// Param is a parameter of a model.
type Param struct {
	Name   string    // as published, see [Config.Tensors]
	Shape  []int     // as published; do not change it
	Value  snug.View // its elements, row-major, in the model's type on the model's device
	Trains bool      // whether [Model.Backprop] computes its gradient
}

// Len returns the number of elements.
func (p Param) Len() int { return p.Value.Len() }

// makeParams allocates the parameters of the model.
func (m *Model) makeParams() error {
	list := m.config.tensors(m.config.layout())
	m.index = make(map[string]*Param, len(list))
	m.params = make([]Param, len(list))
	for i, t := range list {
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		v, free, err := snug.MakeView(m.dev, m.dtype, n)
		if err != nil {
			return fmt.Errorf("%s of %v elements: %w", t.Name, t.Shape, err)
		}
		m.free = append(m.free, free)
		m.weightBytes += int64(v.Bytes())
		m.params[i] = Param{Name: t.Name, Shape: t.Shape, Value: v, Trains: m.options.Train == nil || m.options.Train(t.Name)}
		m.index[t.Name] = &m.params[i]
	}
	return nil
}

// param returns a parameter by its name without the prefix of the family.
func (m *Model) param(name string) *Param {
	p := m.index[m.config.layout().body+name]
	if p == nil {
		panic("transformer: the model has no parameter " + name) // Tensors and stages differ
	}
	return p
}

// values yields the parameters as [amp.SaveShards] takes them.
func (m *Model) values() iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		for _, p := range m.params {
			if !yield(amp.Tensor{Name: p.Name, DType: fileType(m.dtype), Shape: p.Shape}, p.Value) {
				return
			}
		}
	}
}

// firstValues fills the parameters as transformers does before training: matrices with normal
// numbers of standard deviation InitStd, which gpt2 divides by the root of its
// halves where a half enters the residual stream; norms with ones; biases with zeros. The
// numbers of a parameter depend on the seed and its place in the list only.
func (m *Model) firstValues(seed uint64) error {
	const piece = 1 << 16
	numbers := make([]float32, piece)
	low, _, err := snug.MakeView(snug.CPU(), m.dtype, piece)
	if err != nil {
		return err
	}
	for i, p := range m.params {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		deviation := m.config.InitStd
		if m.config.Family == "gpt2" && strings.HasSuffix(p.Name, "c_proj.weight") {
			deviation /= math.Sqrt(2 * float64(m.config.Layers))
		}
		for lo := 0; lo < p.Len(); lo += piece {
			n := min(piece, p.Len()-lo)
			for j := range numbers[:n] {
				switch {
				case len(p.Shape) == 2:
					numbers[j] = float32(deviation * rng.NormFloat64())
				case strings.HasSuffix(p.Name, ".bias"), m.config.NormPlusOne:
					numbers[j] = 0
				default:
					numbers[j] = 1
				}
			}
			if err := amp.Cast(part(low, 0, n), numbers[:n]); err != nil {
				return err
			}
			if err := snug.Copy(part(p.Value, lo, n), part(low, 0, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// load reads the parameters from a folder.
func (m *Model) load(dir string) (err error) {
	w, err := amp.OpenWeights(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	names, err := m.config.compare(w)
	if err != nil {
		return err
	}
	return w.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range m.params {
			if !yield(names[p.Name], p.Value) {
				return
			}
		}
	})
}
