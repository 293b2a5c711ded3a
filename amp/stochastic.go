package amp

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
)

// Draw names the random numbers of one stochastic rounding. They are the 16-bit
// halves of the words, the lower ones first, of the Philox4x32-10 stream of Seed
// and Tensor (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
// 2011). Element i of a vector takes half First+i, so that a vector can be
// rounded in pieces, in any order, on any device, with the same result. Use a
// new Seed for every step.
type Draw struct {
	Seed   uint64
	Tensor uint64 // number of the parameter
	First  uint64 // its element that comes first in the vector
}

// CastStochastic converts float32 to bfloat16 and rounds to one of the two
// neighbours at random: up with the probability that is the distance from the
// lower one in units of 2^-16 of the gap, so that the expected result is src.
// Updates smaller than the gap then are not lost, as they are to the nearest
// (Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015).
// The result does not depend on the CPU, the device or GOMAXPROCS.
//
// Magnitudes above the largest bfloat16 become it or infinity, NaNs stay NaN and
// values that bfloat16 holds are kept. dst holds bfloat16 and src float32, of
// the same length, on one device; they do not overlap. Errors: [snug.ErrDType],
// [snug.ErrShape], [snug.ErrDevice], and [snug.ErrConfig] for an overlap. Each
// running worker uses 3 KiB of scratch.
func CastStochastic[D, S snug.Vector](dst D, src S, draw Draw) error {
	return castStochastic(snug.ViewOf(dst), snug.ViewOf(src), draw)
}

func castStochastic(dst, src snug.View, draw Draw) error {
	const op = "CastStochastic"
	if dst.DType() != snug.BF16 {
		return fmt.Errorf("amp: %s: dst is %s, want bf16: %w", op, dst.DType(), snug.ErrDType)
	}
	if src.DType() != snug.F32 {
		return fmt.Errorf("amp: %s: src is %s, want f32: %w", op, src.DType(), snug.ErrDType)
	}
	if dst.Len() != src.Len() {
		return fmt.Errorf("amp: %s: dst has %d elements, src has %d: %w", op, dst.Len(), src.Len(), snug.ErrShape)
	}
	dev, err := snug.CommonDevice(dst, src)
	if err != nil {
		return fmt.Errorf("amp: %s: %w", op, err)
	}
	if overlap(dst, src) {
		return fmt.Errorf("amp: %s: dst and src overlap: %w", op, snug.ErrConfig)
	}
	job := stochasticJob{dst, src, draw}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	queued := job
	return dev.Launch(&queued)
}

// stochasticJob is dst[i] = src[i] or a neighbour.
type stochasticJob struct {
	dst, src snug.View
	draw     Draw
}

func (*stochasticJob) Kernel() string { return "amp.cast_stochastic" }

func (j *stochasticJob) Operands(yield func(*driver.Mem)) {
	yield(j.dst.Mem())
	yield(j.src.Mem())
}

func (j *stochasticJob) Run() { stochasticTask.Run(cpu.Chunks(j.dst.Len(), castChunk), *j) }

// drawn is the number of elements that take their random numbers at a time.
// Words come in blocks, and fastest in groups.
const (
	drawn     = 1024
	perWord   = 2
	perBlock  = 4 * perWord
	wordGroup = 32
)

// words is the scratch of a worker: the words of up to drawn elements, with
// those before that belong to the same block and those after of the same group.
type words [(drawn+perBlock)/perWord + wordGroup]uint32

var wordPool = sync.Pool{New: func() any { return new(words) }}

var stochasticTask = cpu.NewTask(func(j *stochasticJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), castChunk, item)
	dst, src := j.dst.BFloat16s()[lo:hi], j.src.Float32s()[lo:hi]
	first := j.draw.First + uint64(lo)
	k, w := half.Registry.Best(), wordPool.Get().(*words)
	defer wordPool.Put(w)
	for len(src) > 0 {
		n := min(drawn, len(src))
		k.F32ToBF16Stochastic(dst[:n], src[:n], w.draw(j.draw, first, n))
		dst, src, first = dst[n:], src[n:], first+uint64(n)
	}
})

// draw returns the random numbers of n elements from first on.
func (w *words) draw(d Draw, first uint64, n int) []uint16 {
	skip := int(first % perBlock)
	need := w[:cpu.Chunks(skip+n, perWord*wordGroup)*wordGroup]
	philox.Stream{Seed: d.Seed, Tensor: d.Tensor}.Words(need, (first-uint64(skip))/perWord)
	if bigEndian {
		for i, x := range need {
			need[i] = bits.RotateLeft32(x, 16)
		}
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(w)), perWord*len(need))[skip:]
}

// bigEndian says that the upper half of a word lies before the lower.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1
