//go:build cuda || hip || metal || emu

package quant8

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/optim"
)

// widthNames are the kernels for one width of states.
type widthNames struct {
	rules    [optim.MaxStates]string // by the number of states
	factored string                  // of a matrix with factors and a first moment
	squares  string
}

var (
	names4 = widthNames{
		[...]string{"quant8_rule4_1", "quant8_rule4_2", "quant8_rule4_3"}, "quant8_factored4", "quant8_squares4",
	}
	names8 = widthNames{
		[...]string{"quant8_rule8_1", "quant8_rule8_2", "quant8_rule8_3"}, "quant8_factored8", "quant8_squares8",
	}
	namesFloats = widthNames{
		[...]string{"quant8_rule_floats_1", "quant8_rule_floats_2", "quant8_rule_floats_3"}, "quant8_factored_floats", "quant8_squares_floats",
	}
)

// ruleParams is Step of kernels/step.h.
type ruleParams struct {
	n, seed, tensor, first uint64
	chunk, block           uint32
	lanes, wide            uint32
	pType, gType           uint32
	skip, random           uint32
	hasSign, states        uint32
	sType, _               uint32
	factors                optim.Constants
	sides                  sides
}

// rule8Params is Rule8Params of kernels/step.h.
type rule8Params struct {
	ruleParams
	positive     [129]float32
	_            uint32
	map2         Map
	tree1, tree2 tree
}

// rule4Params is Rule4Params of kernels/step.h. States without signs come first.
type rule4Params struct {
	ruleParams
	values, limits [2][16]float32
}

// floatsParams is FloatsParams of kernels/step.h.
type floatsParams struct {
	ruleParams
	seeds [optim.MaxStates]uint64
}

// launch returns the names of kernels and a launch with the operands and parameters of a
// step or a measurement, for teams of the given number of threads.
func (j *stepJob) launch(threads, lanes int) (*widthNames, gpu.Launch) {
	mems, params := j.params(lanes)
	l := gpu.Launch{Module: &kernels, Threads: threads, Operands: mems}
	switch j.bits {
	case 4:
		l.Params = gpu.Params(j.params4(params))
		return &names4, l
	case 8:
		l.Params = gpu.Params(j.params8(params))
		return &names8, l
	}
	l.Params = gpu.Params(j.paramsFloats(params))
	return &namesFloats, l
}

// params returns the operands of a step and the first part of its parameters.
func (j *stepJob) params(lanes int) ([]driver.Mem, ruleParams) {
	mems, wide := j.mems()
	p := ruleParams{
		n: uint64(j.p.Len()), seed: j.draw.Seed, tensor: j.draw.Tensor, first: j.first,
		chunk: uint32(j.chunk), block: uint32(j.block), lanes: uint32(lanes), wide: wide,
		pType: uint32(j.p.DType()), gType: uint32(j.g.DType()), states: uint32(j.states), sType: uint32(snug.F32),
		factors: j.rule.Constants, sides: j.sides(),
	}
	if j.bits == 16 {
		p.sType = uint32(snug.BF16)
	}
	if j.bits == 8 && j.block%4 != 0 || j.bits >= 16 && (j.chunk%4 != 0 || mems[2].Addr%16 != 0) {
		p.wide = 0
	}
	if j.skip {
		p.skip = 1
	}
	if j.random && j.p.DType() != snug.F32 {
		p.random = 1
	}
	for i, has := range j.signed {
		if has {
			p.hasSign |= 1 << i
		}
	}
	return mems, p
}

// params8 adds the tables of 8-bit states.
func (j *stepJob) params8(p ruleParams) *rule8Params {
	all := &rule8Params{ruleParams: p, map2: *j.v.Values(), tree1: *treeOf(j.m), tree2: *treeOf(j.v)}
	copy(all.positive[:], j.m.Values()[127:])
	return all
}

// params4 adds the tables of 4-bit states.
func (j *stepJob) params4(p ruleParams) *rule4Params {
	without, with := unsigned4(), signed4()
	return &rule4Params{
		ruleParams: p, values: [2][16]float32{without.Values, with.Values}, limits: [2][16]float32{without.Limits, with.Limits},
	}
}

// paramsFloats adds the seeds of 16-bit states.
func (j *stepJob) paramsFloats(p ruleParams) *floatsParams {
	all := &floatsParams{ruleParams: p}
	for i := range all.seeds {
		all.seeds[i] = j.stateSeed(i)
	}
	return all
}

// gridRule is a step of any rule, also with the options and widths that the kernels of
// two moments lack.
func (j *stepJob) gridRule(q gpu.Launcher) error {
	threads, lanes := threads, team(j.block)
	if j.bits == 4 {
		threads, lanes = threads4, teamOf(j.block, slots4)
	}
	names, l := j.launch(threads, lanes)
	l.Func, l.Blocks = names.rules[j.states-1], teamGrid(Blocks(j.p.Len(), j.block), threads/lanes)
	if j.bits >= 16 {
		l.Blocks = j.tileGrid()
	}
	if j.roots.Len() > 0 {
		l.Func, l.Operands = names.factored, append(l.Operands, *device.Mem(&j.roots))
	}
	return q.LaunchGrid(&l)
}

func (j *measureJob) Grids(q gpu.Launcher) error {
	grid := [3]int{pairsOf(j.p.Len()), 1, 1}
	if j.roots.Len() > 0 {
		return j.gridStateless(q, "quant8_matrix_squares", grid, j.g, *device.Mem(&j.roots), *device.Mem(&j.pairs))
	}
	names, l := j.launch(threads, team(j.block))
	l.Func, l.Blocks, l.Operands = names.squares, grid, append(l.Operands, *device.Mem(&j.pairs))
	return q.LaunchGrid(&l)
}
