package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Activation is the function between the matrices of an MLP, and a [Layer] that keeps nothing but its output.
type Activation struct {
	// plain computes act(x + bias), in place where out is x, and gated act(gate)·up.
	plain         func(out, x, bias snug.View) error
	plainBackward func(dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) error
	gated         func(out, gate, up snug.View) error
	gatedBackward func(dgate, dup, dy, gate, up snug.View) error
	unbiased      bool // plain takes an empty bias for none
	overwrites    bool // plainBackward changes x
	onto          bool // the output may overwrite x, which plainBackward then takes for x
}

// The activations of package fused.
var (
	SiLU     = silu() // x·sigmoid(x); of a gate SwiGLU
	GELUTanh = Activation{plain: fused.BiasGELU[snug.View], plainBackward: fused.BiasGELUBackward[snug.View, snug.View, snug.View],
		gated: fused.GeGLU[snug.View], gatedBackward: fused.GeGLUBackward[snug.View]} // GELU in the approximation by tanh
	GELU = Activation{plain: fused.BiasGELUErf[snug.View], plainBackward: fused.BiasGELUErfBackward[snug.View, snug.View, snug.View]} // x·Φ(x), without a gate
)

// Activations that are one of package fused.
var (
	ReLU        = pointwise(fused.ReLU)        // max(x, 0)
	ReLU6       = pointwise(fused.ReLU6)       // min(max(x, 0), 6)
	SquaredReLU = pointwise(fused.SquaredReLU) // max(x, 0)²
	HardSwish   = pointwise(fused.HardSwish)   // x·min(max(x+3, 0), 6)/6
	Sigmoid     = pointwise(fused.Sigmoid)     // 1/(1+exp(−x))
	Tanh        = pointwise(fused.Tanh)
)

// QuickGELU is x·sigmoid(1.702·x), the activation of OpenAI's CLIP, without a gate. On 16-bit types 1.702·x is rounded.
var QuickGELU = Activation{unbiased: true, overwrites: true, plain: quickGELU, plainBackward: quickGELUBackward}

const quick = 1.702

func quickGELU(out, x, bias snug.View) (err error) {
	if bias.Len() > 0 {
		err = fused.BiasAdd(out, x, bias)
	} else if out != x {
		err = snug.Copy(out, x)
	}
	if err == nil {
		err = multiply(out, out.Len(), quick)
	}
	if err == nil {
		err = fused.Activate(out, out, fused.SiLU)
	}
	if err != nil {
		return err
	}
	return multiply(out, out.Len(), 1./quick)
}

func quickGELUBackward(dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) (err error) {
	if bias.Len() > 0 {
		err = fused.BiasAdd(x, x, bias)
	}
	if err == nil {
		err = multiply(x, x.Len(), quick)
	}
	if err == nil {
		err = fused.ActivateBackward(dx, dy, x, fused.SiLU)
	}
	if err != nil || dbias.Len() == 0 {
		return err
	}
	return fused.BiasAddBackward(dbias, dx, into, ws)
}

// LeakyReLU is x for x > 0, else slope·x.
func LeakyReLU(slope float32) Activation { return pointwise(fused.LeakyReLU(slope)) }

func silu() Activation {
	a := pointwise(fused.SiLU)
	a.gated, a.gatedBackward = fused.SwiGLU[snug.View], fused.SwiGLUBackward[snug.View]
	return a
}

// pointwise makes an Activation of one of package fused.
func pointwise(f fused.Activation) Activation {
	biased := func(out, x, bias snug.View) (snug.View, error) {
		if bias.Len() == 0 {
			return x, nil
		}
		return out, fused.BiasAdd(out, x, bias)
	}
	return Activation{
		unbiased:   true,
		overwrites: !f.FromInput(),
		onto:       f.FromInput() && f.FromOutput(),
		plain: func(out, x, bias snug.View) error {
			x, err := biased(out, x, bias)
			if err != nil {
				return err
			}
			return fused.Activate(out, x, f)
		},
		plainBackward: func(dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) error {
			x, err := biased(x, x, bias) // dx is x where there is a bias
			if err != nil {
				return err
			}
			if !f.FromInput() { // but from the output
				if err := fused.Activate(x, x, f); err != nil {
					return err
				}
			}
			if err := fused.ActivateBackward(dx, dy, x, f); err != nil || dbias.Len() == 0 {
				return err
			}
			return fused.BiasAddBackward(dbias, dx, into, ws)
		},
	}
}

