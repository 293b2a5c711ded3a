package fused

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// softmaxArgs are the logits and losses of a chunk of rows. With gradients set
// the logits are replaced by the gradient of gradScale times the loss.
type softmaxArgs struct {
	logits, losses []float32
	targets        []int32
	vocab          int
	gradients      bool
	gradScale      float32
	narrow         bool // gradients are wanted as bfloat16, at the start of each row
}

var softmaxTask = cpu.NewTask(func(a *softmaxArgs, item int) {
	lo, hi := cpu.Chunk(len(a.targets), itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		z := a.logits[r*a.vocab:][:a.vocab]
		a.losses[r] = a.row(z, int(a.targets[r]))
		if a.gradients && a.narrow {
			dst := bfloat16s(z)
			for at := 0; at < len(z); at += half.Chunk {
				end := min(at+half.Chunk, len(z))
				half.Store(dst, at, z[at:end])
			}
		}
	}
})

// bfloat16s returns the memory of x as bfloat16.
func bfloat16s(x []float32) snug.View {
	return snug.SliceView(unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x)))
}

// row returns the loss of a row, whose logits z it overwrites.
func (a *softmaxArgs) row(z []float32, target int) (loss float32) {
	if target < 0 {
		if a.gradients {
			clear(z)
		}
		return 0
	}
	peak := rowwise.Registry.Best().Max(z, 1, float32(math.Inf(-1)))
	below := float64(peak) - float64(z[target])
	total := expSum(z, peak)
	if a.gradients {
		softmaxGrad(z, target, total, a.gradScale)
	}
	return float32(below + math.Log(total))
}

// expBlock is how many exponentials are added in float32.
const expBlock = 1024

// expSum replaces z[j] by exp(z[j] − peak) and returns their sum.
func expSum(z []float32, peak float32) (total float64) {
	k := rowwise.Registry.Best()
	for len(z) > 0 {
		block := z[:min(expBlock, len(z))]
		total += float64(k.ExpSum(block, block, peak))
		z = z[len(block):]
	}
	return total
}

// flushBelow is where exponentials are set to zero. Their sum is at least 1, so
// that this changes no bit of it, and their gradients would soon be subnormal
// numbers, with which processors multiply up to a hundred times slower.
const flushBelow = 0x1p-60

// softmaxGrad replaces the exponentials z, whose sum is total, by the gradient
// of scale times the loss with respect to the logits.
func softmaxGrad(z []float32, target int, total float64, scale float32) {
	rowwise.Registry.Best().ScaleAbove(z, float32(float64(scale)/total), flushBelow)
	z[target] -= scale
}
