package layers

import (
	"errors"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
)

// Param is a parameter of a layer.
type Param struct {
	Name  string // of the parameter in a model: state and checkpoints know it by its name
	Shape []int  // do not change it
	// Value has the elements, row-major, on the device of the layer: float32 in adapters and in a Buffer, otherwise in the type of
	// the pass. It is empty for a matrix in 4 or 8 bits, and for one in Pages.
	Value  snug.View
	Trains bool // whether a backward pass computes the gradient
	// Quantized has the elements of a matrix in 4 or 8 bits. Its shape is [out, in] in all layers.
	Quantized *qlora.Weight
	// Pages, unless nil, has the elements of a matrix in floats while no operation uses them.
	Pages Pages
	// Buffer says that forward passes of training change the elements, as those of a running average: they are float32 in a pass
	// of any type, and do not train. Package train saves them with the parameters, and makes them equal on all ranks.
	Buffer bool

	deviation float64 // of the first values, where fresh makes them
	constant  float32 // the first value where the deviation is 0
	table     bool    // of an Embedding or a head
	uses      int     // in a backward pass, 0 for one
	used      int     // how often this one has used it
}

// Pages hold the elements of a parameter outside of memory.
type Pages interface {
	Acquire() (snug.View, error) // brings the elements to memory, where they stay until Release
	Release(dirty bool) error    // dirty says that the elements have changed
}

// Len returns the number of elements, 0 for a Shape that memory cannot have.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		if d < 1 || n > math.MaxInt/d {
			return 0
		}
		n *= d
	}
	return n
}

// Acquire returns the elements of a parameter in floats, which stay until Release.
func (p *Param) Acquire() (snug.View, error) {
	if p.Pages == nil {
		return p.Value, nil
	}
	return p.Pages.Acquire()
}

// Release ends an Acquire. dirty says that the elements have changed.
func (p *Param) Release(dirty bool) error {
	if p.Pages == nil {
		return nil
	}
	return p.Pages.Release(dirty)
}

// With calls do with the elements of a parameter in floats, which changes them if dirty says so.
func (p *Param) With(dirty bool, do func(w snug.View) error) error {
	w, err := p.Acquire()
	if err != nil || do == nil {
		return err
	}
	return errors.Join(do(w), p.Release(dirty))
}

// yieldAll yields the parameters of lists that are not nil.
func yieldAll(yield func(*Param) bool, lists ...[]*Param) {
	for _, list := range lists {
		for _, p := range list {
			if p != nil && !yield(p) {
				return
			}
		}
	}
}

// listOf returns the parameters of linear layers, nil for those that they do not have.
func listOf(layers []Linear) (list []*Param) {
	for i := range layers {
		list = append(list, layers[i].list()...)
	}
	return list
}

func (l *Linear) list() []*Param {
	list := []*Param{l.Weight, l.Bias}
	if a := l.Adapter; a != nil {
		list = append(list, a.ParamA, a.ParamB, a.ParamM)
	}
	return list
}

func (n Norm) list() []*Param { return []*Param{n.Weight, n.Bias} }
