package segment

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
)

// folded is a convolution of images with channels last and the BatchNorm behind it, in one: the encoder is frozen, so the norm is by its
// running averages and multiplies and shifts each channel,
//
//	y = (w∗x − mean)·γ/√(var + ε) + β = (w·γ/√(var + ε))∗x + (β − mean·γ/√(var + ε))
//
// which is a convolution with a bias. It is computed in float32, before the weights are rounded to the type of the encoder.
type folded struct {
	*layers.Conv        // Bias has the name of β
	name         string // of both layers
}

const batchEps = 1e-5

// newFolded returns one of side by side taps and as many zeros around the image as keep its size, but for the stride.
func newFolded(name string, in, out, side, stride, groups int) *folded {
	f := &folded{name: name}
	f.Conv = layers.NewConv(name+".c", conv.Shape{In: in, Out: out, Groups: groups, Dims: 2, Size: [3]int{1, 1}, Kernel: [3]int{side, side}, Stride: [3]int{stride, stride}, Layout: conv.ChannelsLast}, true)
	f.Bias.Name = name + ".bn.bias"
	return f
}

// fold reads the tensors of both layers.
func (f *folded) fold(file *amp.Weights) error {
	read := func(name string, n int) ([]float32, error) {
		x := make([]float32, n)
		return x, file.Load(f.name+name, snug.ViewOf(x))
	}
	out, weight := f.Shape.Out, f.Weight.Len()
	var x [5][]float32
	for i, name := range []string{".c.weight", ".bn.weight", ".bn.bias", ".bn.running_mean", ".bn.running_var"} {
		n := out
		if i == 0 {
			n = weight
		}
		var err error
		if x[i], err = read(name, n); err != nil {
			return err
		}
	}
	w, gamma, beta, mean, variance := x[0], x[1], x[2], x[3], x[4]
	for i := range out {
		if !(variance[i] >= 0) {
			return fmt.Errorf("%s.bn.running_var has %v, want 0 or more: %w", f.name, variance[i], snug.ErrCorrupt)
		}
		factor := float32(float64(gamma[i]) / math.Sqrt(float64(variance[i])+batchEps))
		for j := range weight / out {
			w[i*weight/out+j] *= factor
		}
		beta[i] -= mean[i] * factor
	}
	if err := amp.Cast(f.Weight.Value, w); err != nil {
		return err
	}
	return amp.Cast(f.Bias.Value, beta)
}

// neutral returns the tensors of a BatchNorm besides its bias that changes nothing but for ε.
func (f *folded) neutral() (list []tensor) {
	for i, name := range []string{".bn.weight", ".bn.running_mean", ".bn.running_var"} {
		x := make([]float32, f.Shape.Out)
		for j := range x {
			x[j] = float32(1 - i%2)
		}
		list = append(list, tensor{amp.Tensor{Name: f.name + name, DType: "F32", Shape: []int{len(x)}}, snug.ViewOf(x)})
	}
	return append(list, tensor{amp.Tensor{Name: f.name + ".bn.num_batches_tracked", DType: "I64"}, snug.ViewOf8(make([]uint8, 8))})
}

type tensor struct {
	amp.Tensor
	snug.View
}

// foldedOf returns those of a list of layers.
func foldedOf(list layers.Sequential) (all []*folded) {
	for _, l := range list {
		if of, is := l.(interface{ folds() []*folded }); is {
			all = append(all, of.folds()...)
		}
	}
	return all
}

// at1 computes y = w·x for each position, or y + w·x, for a convolution of one tap, without the bias.
func (f *folded) at1(y, x snug.View, into snug.Into) error {
	return amp.MatMul(y, x, f.Weight.Value, amp.MatMulOptions{M: y.Len() / f.Shape.Out, N: f.Shape.Out, K: f.Shape.In, TransB: true, Into: into})
}

// rows computes rows lo to hi-1 of a convolution of 3 by 3 taps without the bias, of an image of side by side positions, of which x has
// the rows from the row first on that these need.
func (f *folded) rows(y, x snug.View, first, side, lo, hi int) error {
	s := f.Shape
	from, to := lo*s.Stride[0]-1, (hi-1)*s.Stride[0]+2
	s.PadBefore, s.PadAfter = [3]int{max(0, -from), 1}, [3]int{max(0, to-side), 1}
	from, to = max(0, from), min(to, side)
	s.Batch, s.Size = 1, [3]int{to - from, side}
	return conv.Forward(y, cut(x, (from-first)*side*s.In, (to-from)*side*s.In), f.Weight.Value, snug.View{}, s)
}

// gelu is GELU of x and the bias, in place.
func (f *folded) gelu(x snug.View) error { return fused.BiasGELUErf(x, x, f.Bias.Value) }

// bias adds the bias, in place.
func (f *folded) bias(x snug.View) error { return fused.BiasAdd(x, x, f.Bias.Value) }

// cut returns n elements of a vector from lo on.
func cut(v snug.View, lo, n int) snug.View {
	v, _ = v.Slice(lo, lo+n) // an operation refuses an empty one
	return v
}

// steps calls functions one after the other until an error.
func steps(list ...func() error) error {
	for _, do := range list {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}
