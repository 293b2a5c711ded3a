package state

import (
	"fmt"
	"math"
)

// OptimizerMagic names the state of an optimizer of package quant8.
const OptimizerMagic = "SNUGOPTI"

// Optimizer is the header of the state of an optimizer. The data is for each parameter what
// it keeps beside its states, then its states, chunk
// after chunk.
type Optimizer struct {
	Rule string // its Title
	// Numbers are the numbers that the rule keeps once for all parameters, all finite. Most rules keep none.
	Numbers []float64
	OptimizerFixed
	Params []OptimizerParam // by ascending names
}

// OptimizerFixed are the fields of fixed size.
type OptimizerFixed struct {
	Bits, Block    uint32
	Chunk, MinSize uint64
	Step           uint64
	LR             float32         // of the step
	Maps           [2][256]float32 // of the 8-bit codes of states with signs, and without
	Fold           OptimizerFold
}

// OptimizerFold is a step that several micro-batches make, one after the other: how many have come, their
// weight and the sum of the squares of their gradients, and the weight of all. It is zeros between steps,
// except for Norm, the norm of the gradients of the last such step.
type OptimizerFold struct {
	Micros                       uint64
	Weight, Total, Squares, Norm float64
}

// valid reports whether a step can be at this point.
func (f OptimizerFold) valid() bool {
	for _, x := range []float64{f.Weight, f.Total, f.Squares, f.Norm} {
		if !(x >= 0) || math.IsInf(x, 0) {
			return false
		}
	}
	if f.Micros == 0 {
		return f.Weight == 0 && f.Total == 0 && f.Squares == 0
	}
	return f.Micros <= math.MaxInt32 && f.Weight > 0 && f.Weight < f.Total
}

// OptimizerParam is one parameter, or a shard of it.
type OptimizerParam struct {
	Name string
	OptimizerParamFixed
	// Marks has a bit for every chunk, the lowest first: whether it is updated in the
	// step. It is empty where all are.
	Marks string
}

// OptimizerParamFixed are the fields of fixed size: N elements from Lo on of Total, with
// states of Bits. Rows and Cols are 0 unless the parameter is a matrix.
type OptimizerParamFixed struct {
	Total, Lo, N uint64
	Bits         uint32
	Rows, Cols   uint64
	Bytes        uint64 // of its data
}

// PutOptimizer writes o.
func (e *Encoder) PutOptimizer(o *Optimizer) {
	e.Put(o.OptimizerFixed)
	e.PutName(o.Rule)
	e.Put(o.Numbers)
	e.Put(uint32(len(o.Params)))
	for _, p := range o.Params {
		e.PutName(p.Name)
		e.Put(p.OptimizerParamFixed)
		e.Put(uint32(len(p.Marks)))
		e.Put([]byte(p.Marks))
	}
}

// GetOptimizer reads what PutOptimizer wrote, and checks what all optimizers have in
// common. numbers returns how many Numbers a rule has.
func (d *Decoder) GetOptimizer(numbers func(rule string) int) *Optimizer {
	o := new(Optimizer)
	d.Get(&o.OptimizerFixed)
	if o.Step > math.MaxInt32 {
		d.Corrupt("step %d", o.Step)
	}
	if !o.Fold.valid() || o.Fold.Micros > 0 && o.Step == 0 {
		d.Corrupt("step %d of %+v", o.Step, o.Fold)
	}
	o.Rule = d.GetName()
	o.Numbers = make([]float64, numbers(o.Rule))
	d.Get(o.Numbers)
	for _, x := range o.Numbers {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			d.Corrupt("the number %g of %s", x, o.Rule)
		}
	}
	last := ""
	for i := range d.Count(4 + 52 + 4) {
		p := OptimizerParam{Name: d.GetName()}
		d.Get(&p.OptimizerParamFixed)
		marks := make([]byte, d.Count(1))
		d.Get(marks)
		p.Marks = string(marks)
		if p.Total > math.MaxInt/4 || p.Lo > p.Total || p.N > p.Total-p.Lo || p.Bytes > math.MaxInt64 || i > 0 && p.Name <= last {
			d.Corrupt("parameter %q of %d elements, %d from %d on, in %d bytes", p.Name, p.Total, p.N, p.Lo, p.Bytes)
		}
		if !p.rectangle() {
			d.Corrupt("parameter %q of %d elements as %d×%d", p.Name, p.Total, p.Rows, p.Cols)
		}
		if d.Err != nil {
			break
		}
		last, o.Params = p.Name, append(o.Params, p)
	}
	d.endHeader()
	return o
}

// rectangle reports whether the parameter is a vector, or has its rows and columns.
func (p *OptimizerParamFixed) rectangle() bool {
	switch {
	case p.Rows|p.Cols == 0:
		return true
	case p.Rows > math.MaxInt/32 || p.Cols > math.MaxInt/32:
		return false
	case p.Rows == 0 || p.Cols == 0:
		return p.Total == 0
	}
	return p.Total%p.Cols == 0 && p.Total/p.Cols == p.Rows
}

func describeOptimizer(d *Decoder) (found Description) {
	o := d.GetOptimizer(d.numbers)
	for _, p := range o.Params {
		shape := []int{int(p.N)}
		if p.Rows|p.Cols > 0 {
			shape = []int{int(p.Rows), int(p.Cols)}
		}
		found.Entries = append(found.Entries, Entry{p.Name, fmt.Sprintf("%d bits", p.Bits), shape, int64(p.Bytes)})
	}
	found.Note = fmt.Sprintf("%s, %d bits in blocks of %d, after step %d", o.Rule, o.Bits, o.Block, o.Step)
	return found
}
