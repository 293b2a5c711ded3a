//go:build cuda || hip || metal || emu

package fused

import "github.com/snug-ml/snug/internal/gpu"

var (
	elementwiseNames = gpu.ForFloats("fused_elementwise")
	diceNames        = gpu.ForFloats("fused_dice")
)

// lossParams is LossParams of losses.h.
type lossParams struct {
	n, part, form, gradients   uint32
	weighted, span             uint32
	classes, positions         uint32
	delta, alpha, gamma, scale float32
}

func (j *elementwiseJob) Grids(q gpu.Launcher) error {
	if err := fitsIn(j.x.Len(), 1<<31); err != nil { // a block steps over all parts
		return err
	}
	p := lossParams{n: uint32(j.x.Len()), part: uint32(j.part), form: uint32(j.c.Form), gradients: flag(j.gradients), weighted: flag(j.c.Weights != nil),
		span: 1, classes: uint32(j.factorsOn.Len()), positions: uint32(j.c.Positions), delta: j.c.Delta, alpha: j.c.Alpha, gamma: j.c.Gamma, scale: j.scale}
	if p.weighted != 0 {
		p.span = uint32(j.x.Len() / j.weightsOn.Len())
	}
	err := grid(q, nameOf(&elementwiseNames, &j.x), [3]int{j.parts.Len(), 1, 1}, threads, p, &j.dx, &j.parts, &j.x, &j.targets, &j.factorsOn, &j.weightsOn)
	if err != nil {
		return err
	}
	return j.add(q)
}

// add queues the sum of the parts, which it writes to total as a pair.
func (l *lossParts) add(q gpu.Launcher) error {
	return grid(q, "fused_loss_total", [3]int{1, 1, 1}, threads, uint32(l.parts.Len()), &l.total, &l.parts)
}

// diceParams is DiceParams of losses.h.
type diceParams struct {
	rows, cols                   uint32
	squared, gradients, weighted uint32
	smooth, scale                float32
	_                            uint32
}

func (j *diceJob) Grids(q gpu.Launcher) error {
	if err := fits(j.x.Len()); err != nil {
		return err
	}
	rows := j.parts.Len()
	p := diceParams{rows: uint32(rows), cols: uint32(j.c.Cols), squared: flag(j.c.Squared), gradients: flag(j.gradients), weighted: flag(j.c.Weights != nil),
		smooth: j.c.Smooth, scale: j.scale}
	err := grid(q, nameOf(&diceNames, &j.x), [3]int{min(rows, 1<<24), 1, 1}, threads, p, &j.dx, &j.parts, &j.x, &j.targets, &j.weightsOn)
	if err != nil {
		return err
	}
	return j.add(q)
}
