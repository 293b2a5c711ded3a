package fused

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// Dice is the soft Dice loss of rows of logits x and targets t, from 0 to 1 (Milletari et al., "V-Net", 2016). With p = σ(x) and sums
// over a row, such as a class of an image:
//
//	loss = 1 − (2·Σ p·t + Smooth) / (Σ p + Σ t + Smooth)
//	loss = 1 − (2·Σ p·t + Smooth) / (Σ p² + Σ t² + Smooth)    Squared
type Dice struct {
	Cols int // elements of a row, at least 1
	// Smooth is finite and positive; 0 means 1. It keeps a row without targets from dividing by 0.
	Smooth  float32
	Squared bool
	// Weights, unless nil, has for each row the factor of its loss and so of its gradients, finite and 0 or more. A row of
	// weight 0 is ignored: whatever it is, it adds nothing and its gradient is 0.
	Weights []float32
	// Losses, unless nil, collects the sum of the losses, and the Loss that the call returns has a Sum of 0.
	Losses *Losses
}

// DiceLoss returns the loss without gradients, for evaluation. Targets of the Loss counts rows that are not ignored.
//
// x and targets are [rows, Cols]. NaN and infinities propagate by the equations. Sums are float64, of float32 exponentials,
// and on other devices than the CPU float32, for up to 2^32 − 2^24 elements, else [snug.ErrNotBuilt]. Each worker holds 16 KiB.
func DiceLoss[V snug.Vector](c Dice, x, targets V) (Loss, error) {
	return c.launch("DiceLoss", snug.View{}, snug.ViewOf(x), snug.ViewOf(targets), 0, false)
}

// DiceBackward returns the loss and computes the gradient dx of gradScale·Sum. For the mean loss gradScale is the loss
// scale divided by Weight; it must be finite. dx is as x, and may be x. The rest is as for [DiceLoss].
func DiceBackward[V snug.Vector](c Dice, dx, x, targets V, gradScale float32) (Loss, error) {
	return c.launch("DiceBackward", snug.ViewOf(dx), snug.ViewOf(x), snug.ViewOf(targets), gradScale, true)
}

func (c Dice) launch(op string, dx, x, targets snug.View, gradScale float32, gradients bool) (Loss, error) {
	check := &checks{op: op}
	check.finite("gradScale", gradScale)
	check.parameter("Smooth", &c.Smooth, math.SmallestNonzeroFloat32, math.MaxFloat32, 1)
	check.weights("Weights", c.Weights)
	check.floats(operand{"x", x}, operand{"targets", targets}, operand{"dx", dx})
	rows := check.rows(operand{"x", x}, c.Cols)
	check.len(x.Len(), operand{"targets", targets})
	if gradients {
		check.len(x.Len(), operand{"dx", dx})
	}
	if c.Weights != nil {
		check.same("Weights", len(c.Weights), "rows of x", rows)
	}
	dev := check.device(dx, x, targets)
	if check.err != nil {
		return Loss{}, check.err
	}
	j := diceArgs{c: c, dx: dx, x: x, targets: targets, scale: gradScale, gradients: gradients}
	if !dev.IsCPU() {
		return j.launch(op, dev, rows)
	}
	sums := scratch.Get(2 * rows)
	defer scratch.Put(sums)
	j.sums, j.weights = *sums, c.Weights
	diceTask.Run(rows, j)
	return collect(countWeights(rows, c.Weights), c.Losses, *sums), nil
}

// diceJob is diceArgs for a device, with the weights there.
type diceJob struct {
	diceArgs
	lossParts
	weightsOn snug.View
}

func (j diceArgs) launch(op string, dev *snug.Device, rows int) (loss Loss, err error) {
	loss = countWeights(rows, j.c.Weights)
	if rows == 0 {
		return loss, nil
	}
	job := &diceJob{diceArgs: j}
	loss.Sum, err = launchParts(op, dev, job, &job.lossParts, rows, j.c.Losses, weightsUpload(nil, j.c.Weights, &job.weightsOn))
	if err != nil {
		return Loss{}, err
	}
	return loss, nil
}

func (*diceJob) Kernel() string { return "fused.dice" }

func (j *diceJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.x, &j.targets, &j.parts, &j.total, &j.weightsOn)
}

func (j *diceJob) Run() {
	a, rows := j.diceArgs, j.x.Len()/j.c.Cols
	a.sums, a.weights = make([]float32, 2*rows), j.weightsOn.Float32s()
	diceTask.Run(rows, a)
	j.putTotal(a.sums)
}

type diceArgs struct {
	c              Dice
	dx, x, targets snug.View
	scale          float32
	gradients      bool
	sums           []float32
	weights        []float32 // those of c
}

var diceTask = cpu.NewTask(func(j *diceArgs, row int) {
	buf := scratch.Get(4 * lossBlock)
	defer scratch.Put(buf)
	weight := 1.0
	if j.c.Weights != nil {
		weight = float64(j.weights[row])
	}
	putSum(j.sums, row, 0)
	var factors diceFactors
	if weight != 0 {
		overlap, sizes := 0.0, 0.0
		j.blocks(row, buf, func(_ int, x, t, e []float32) {
			for i, v := range x {
				p, _ := probabilities(float64(v), float64(e[i]))
				t := float64(t[i])
				overlap += p * t
				if j.c.Squared {
					sizes += p*p + t*t
				} else {
					sizes += p + t
				}
			}
		})
		top, bottom := 2*overlap+float64(j.c.Smooth), sizes+float64(j.c.Smooth)
		putSum(j.sums, row, weight*(1-top/bottom))
		k := weight * float64(j.scale)
		factors = diceFactors{onTarget: -2 * k / bottom, constant: k * top / (bottom * bottom)}
		if j.c.Squared {
			factors.constant, factors.onP = 0, 2*factors.constant
		}
	}
	if !j.gradients {
		return
	}
	j.blocks(row, buf, func(at int, x, t, e []float32) {
		dx := target(cut(buf, 3, len(x)), j.dx, at)
		for i, v := range x {
			if weight == 0 {
				dx[i] = 0
				continue
			}
			p, rest := probabilities(float64(v), float64(e[i]))
			dx[i] = float32((factors.onTarget*float64(t[i]) + factors.constant + factors.onP*p) * p * rest)
		}
		store(j.dx, at, dx)
	})
})

// diceFactors make the derivative of a row's loss by p.
type diceFactors struct{ onTarget, constant, onP float64 }

// blocks calls f for the blocks of a row, with the exponentials of their logits.
func (j *diceArgs) blocks(row int, buf *[]float32, f func(at int, x, t, e []float32)) {
	for lo, hi := row*j.c.Cols, (row+1)*j.c.Cols; lo < hi; lo += lossBlock {
		n := min(lossBlock, hi-lo)
		x, t, e := load(cut(buf, 0, n), j.x, lo), load(cut(buf, 1, n), j.targets, lo), cut(buf, 2, n)
		exponentials(e, x)
		f(lo, x, t, e)
	}
}
