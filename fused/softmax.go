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
	weights        []float32 // of the rows' losses; nil: 1
	vocab          int
	limit          float32 // of the cap; 0: none
	gradients      bool
	gradScale      float32
	narrow         bool // gradients are wanted as bfloat16, at the start of each row
}

var softmaxTask = cpu.NewTask(func(a *softmaxArgs, item int) {
	buf := scratch.Get(expBlock)
	defer scratch.Put(buf)
	lo, hi := cpu.Chunk(len(a.targets), itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		a.losses[r] = a.row(a.logitsOf(r), int(a.targets[r]), a.weight(r), *buf)
		a.round(r)
	}
})

func (a *softmaxArgs) logitsOf(r int) []float32 { return a.logits[r*a.vocab:][:a.vocab] }

func (a *softmaxArgs) weight(r int) float32 {
	if a.weights == nil {
		return 1
	}
	return a.weights[r]
}

// round rounds the gradients of a row to bfloat16, if that is wanted.
func (a *softmaxArgs) round(r int) {
	if !a.gradients || !a.narrow {
		return
	}
	z := a.logitsOf(r)
	dst := bfloat16s(z)
	for at := 0; at < len(z); at += half.Chunk {
		end := min(at+half.Chunk, len(z))
		half.Store(dst, at, z[at:end])
	}
}

// bfloat16s returns the memory of x as bfloat16.
func bfloat16s(x []float32) snug.View {
	return snug.SliceView(unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x)))
}

// row returns the loss of a row, whose logits z it overwrites. buf has expBlock
// elements.
func (a *softmaxArgs) row(z []float32, target int, weight float32, buf []float32) (loss float32) {
	if target < 0 {
		if a.gradients {
			clear(z)
		}
		return 0
	}
	a.softcap(z)
	peak := rowwise.Registry.Best().Max(z, 1, float32(math.Inf(-1)))
	below := float64(peak) - float64(z[target])
	var total float64
	switch {
	case a.limit != 0 && a.gradients: // which need the logits again
		total = expSum(nil, z, peak, buf)
		a.gradient(z, target, peak, total, a.gradScale*weight, buf)
	case a.gradients:
		total = expSum(z, z, peak, buf)
		softmaxGrad(z, target, total, a.gradScale*weight)
	default:
		total = expSum(z, z, peak, buf)
	}
	return float32(float64(weight) * (below + math.Log(total)))
}

// softcap replaces logits z by limit·tanh(z/limit).
func (a *softmaxArgs) softcap(z []float32) {
	if a.limit != 0 {
		rowwise.Registry.Best().Softcap(z, 1/a.limit, a.limit)
	}
}

// gradient replaces logits z by the gradients of scale times the loss with respect to
// the logits before the cap. The exponentials of the row, less its peak, have the sum total. A
// target outside z is in another part of the row.
func (a *softmaxArgs) gradient(z []float32, target int, peak float32, total float64, scale float32, buf []float32) {
	k, factor := rowwise.Registry.Best(), float32(float64(scale)/total)
	for ; len(z) > 0; target -= expBlock {
		block := z[:min(expBlock, len(z))]
		slopes := buf[:len(block)]
		if a.limit != 0 {
			k.SoftcapSlopes(slopes, block, 1/a.limit, 1)
		}
		k.ExpSum(block, block, peak)
		k.ScaleAbove(block, factor, flushBelow)
		if 0 <= target && target < len(block) {
			block[target] -= scale
		}
		if a.limit != 0 {
			k.ScoreGrad(block, slopes, 0, 1) // a product
		}
		z = z[len(block):]
	}
}

// expBlock is how many exponentials are added in float32.
const expBlock = 1024

// expSum sets dst[j] to exp(z[j] − peak) and returns their sum. Without a dst they go to
// waste, in a block.
func expSum(dst, z []float32, peak float32, waste []float32) (total float64) {
	k := rowwise.Registry.Best()
	for len(z) > 0 {
		n := min(expBlock, len(z))
		to := waste
		if dst != nil {
			to, dst = dst, dst[n:]
		}
		total += float64(k.ExpSum(to[:n], z[:n], peak))
		z = z[n:]
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