// ClampedSwiGLU is gpt-oss's activation of a gate, see [fused.ClampedSwiGLU].
func ClampedSwiGLU(alpha, limit float32) Activation {
	return Activation{
		gated: func(out, gate, up snug.View) error { return fused.ClampedSwiGLU(out, gate, up, alpha, limit) },
		gatedBackward: func(dgate, dup, dy, gate, up snug.View) error {
			return fused.ClampedSwiGLUBackward(dgate, dup, dy, gate, up, alpha, limit)
		},
	}
}

// compute computes act(gate)·up, or without a gate act(up + bias).
func (a *Activation) compute(p *Pass, out, gate, up *Tensor, bias *Param) {
	p.Do(func() error {
		if gate != nil {
			return a.gated(out.View, gate.View, up.View)
		}
		b, err := a.bias(p, up, bias)
		if err != nil {
			return err
		}
		return a.plain(out.View, up.View, b)
	})
}

// bias returns the values of a bias, zeros without one.
func (a *Activation) bias(p *Pass, up *Tensor, bias *Param) (snug.View, error) {
	if bias != nil || a.unbiased {
		if bias == nil {
			return snug.View{}, nil
		}
		return bias.Value, nil
	}
	return p.zero(up.Len() / p.rows)
}

// gradients turns gate and up into their gradients, for the gradient d of the output.
func (a *Activation) gradients(p *Pass, d, gate, up *Tensor, bias *Param) {
	a.gradientsInto(p, up, d, gate, up, bias)
}

// gradientsInto is gradients with the gradient of up in dx.
func (a *Activation) gradientsInto(p *Pass, dx, d, gate, up *Tensor, bias *Param) {
	p.Do(func() error {
		if gate != nil {
			return a.gatedBackward(gate.View, dx.View, d.View, gate.View, up.View)
		}
		dbias, into, err := p.Gradient(bias)
		if err != nil {
			return err
		}
		ws := snug.View{}
		if bias != nil || !a.unbiased { // the rows of images are long
			if ws, err = p.Workspace(fused.BiasGELUWorkspaceLen(p.rows, up.Len()/p.rows)); err != nil {
				return err
			}
		}
		b, err := a.bias(p, up, bias)
		if err != nil {
			return err
		}
		return a.plainBackward(dx.View, dbias, d.View, up.View, b, into, ws)
	})
	p.Done(bias)
}

// Elementwise makes an Activation without a gate of a function and its derivative, which run in Go: for float32 on the CPU.
// They are called from one goroutine, for finite and other numbers.
func Elementwise(f, derivative func(x float32) float32) Activation {
	if f == nil || derivative == nil {
		return Activation{}
	}
	on := func(list ...snug.View) error {
		for _, v := range list {
			if v.Len() > 0 && (v.DType() != snug.F32 || !v.Device().IsCPU()) {
				return fmt.Errorf("an Elementwise of %s on %s, want f32 on the CPU: %w", v.DType(), v.Device().Name(), snug.ErrDType)
			}
		}
		return nil
	}
	return Activation{
		plain: func(out, x, bias snug.View) error {
			if err := on(out, x, bias); err != nil {
				return err
			}
			y, b := out.Float32s(), bias.Float32s()
			for i, x := range x.Float32s() {
				y[i] = f(x + b[i%len(b)])
			}
			return nil
		},
		plainBackward: func(dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) error {
			if err := on(dx, dy, x, bias); err != nil {
				return err
			}
			d, g, b := dx.Float32s(), dy.Float32s(), bias.Float32s()
			for i, x := range x.Float32s() {
				d[i] = g[i] * derivative(x+b[i%len(b)])
			}
			if dbias.Len() == 0 {
				return nil
			}
			return fused.BiasAddBackward(dbias, dx, into, ws)
		},
	}
}

// Width implements [Layer].
func (a Activation) Width(in int) (int, error) {
	if a.plain == nil {
		return 0, fmt.Errorf("layers: a zero Activation, or one of a gate alone: %w", snug.ErrConfig)
	}
	return in, nil
}

// Params implements [Layer].
func (a Activation) Params(func(*Param) bool) {}

// Forward implements [Layer].
func (a Activation) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(a, x) {
		return &Tensor{}
	}
	y := p.Get(p.width(x))
	a.compute(p, y, nil, x, nil)
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (a Activation) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, a, x) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (a Activation) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if p.refuses(a, x) {
		return dy
	}
	kept := x
	if a.overwrites {
		kept = p.Get(p.width(x))
		p.copyTo(kept, x)
	}
	a.gradientsInto(p, dy, dy, nil, kept, nil)
	if a.overwrites {
		p.Put(kept)
	}
	return dy
}

func (Activation) cheap() {}

// overwrite computes the activation of x in its place.
func (a Activation) overwrite(p *Pass, x *Tensor) { a.compute(p, x, nil, x, nil) }
