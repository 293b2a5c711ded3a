package fused

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/vexp"
)

// softmaxArgs are the logits and losses of a chunk of rows. With gradients set
// the logits are replaced by the gradient of gradScale times the loss.
type softmaxArgs struct {
	logits, losses []float32
	targets        []int32
	vocab          int
	gradients      bool
	gradScale      float32
}

var softmaxTask = cpu.NewTask(func(a *softmaxArgs, item int) {
	lo, hi := cpu.Chunk(len(a.targets), itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		a.losses[r] = a.row(a.logits[r*a.vocab:][:a.vocab], int(a.targets[r]))
	}
})

// row returns the loss of a row, whose logits z it overwrites.
func (a *softmaxArgs) row(z []float32, target int) (loss float32) {
	if target < 0 {
		if a.gradients {
			clear(z)
		}
		return 0
	}
	peak := vexp.Registry.Best().Max(z, 1, float32(math.Inf(-1)))
	below := float64(peak) - float64(z[target])
	spread := peak + vexp.Registry.Best().Max(z, -1, float32(math.Inf(-1)))
	total := expSum(z, peak)
	if a.gradients {
		if spread > flushSpread {
			flush(z)
		}
		softmaxGrad(z, target, total, a.gradScale)
	}
	return float32(below + math.Log(total))
}

// expBlock is how many exponentials are added in float32.
const expBlock = 1024

// expSum replaces z[j] by exp(z[j] − peak) and returns their sum.
func expSum(z []float32, peak float32) (total float64) {
	k := vexp.Registry.Best()
	for len(z) > 0 {
		block := z[:min(expBlock, len(z))]
		total += float64(k.ExpSum(block, block, peak))
		z = z[len(block):]
	}
	return total
}

// flushSpread is the difference of logits from which on flush has work to do:
// exp(-40) is above flushBelow.
const (
	flushBelow  = 0x1p-60
	flushSpread = 40
)

// flush sets exponentials below flushBelow to zero. Their sum is at least 1, so
// that this changes no bit of it, and their gradients would soon be subnormal
// numbers, with which processors multiply up to a hundred times slower.
func flush(z []float32) {
	for i, e := range z {
		if e < flushBelow {
			z[i] = 0
		}
	}
}

// softmaxGrad replaces the exponentials z, whose sum is total, by the gradient
// of scale times the loss with respect to the logits.
func softmaxGrad(z []float32, target int, total float64, scale float32) {
	vexp.Registry.Best().Scale(z, z, float32(float64(scale)/total))
	z[target] -= scale
}
