//go:build cuda || metal || emu

package quant8

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/optim"
)

// The steps of all rules, by the number of their states.
var (
	rule8Names  = [optim.MaxStates]string{"quant8_rule8_1", "quant8_rule8_2", "quant8_rule8_3"}
	rule32Names = [optim.MaxStates]string{"quant8_rule32_1", "quant8_rule32_2", "quant8_rule32_3"}
)

// ruleParams is Step of kernels/step.h.
type ruleParams struct {
	n, seed, tensor, first uint64
	chunk, block           uint32
	lanes, wide            uint32
	pType, gType           uint32
	skip, random           uint32
	hasSign, _             uint32
	factors                optim.Constants
}

// rule8Params is Rule8Params of kernels/step.h.
type rule8Params struct {
	ruleParams
	positive     [129]float32
	_            uint32
	map2         Map
	tree1, tree2 tree
}

// params returns the parameters of a step and, of a measurement too, the operands
// that both have.
func (j *stepJob) params() ([]driver.Mem, ruleParams) {
	mems, wide := j.mems()
	p := ruleParams{
		n: uint64(j.p.Len()), seed: j.draw.Seed, tensor: j.draw.Tensor, first: j.first,
		chunk: uint32(j.chunk), block: uint32(j.block), lanes: uint32(team(j.block)), wide: wide,
		pType: uint32(j.p.DType()), gType: uint32(j.g.DType()), factors: j.rule.Constants,
	}
	if j.bits == 8 && j.block%4 != 0 || j.bits == 32 && (j.chunk%4 != 0 || mems[2].Addr%16 != 0) {
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

// params8 returns params with the tables of 8-bit states.
func (j *stepJob) params8() ([]driver.Mem, *rule8Params) {
	mems, p := j.params()
	all := &rule8Params{ruleParams: p, map2: *j.v.Map(), tree1: *treeOf(j.m), tree2: *treeOf(j.v)}
	copy(all.positive[:], j.m.Map()[127:])
	return mems, all
}

// gridRule8 and gridRule32 are steps of any rule, also with the options that the
// kernels of AdamW do not have.
func (j *stepJob) gridRule8(q gpu.Launcher) error {
	mems, params := j.params8()
	l := gpu.Launch{
		Module: &kernels, Func: rule8Names[j.states-1],
		Blocks: teamGrid(Blocks(j.p.Len(), j.block), team(j.block)), Threads: threads,
		Operands: mems, Params: gpu.Params(params),
	}
	if j.states == 1 {
		l.Operands, l.Params = append(mems, *j.roots.Mem()), gpu.Params(&oneState8{*params, j.sides()})
	}
	return q.LaunchGrid(&l)
}

func (j *stepJob) gridRule32(q gpu.Launcher) error {
	mems, params := j.params()
	l := gpu.Launch{
		Module: &kernels, Func: rule32Names[j.states-1],
		Blocks: j.tileGrid(), Threads: threads,
		Operands: mems, Params: gpu.Params(&params),
	}
	if j.states == 1 {
		l.Operands, l.Params = append(mems, *j.roots.Mem()), gpu.Params(&oneState32{params, j.sides()})
	}
	return q.LaunchGrid(&l)
}

func (j *measureJob) Grids(q gpu.Launcher) error {
	if j.roots.Len() > 0 {
		return j.gridStateless(q, "quant8_matrix_squares", [3]int{pairsOf(j.p.Len()), 1, 1}, *j.g.Mem(), *j.roots.Mem(), *j.pairs.Mem())
	}
	l := gpu.Launch{Module: &kernels, Func: "quant8_squares32", Blocks: [3]int{pairsOf(j.p.Len()), 1, 1}, Threads: threads}
	if j.bits == 8 {
		mems, params := j.params8()
		l.Func, l.Operands, l.Params = "quant8_squares8", mems, gpu.Params(params)
	} else {
		mems, params := j.params()
		l.Operands, l.Params = mems, gpu.Params(&params)
	}
	l.Operands = append(l.Operands, *j.pairs.Mem())
	return q.LaunchGrid(&l)
}
