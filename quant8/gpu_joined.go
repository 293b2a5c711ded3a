//go:build cuda || hip || metal || emu

package quant8

import (
	"github.com/snug-ml/snug/internal/gpu"
)

// stepItem is StepItem of kernels/steps.h.
type stepItem struct {
	p, g, state, n uint64
	first, types   uint32
}

// items writes the operands of all steps, and returns how many blocks they have together.
func (j *stepJob) items(to []stepItem) (blocks int) {
	for i, o := range j.joined.Jobs {
		mems, wide := o.mems()
		if o.bits == 32 && (o.chunk%4 != 0 || mems[2].Addr%16 != 0) || o.bits == 8 && o.block%4 != 0 {
			wide = 0
		}
		to[i] = stepItem{
			p: uint64(mems[0].Addr), g: uint64(mems[1].Addr), state: uint64(mems[2].Addr), n: uint64(o.p.Len()),
			first: uint32(blocks), types: uint32(o.p.DType()) | uint32(o.g.DType())<<8 | wide<<16,
		}
		blocks += o.plainGrid()[0]
	}
	return blocks
}

// plainGrid returns the number of thread blocks of a step with the faster kernels.
func (j *stepJob) plainGrid() [3]int {
	if j.bits == 8 {
		return teamGrid(Blocks(j.p.Len(), j.block), threads/team(j.block))
	}
	return j.tileGrid()
}

// gridOfMany is grid32 or grid8 for all steps that have joined.
func (j *stepJob) gridOfMany(q gpu.Launcher) error {
	l := gpu.Launch{Module: &kernels, Threads: threads}
	count := uint32(len(j.joined.Jobs))
	if j.bits == 32 {
		var params struct {
			coef            [9]float32
			chunk, count, _ uint32
			items           [maxSteps32]stepItem
		}
		params.coef, params.chunk, params.count = j.rule.AdamFactors(), uint32(j.chunk), count
		l.Func, l.Blocks, l.Params = "quant8_steps32", [3]int{j.items(params.items[:]), 1, 1}, gpu.Params(&params)
		return q.LaunchGrid(&l)
	}
	var params struct {
		coef                [9]float32
		chunk, block, lanes uint32
		positive            [129]float32
		count               uint32
		map2                Map
		tree1, tree2        tree
		items               [maxSteps8]stepItem
	}
	params.coef, params.chunk, params.block = j.rule.AdamFactors(), uint32(j.chunk), uint32(j.block)
	params.lanes, params.count = uint32(team(j.block)), count
	params.map2, params.tree1, params.tree2 = *j.v.Values(), *treeOf(j.m), *treeOf(j.v)
	copy(params.positive[:], j.m.Values()[127:])
	l.Func, l.Blocks, l.Params = "quant8_steps8", [3]int{j.items(params.items[:]), 1, 1}, gpu.Params(&params)
	return q.LaunchGrid(&l)
}
