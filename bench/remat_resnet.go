package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
)

// residualBlock is y = x + w2(relu(norm2(w1(relu(norm1(x)))))), the pre-activation
// block of a ResNet (He et al., "Identity Mappings in Deep Residual Networks", 2016)
// with dense weights for convolutions. It saves four tensors of the size of x, as
// automatic differentiation does with a relu in place: y, what w1 and w2 take and
// what w1 gives. The products are small for what they save.
type residualBlock struct {
	rows, cols   int
	norm1, norm2 norm
	w1, w2       linear
	temps        *temporaries
}

func newResidualBlock(r *rand.Rand, rows, cols int, temps *temporaries) *residualBlock {
	return &residualBlock{
		rows: rows, cols: cols,
		norm1: newNorm(rows, cols, temps), norm2: newNorm(rows, cols, temps), w1: newLinear(r, rows, cols, cols), w2: newLinear(r, rows, cols, cols),
		temps: temps,
	}
}

func (b *residualBlock) String() string { return fmt.Sprintf("block %d×%d", b.rows, b.cols) }

func (b *residualBlock) sizes() []int {
	n := b.rows * b.cols
	return []int{n, n, n, n, b.rows, b.rows, b.rows, b.rows}
}

func (b *residualBlock) forward(x []float32, s *saved, output bool) error {
	y, in1, z, in2 := s[0], s[1], s[2], s[3]
	if err := b.norm1.forward(in1, s[4], s[5], x); err != nil {
		return err
	}
	if err := cmp.Or(b.w1.forward(z, relu(in1), 0), b.norm2.forward(in2, s[6], s[7], z)); err != nil {
		return err
	}
	relu(in2)
	if !output {
		return nil
	}
	copy(y, x)
	return b.w2.forward(y, in2, 1)
}

func (b *residualBlock) backward(dx, dy, x []float32, s *saved) error {
	in1, z, in2 := s[1], s[2], s[3]
	d1, d2 := b.temps.at(inner, len(x)), b.temps.at(outer, len(x))
	return cmp.Or(
		b.w2.backward(d2, dy, in2),
		b.norm2.backward(d1, reluBackward(d2, in2), z, s[6], s[7], 0),
		b.w1.backward(d2, d1, in1),
		b.norm1.backward(dx, reluBackward(d2, in1), x, s[4], s[5], 1))
}

func (b *residualBlock) gradients() [][]float32 {
	return [][]float32{b.w1.dw, b.w2.dw, b.norm1.dgamma, b.norm1.dbeta, b.norm2.dgamma, b.norm2.dbeta}
}

// downsample is y = w(norm(x)), which takes the elements of four rows for one of
// y's and has half as many outputs: as many rows of twice the width as one of a ResNet's
// strided convolutions leaves.
type downsample struct {
	rows, cols int // of y
	norm       norm
	w          linear
	temps      *temporaries
}

// newDownsample returns that of activations of 4·rows × cols/2.
func newDownsample(r *rand.Rand, rows, cols int, temps *temporaries) *downsample {
	return &downsample{
		rows: rows, cols: cols,
		norm: newNorm(rows, 2*cols, temps), w: newLinear(r, rows, 2*cols, cols), temps: temps,
	}
}

func (s *downsample) String() string { return fmt.Sprintf("downsample %d×%d", s.rows, s.cols) }

func (s *downsample) sizes() []int {
	return []int{s.rows * s.cols, 2 * s.rows * s.cols, s.rows, s.rows}
}

func (s *downsample) forward(x []float32, kept *saved, output bool) error {
	if err := s.norm.forward(kept[1], kept[2], kept[3], x); err != nil || !output {
		return err
	}
	return s.w.forward(kept[0], kept[1], 0)
}

func (s *downsample) backward(dx, dy, x []float32, kept *saved) error {
	d := s.temps.at(inner, len(x))
	return cmp.Or(s.w.backward(d, dy, kept[1]), s.norm.backward(dx, d, x, kept[2], kept[3], 0))
}

func (s *downsample) gradients() [][]float32 { return [][]float32{s.w.dw, s.norm.dgamma, s.norm.dbeta} }

// relu makes negative elements 0, in place, and returns x.
func relu(x []float32) []float32 {
	for i, v := range x {
		b := int32(math.Float32bits(v))
		x[i] = math.Float32frombits(uint32(b &^ (b >> 31)))
	}
	return x
}

// reluBackward makes dx 0 where y, the output of relu, is, in place, and returns dx.
func reluBackward(dx, y []float32) []float32 {
	y = y[:len(dx)]
	for i, v := range dx {
		positive := -int32(math.Float32bits(y[i])) >> 31
		dx[i] = math.Float32frombits(uint32(int32(math.Float32bits(v)) & positive))
	}
	return dx
}
