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

// split24Job rounds float32 to 24 bits, which it stores as a bfloat16 and a byte, or joins these to a float32.
type split24Job struct {
	w, upper, rest snug.View // float32, bfloat16 and a byte for each element
	apart          bool      // splits w; else joins upper and rest
	random         bool      // rounds at random by draw, not to nearest
	draw           Draw
}

func (j split24Job) do() error {
	dev, err := snug.CommonDevice(j.w, j.upper, j.rest)
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

func (j *split24Job) Kernel() string {
	if j.apart {
		return "amp.split24"
	}
	return "amp.join24"
}

func (j *split24Job) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.w, &j.upper, &j.rest) }

func (j split24Job) Run() { split24Task.Run(cpu.Chunks(j.w.Len(), pieceOf(j.w.Len())), j) }

var split24Task = cpu.NewTask(func(j *split24Job, item int) {
	lo, hi := cpu.Chunk(j.w.Len(), pieceOf(j.w.Len()), item)
	w, upper, rest := j.w.Float32s()[lo:hi], j.upper.BFloat16s()[lo:hi], signedBytes(j.rest)[lo:hi]
	k := half.Split24Registry.Best()
	switch {
	case !j.apart:
		k.Join(w, upper, rest)
	case j.random:
		d := rounding.Draws{Stream: philox.Stream{Seed: j.draw.Seed, Tensor: j.draw.Tensor}, First: j.draw.First}
		d.Split24(upper, rest, lo, w)
	default:
		k.Split(upper, rest, w)
	}
})

// signedBytes returns the bytes of v, which is in host memory, as signed integers.
func signedBytes(v snug.View) []int8 {
	return unsafe.Slice((*int8)(device.Mem(&v).Host), v.Bytes())
}
