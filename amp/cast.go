package amp

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// Cast converts every element of src to the element type of dst, rounded to
// nearest with ties to even: dst[i] = src[i]. Values beyond the range of dst
// become infinite, and NaNs stay NaN.
//
// dst and src have the same length and lie on one device. They may not
// overlap, unless they are the same vector of the same type. Errors:
// [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice], and [snug.ErrConfig] for
// an overlap.
func Cast[D, S snug.Vector](dst D, src S) error {
	return cast(snug.ViewOf(dst), snug.ViewOf(src))
}

func cast(dst, src snug.View) error {
	if err := checkFloat("Cast", "dst", dst); err != nil {
		return err
	}
	if err := checkFloat("Cast", "src", src); err != nil {
		return err
	}
	if dst.Len() != src.Len() {
		return fmt.Errorf("amp: Cast: dst has %d elements, src has %d: %w", dst.Len(), src.Len(), snug.ErrShape)
	}
	dev, err := snug.CommonDevice(dst, src)
	if err != nil {
		return fmt.Errorf("amp: Cast: %w", err)
	}
	if overlap(dst, src) {
		if dst.DType() == src.DType() && address(&dst) == address(&src) {
			return nil
		}
		return fmt.Errorf("amp: Cast: dst and src overlap: %w", snug.ErrConfig)
	}
	job := castJob{dst, src, dst.Bytes() >= half.StreamBytes}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	queued := job
	return dev.Launch(&queued)
}

// castJob is dst[i] = src[i].
type castJob struct {
	dst, src snug.View
	stream   bool // the caches cannot hold dst
}

func (*castJob) Kernel() string { return "amp.cast" }

func (j *castJob) Operands(yield func(*driver.Mem)) {
	yield(j.dst.Mem())
	yield(j.src.Mem())
}

// castChunk is the number of elements that one worker converts at a time.
const castChunk = 1 << 16

func (j *castJob) Run() { castTask.Run(cpu.Chunks(j.dst.Len(), castChunk), *j) }

var castTask = cpu.NewTask(func(j *castJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), castChunk, item)
	if from, to := j.src.DType(), j.dst.DType(); from == to {
		size := to.Size()
		copy(j.dst.Mem().Bytes()[lo*size:hi*size], j.src.Mem().Bytes()[lo*size:hi*size])
		return
	}
	half.Convert(j.dst, j.src, lo, hi, j.stream)
})
