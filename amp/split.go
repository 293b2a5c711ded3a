package amp

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// splitSize is the bytes that remain of a float32 without its bfloat16.
const splitSize = 2

// splitJob takes float32 apart into a bfloat16 and a rest, or joins these. A rest of splitSize bytes gives the float32 again,
// unless it is NaN; with a rest of one byte the float32 is rounded to 24 bits. See [half.Splits].
type splitJob struct {
	w, upper, rest snug.View // float32, bfloat16 and the bytes of the rest
	apart          bool      // splits w; else joins upper and rest
	random         bool      // rounds to 24 bits at random by draw, not to nearest
	draw           Draw
}

func (j splitJob) do() error {
	dev, err := snug.CommonDevice(j.w, j.upper, j.rest)
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

// to24 reports whether the rest is one byte.
func (j *splitJob) to24() bool { return j.rest.Len() == j.w.Len() }

func (j *splitJob) Kernel() string {
	switch {
	case j.apart && j.to24():
		return "amp.split24"
	case j.apart:
		return "amp.split"
	case j.to24():
		return "amp.join24"
	}
	return "amp.join"
}

func (j *splitJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.w, &j.upper, &j.rest) }

func (j splitJob) Run() { splitTask.Run(cpu.Chunks(j.w.Len(), pieceOf(j.w.Len())), j) }

var splitTask = cpu.NewTask(func(j *splitJob, item int) {
	lo, hi := cpu.Chunk(j.w.Len(), pieceOf(j.w.Len()), item)
	switch {
	case !j.to24():
		splitItem(j, half.SplitRegistry.Best(), rests[int16](j.rest), lo, hi)
	case j.apart && j.random:
		d := rounding.Draws{Stream: philox.Stream{Seed: j.draw.Seed, Tensor: j.draw.Tensor}, First: j.draw.First}
		d.Split24(j.upper.BFloat16s()[lo:hi], rests[int8](j.rest)[lo:hi], lo, j.w.Float32s()[lo:hi])
	default:
		splitItem(j, half.Split24Registry.Best(), rests[int8](j.rest), lo, hi)
	}
})

// splitItem splits or joins elements lo to hi-1 without random numbers.
func splitItem[R int8 | int16](j *splitJob, k *half.Splits[R], rest []R, lo, hi int) {
	w, upper, rest := j.w.Float32s()[lo:hi], j.upper.BFloat16s()[lo:hi], rest[lo:hi]
	if j.apart {
		k.Split(upper, rest, w)
	} else {
		k.Join(w, upper, rest)
	}
}

// rests returns the bytes of v, in host memory, as integers.
func rests[R int8 | int16](v snug.View) []R {
	return unsafe.Slice((*R)(device.Mem(&v).Host), v.Bytes()/int(unsafe.Sizeof(*new(R))))
}
