package amp

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// splitSize is the bytes that remain of a float32 without its bfloat16.
const splitSize = 2

// join computes w[i] = the float32 whose halves are upper[i] and rest[i].
// rest holds 16-bit integers, as bytes.
func join(w, upper, rest snug.View) error { return splitJob{w, upper, rest, false}.do() }

// split takes w apart: join gives it again, unless it is NaN.
func split(w, upper, rest snug.View) error { return splitJob{w, upper, rest, true}.do() }

// splitJob takes float32 apart or joins their halves.
type splitJob struct {
	w, upper, rest snug.View // f32, bf16 and splitSize bytes an element
	apart          bool
}

func (j splitJob) do() error {
	dev, err := snug.CommonDevice(j.w, j.upper, j.rest)
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

func (j *splitJob) Kernel() string {
	if j.apart {
		return "amp.split"
	}
	return "amp.join"
}

func (j *splitJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.w, &j.upper, &j.rest) }

func (j splitJob) Run() { splitTask.Run(cpu.Chunks(j.w.Len(), pieceOf(j.w.Len())), j) }

var splitTask = cpu.NewTask(func(j *splitJob, item int) {
	lo, hi := cpu.Chunk(j.w.Len(), pieceOf(j.w.Len()), item)
	w, upper, rest := j.w.Float32s()[lo:hi], j.upper.BFloat16s()[lo:hi], rests(j.rest)[lo:hi]
	k := half.SplitRegistry.Best()
	if j.apart {
		k.Split(upper, rest, w)
	} else {
		k.Join(w, upper, rest)
	}
})

// rests returns the bytes of v, in host memory, as integers.
func rests(v snug.View) []int16 {
	return unsafe.Slice((*int16)(device.Mem(&v).Host), v.Bytes()/splitSize)
}
