package amp

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// CastOptions says how [CastWith] and [CastAll] round. The zero value is
// [Cast]'s.
type CastOptions struct {
	// Saturate makes values beyond the range of dst its largest finite number,
	// with their sign, instead of infinities; infinities of src too, as .satfinite
	// of NVIDIA's PTX does. NaNs stay NaN.
	Saturate bool
	// Stochastic rounds to one of the two neighbours at random, for a dst of
	// float16 or bfloat16: away from zero with the probability that is the
	// distance from the lower one in units of the gap, so that the expected result
	// is src. Updates smaller than the gap then are not lost, as they are to the
	// nearest (Gupta et al., "Deep Learning with Limited Numerical Precision",
	// ICML 2015). The distance counts in units of 2^-16 of the gap. That is exact,
	// except for float16 below 2^-14, where smaller distances are cut off.
	Stochastic bool
	// Draw names the random numbers for Stochastic.
	Draw Draw
}

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

// Cast converts every element of src to the element type of dst, rounded to
// nearest with ties to even: dst[i] = src[i]. Values beyond the range of dst
// become infinite, and NaNs stay NaN: quiet, on the CPU with the upper bits of their payload,
// on a device with any. Values beyond the range of [snug.Float8E4M3], which
// has no infinities, become ±448, as in torch 2.15.
//
// dst and src have the same length, hold float32, float16 or bfloat16 and lie on
// one device. On the CPU each may also be a View of [snug.F8E4M3] or [snug.F8E5M2]; a worker
// then needs 32 KiB of scratch. They may not overlap, unless they are the same vector of
// the same type. Errors: [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice], and
// [snug.ErrConfig] for an overlap.
func Cast[D, S snug.Vector](dst D, src S) error {
	return cast(snug.ViewOf(dst), snug.ViewOf(src))
}

// CastWith is [Cast] with options. The result does not depend on the CPU, the
// device or GOMAXPROCS. Errors are the errors of Cast, and [snug.ErrDType] for
// Stochastic unless dst is float16 or bfloat16. Each running worker uses 49 KiB of
// scratch.
func CastWith[D, S snug.Vector](dst D, src S, o CastOptions) error {
	return castWith(snug.ViewOf(dst), snug.ViewOf(src), o)
}

func cast(dst, src snug.View) error { return castWith(dst, src, CastOptions{}) }

func castWith(dst, src snug.View, o CastOptions) error {
	job, dev, err := newCast(dst, src, o)
	if err != nil {
		return fmt.Errorf("amp: Cast: %w", err)
	}
	return job.launch(dev)
}

// CastPair is one cast of many.
type CastPair struct{ Dst, Src snug.View }

// CastAll is [CastWith] for many vectors, such as all weights of a model: the
// walker yields the name of each and from where to where it is cast. It walks
// twice, to check all before it writes the first; both walks must yield the same.
// Short vectors on the CPU are cast together, so that they do not wait for one
// another. With Stochastic, vector number k of the walk takes the random numbers
// of the tensor Draw.Tensor+k.
//
// Errors are the errors of CastWith and name the vector. [snug.ErrConfig] also means
// that pairs is nil or does not yield the same again; then the contents of dst are undefined.
// It allocates nothing on the CPU.
func CastAll(pairs iter.Seq2[string, CastPair], o CastOptions) error {
	if pairs == nil {
		return fmt.Errorf("amp: CastAll: no vectors, the walker is nil: %w", snug.ErrConfig)
	}
	c := casters.Get().(*caster)
	defer c.release()
	c.o = o
	pairs(c.check)
	checked := c.walked
	if c.walked = 0; c.err == nil {
		pairs(c.work)
		c.flush()
	}
	if c.err == nil && c.walked != checked {
		c.err = fmt.Errorf("amp: CastAll: the walker yielded %d vectors, then %d, want the same twice: %w", checked, c.walked, snug.ErrConfig)
	}
	return c.err
}

// newCast returns the job of a cast, and where it runs.
func newCast(dst, src snug.View, o CastOptions) (castJob, *snug.Device, error) {
	switch {
	case !casts(dst):
		return castJob{}, nil, fmt.Errorf("dst is %s, want %s: %w", dst.DType(), castTypes(dst), snug.ErrDType)
	case !casts(src):
		return castJob{}, nil, fmt.Errorf("src is %s, want %s: %w", src.DType(), castTypes(src), snug.ErrDType)
	case o.Stochastic && dst.DType() != snug.F16 && dst.DType() != snug.BF16:
		return castJob{}, nil, fmt.Errorf("dst is %s, want f16 or bf16 for stochastic rounding: %w", dst.DType(), snug.ErrDType)
	case dst.Len() != src.Len():
		return castJob{}, nil, fmt.Errorf("dst has %d elements, src has %d: %w", dst.Len(), src.Len(), snug.ErrShape)
	}
	dev, err := snug.CommonDevice(dst, src)
	if err != nil {
		return castJob{}, nil, err
	}
	if device.Mem(&dst).Overlaps(*device.Mem(&src)) && (dst.DType() != src.DType() || !device.Mem(&dst).Same(*device.Mem(&src))) {
		return castJob{}, nil, fmt.Errorf("dst and src overlap: %w", snug.ErrConfig)
	}
	job := castJob{dst: dst, src: src, stream: dst.Bytes() >= half.StreamBytes, random: o.Stochastic, draw: o.Draw}
	if o.Saturate {
		job.limit = largest(dst.DType())
	}
	return job, dev, nil
}

// casts reports whether a cast may have v.
func casts(v snug.View) bool {
	return v.DType().IsFloat() || isFloat8(v.DType()) && v.Device().IsCPU()
}

// castTypes are the types that it may have where it lies.
func castTypes(v snug.View) string {
	if v.Device().IsCPU() {
		return "f32, f16, bf16, f8e4m3 or f8e5m2"
	}
	return "f32, f16 or bf16"
}

func isFloat8(dt snug.DType) bool { return dt == snug.F8E4M3 || dt == snug.F8E5M2 }

// largest returns the largest finite number of a floating-point type.
func largest(dt snug.DType) float32 {
	switch dt {
	case snug.F16:
		return 65504
	case snug.BF16:
		return 0x1.fep127
	case snug.F8E4M3:
		return 448
	case snug.F8E5M2:
		return 57344
	}
	return math.MaxFloat32
}

// castJob is dst[i] = src[i], to nearest or at random.
type castJob struct {
	dst, src snug.View
	stream   bool    // the caches cannot hold the result
	limit    float32 // of the magnitudes; 0 for none
	random   bool
	draw     Draw
}

// plain reports whether the elements stay what they are.
func (j *castJob) plain() bool {
	return j.dst.DType() == j.src.DType() && !j.random && j.limit == 0
}

// narrow reports whether it is from or to a type of 8 bits, which goes by way of float32.
func (j *castJob) narrow() bool { return isFloat8(j.dst.DType()) || isFloat8(j.src.DType()) }

func (j castJob) launch(dev *snug.Device) error {
	if j.plain() && device.Mem(&j.dst).Overlaps(*device.Mem(&j.src)) {
		return nil // onto itself
	}
	return device.Run(dev, j)
}

func (*castJob) Kernel() string { return "amp.cast" }

func (j *castJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dst, &j.src) }
