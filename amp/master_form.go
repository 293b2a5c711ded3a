package amp

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// MasterForm is how a [Master] keeps the bits of float32 weights for which
// their parameters, of 16 bits, have no room.
//
//	form           memory   parameters    the weights that an optimizer updates
//	FullMaster     4 bytes  f32 f16 bf16  float32
//	SplitMaster    2 bytes  bf16          float32, the same bits as FullMaster's
//	Split24Master  1 byte   bf16          24 bits: 15 after the point, where bfloat16 has 7
//	NoMaster       0 bytes  f16 bf16      the parameter's own; the result is rounded at random
//
// The bytes are what the Master holds for each element, in addition to the parameter.
type MasterForm uint8

const (
	// FullMaster keeps float32, and the parameter is a copy of them rounded to
	// nearest even (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
	FullMaster MasterForm = iota

	// SplitMaster has the upper half of a float32 in the parameter and keeps the
	// lower half, like the DistributedFusedAdam of NVIDIA's apex with
	// store_param_remainders. The parameter is the float32 rounded to nearest,
	// ties away from zero, and what is kept, as a signed 16-bit integer, added to
	// the parameter's bits moved up by 16 gives the float32's. So no bit of it is
	// lost: after any updates it is what FullMaster has, and the parameter
	// differs from FullMaster's at ties only. Weights above the largest bfloat16
	// stay finite while their parameter is infinite. A NaN makes the parameter a
	// quiet NaN and the rest 0.
	//
	// The two halves belong together: nothing else may change the parameter, and
	// it is saved with the Master.
	SplitMaster

	// NoMaster keeps nothing. An update works on a float32 copy of a chunk, which
	// [CastWith] rounds back at random into the parameter, so that small updates are
	// there on average (Gupta et al., "Deep Learning with Limited Numerical
	// Precision", ICML 2015). Every update of a parameter has its own random
	// numbers. Their tensor number is the 64-bit FNV-1a hash of the parameter's
	// name. Their seed in update k, from 0, is number k of the
	// SplitMix64 sequence of MasterOptions.Seed (Steele et al., "Fast Splittable
	// Pseudorandom Number Generators", OOPSLA 2014). The result depends neither
	// on the order of parameters, the chunk size nor the device.
	NoMaster

	// Split24Master is SplitMaster without the lowest 8 bits of a float32. The parameter and one signed byte
	// together are a number of 24 bits, with the range of float32 and 15 bits after the point. An update
	// works on a float32 copy of a chunk and rounds the result to 24 bits: to nearest even or, with
	// MasterOptions.Stochastic, at random.
	//
	// Rounding to nearest changes the float32 by at most 2^-16 of its magnitude; rounding at random changes it
	// by less than 2^-15. Below a magnitude of 2^-126 the bounds are 2^-142 and 2^-141. No form with 8 bits
	// more than bfloat16 has a smaller bound. Updates below the bound are lost if the form rounds to nearest;
	// if it rounds at random, they are there on average.
	//
	// The parameter is the number of 24 bits rounded to nearest, ties away from zero, as in SplitMaster. If
	// ties went to even, one number in 512 would need a ninth bit.
	//
	// To join the two, take the parameter's bits moved up by 16, and add the byte, as a signed integer, times
	// 256: the sum is the bits of the float32. Infinities stay infinite. A value that rounds up beyond the
	// largest number of 24 bits becomes infinite. A NaN makes the parameter a quiet NaN and the byte 0. The
	// random numbers have the seed and the tensor number that NoMaster uses; an element takes the upper 8 of
	// the 16 bits that [Draw] gives it.
	//
	// FlashOptim (arXiv 2602.23349) also keeps 8 bits: they count steps of 1/254 of half the parameter's gap.
	// Here they are the next 8 bits of the float32 itself. As with SplitMaster, the two parts belong together:
	// nothing else may change the parameter, and it is saved with the Master.
	Split24Master
)

// masterForms has what differs between the forms.
var masterForms = [...]struct {
	name   string
	size   int          // bytes that are kept of an element
	kept   snug.DType   // of the vector in which they lie
	params []snug.DType // that the form is for
}{
	FullMaster:    {"full", 4, snug.F32, []snug.DType{snug.F32, snug.F16, snug.BF16}},
	SplitMaster:   {"split", splitSize, snug.U8, []snug.DType{snug.BF16}},
	NoMaster:      {"none", 0, snug.U8, []snug.DType{snug.F16, snug.BF16}},
	Split24Master: {"split24", 1, snug.U8, []snug.DType{snug.BF16}},
}

func (f MasterForm) known() bool { return int(f) < len(masterForms) }

// String returns "full", "split", "none" or "split24".
func (f MasterForm) String() string {
	if !f.known() {
		return fmt.Sprintf("MasterForm(%d)", uint8(f))
	}
	return masterForms[f].name
}

// bytes returns the size of the kept data of n elements.
func (f MasterForm) bytes(n int) int { return n * masterForms[f].size }

// part returns what v keeps of elements lo to hi-1.
func (f MasterForm) part(v snug.View, lo, hi int) (snug.View, error) {
	size := v.DType().Size()
	return v.Slice(f.bytes(lo)/size, f.bytes(hi)/size)
}
