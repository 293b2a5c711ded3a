package quant8

import (
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/rounding"
)

// The formats of 4-bit states with signs and without, see [Optimizer].
var (
	signed4   = sync.OnceValue(func() *nibble.Format { return nibble.NewNearestFormat(dynamicMap4()) })
	unsigned4 = sync.OnceValue(func() *nibble.Format { return nibble.NewNearestFormat(linearMap4()) })
)

// dynamicMap4 is create_dynamic_map(True, 3, 4) of torchao.
func dynamicMap4() [16]float32 { return [16]float32(dynamicEntries(true, 1, 1e-2, 1e-1, 1)) }

// linearMap4 is torch.linspace(0, 1, 17)[1:].
func linearMap4() (m [16]float32) {
	for i := range m {
		m[i] = float32(i+1) / 16
	}
	return m
}

// step4 is step8 for 4-bit states. begin is even.
func (a *stepArgs) step4(s *state8, item, lo, begin, end int) {
	first, last := begin/a.block, Blocks(end, a.block)
	var states [optim.MaxStates]optim.State4
	for i, signed := range a.signed {
		states[i] = optim.State4{Codes: s.codes[i][begin/2 : (end+1)/2], Absmax: s.absmax[i][first:last], Format: unsigned4()}
		if signed {
			states[i].Format = signed4()
		}
	}
	stepIn(a, states[:a.states], item, lo+begin, lo+end)
}

// stateSeed returns the seed of the random numbers that round state i in 16 bits: number
// i of the sequence that the seed of the parameter starts. Otherwise their names are the
// same as for rounding the parameter.
func (j *stepJob) stateSeed(i int) uint64 { return rounding.Seed(j.draw.Seed, uint64(i)) }

// step16 is step8 for states in bfloat16.
func (a *stepArgs) step16(s *state16, item, lo, begin, end int) {
	var states [optim.MaxStates]optim.State16
	for i := range a.states {
		draws := rounding.Draws{Stream: a.draw, First: a.first + uint64(lo+begin)}
		draws.Seed = a.stateSeed(i)
		states[i] = optim.State16{Values: snug.SliceView(s[i][begin:end]), Draws: draws}
	}
	stepIn(a, states[:a.states], item, lo+begin, lo+end)
}

// stepIn makes the step of elements lo to hi-1 of p with the given states, or sums their
// squares.
func stepIn[S optim.State](a *stepArgs, states []S, item, lo, hi int) {
	scratch := tiles.Get(optim.Scratch(a.tile))
	defer tiles.Put(scratch)
	if a.sums != nil {
		part := &a.sums.items[item]
		part[0], part[1] = optim.Squares(&a.rule, a.operands(), lo, hi, states, a.tile, *scratch)
		return
	}
	optim.Step(&a.rule, a.counting(item), lo, hi, states, a.tile, *scratch)
}
