package quant8

import (
	"bytes"
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
	"github.com/snug-ml/snug/internal/state"
)

// MeZO is the rule of Malladi et al. 2023, "Fine-Tuning Language Models with Just Forward Passes", arXiv:2305.17333. It
// needs only losses, no gradient. Each step draws new normal noise z and computes
//
//	p ← p + ε·z;  L₊ = loss
//	p ← p - 2ε·z; L₋ = loss
//	p ← p + ε·z
//	g = (L₊ - L₋)/(2ε)
//	p ← p·(1 - lr·wd) - lr·g·z
//
// as the authors' trainer does; here one pass makes the last two changes of p. [NewZerothOrder] makes an optimizer with this
// rule; [New] refuses it. Package train takes the rule as Options.Optimizer. It is for fine-tuning, at a rate of about
// 1e-6 for all weights of a model and about 1e-4 for adapters. It needs many more steps than rules with gradients.
//
// z is not stored: each pass generates it again from the seed, the step, the name of the parameter and the index of the
// element. The state is the seed and the number of steps. Each worker holds 16 KiB. Parameters on a device other than
// the CPU are changed on the host, in pieces, which takes another 256 KiB.
//
// # Rounding
//
// Each pass rounds the parameters, so the first three changes do not restore every bit. With ε = 1e-3 and float32 weights
// with a standard deviation of 0.02, half of the weights end up changed, in no particular direction; the root mean square
// of the change over all weights is 0.6 units in the last place. A unit is about 1e-7 of the weight. With bfloat16 two
// weights in five are changed, also by 0.6 units, and a unit is about 5e-3 of the weight. The authors' trainer rounds in
// the same way. Only a copy of the parameters could restore every bit; adapters in float32 do not need it.
//
// The last pass rounds parameters of 16 bits stochastically, because an update is much smaller than their units and would
// otherwise be lost. ε must not be smaller than these units: with ε = 1e-3, bfloat16 weights beyond 0.5 lose most of
// the noise.
type MeZO struct {
	Epsilon     float32 // ε, the factor of the noise, below 2^124; default 1e-3
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

// mostEpsilon bounds Epsilon, so that 2ε·z is finite.
const mostEpsilon = math.MaxFloat32 / 16

// check returns the rule with its defaults.
func (r MeZO) check() (MeZO, error) {
	e := equation{hyper: optim.Hyper{WeightDecay: float64(r.WeightDecay)}}
	var epsilon float64
	e.number("Epsilon", &epsilon, r.Epsilon, 1e-3, mostEpsilon)
	r.Epsilon = float32(epsilon)
	return r, e.check()
}

func (r MeZO) equation() equation {
	return equation{Traits: Traits{
		Name: "mezo", Title: "MeZO", About: "no gradients: a step is two forward passes and takes no more memory than evaluation; the rate is constant, and training takes many more steps", Devices: true, ForwardOnly: true,
		Full: Setting{Rule: MeZO{}, Rate: 1e-6}, Adapters: Setting{Rule: MeZO{Epsilon: 1e-2}, Rate: 1e-4}, // the paper's values
	}}
}

// ZerothOptions configures [NewZerothOrder].
type ZerothOptions struct {
	Seed uint64 // of the noise and of stochastic rounding
	// Params, unless nil, returns the options of one parameter. It is called in every step. NoTrust and Shared are ignored.
	Params func(name string) ParamOptions
}

// ZerothOrder makes the steps of a rule that is ForwardOnly, which is [MeZO]. [NewZerothOrder] makes it; its zero value gives errors. It is not safe for concurrent
// use.
type ZerothOrder struct {
	rule  MeZO
	o     ZerothOptions
	t     uint64
	made  bool
	busy  bool                                  // a call of Step is under way
	half  bool                                  // a pass has changed some parameters and not the others
	most  float32                               // the largest LR of the parameters
	seen  map[string]bool                       // names of the parameters of a step
	noise func(name string, step int) []float32 // unless nil, replaces the noise, for tests
}

// Estimate has the losses of a step of [ZerothOrder] and the gradient that follows from them.
type Estimate struct {
	Plus, Minus float64 // the losses at p + ε·z and at p - ε·z
	Projected   float64 // the gradient along z, (Plus - Minus)/(2ε)
}

// NewZerothOrder returns an optimizer that needs losses only, for a rule whose Traits are ForwardOnly. The error wraps
// [snug.ErrConfig].
func NewZerothOrder(r Rule, o ZerothOptions) (*ZerothOrder, error) {
	rule, is := r.(MeZO)
	if !is {
		return nil, fmt.Errorf("quant8: the rule is %T, want one that is ForwardOnly: %w", r, snug.ErrConfig)
	}
	rule, err := rule.check()
	if err != nil {
		return nil, fmt.Errorf("quant8: MeZO: %w", err)
	}
	return &ZerothOrder{rule: rule, o: o, made: true, seen: map[string]bool{}}, nil
}

// Steps returns the number of steps that were made.
func (z *ZerothOrder) Steps() int { return int(z.t) }

// Step makes a step at a learning rate. It calls loss twice. loss returns the mean loss with the present parameters, over
// the same data both times, for example all micro-batches of the step. Step iterates over params up to four times.
// params yields all parameters, the same ones every time, of float32, bfloat16 or float16.
//
// If loss returns an error or panics, or if a loss is not finite, no step is made: the parameters have their old
// values, up to the rounding that [MeZO] describes, and the next call makes the same step again. The error is the error
// of loss, or it wraps [snug.ErrNonFinite].
//
// Other errors come before anything is written. They wrap [snug.ErrConfig] for a rate that is negative or not finite, a
// nil argument, a parameter that comes twice, and a call from within loss. They wrap [snug.ErrDType] for parameters
// that are not floats.
//
// After an error of a device, some parameters may be changed and others not. All further steps are then errors until a
// state is restored. On the CPU, Step allocates nothing that grows with the parameters.
func (z *ZerothOrder) Step(lr float32, params iter.Seq2[string, snug.View], loss func() (float64, error)) (Estimate, error) {
	e, err := z.step(lr, params, loss)
	if err != nil {
		return Estimate{}, fmt.Errorf("quant8: MeZO: %w", err)
	}
	return e, nil
}

func (z *ZerothOrder) step(lr float32, params iter.Seq2[string, snug.View], loss func() (float64, error)) (e Estimate, err error) {
	if err := z.check(lr, params, loss); err != nil {
		return e, err
	}
	z.busy = true
	along := float32(0) // the parameters are at p + along·ε·z
	defer func() {      // also when loss panics
		z.busy = false
		if along != 0 && !z.half {
			if back := z.pass(params, func(*ParamOptions) change { return change{along: -along * z.rule.Epsilon} }); err == nil {
				err = back
			}
		}
	}()
	evaluate := func(to float32) (float64, error) {
		if err := z.pass(params, func(*ParamOptions) change { return change{along: (to - along) * z.rule.Epsilon} }); err != nil {
			return 0, err
		}
		along = to
		x, err := loss()
		if err == nil && (math.IsNaN(x) || math.IsInf(x, 0)) {
			err = fmt.Errorf("the loss is %g: %w", x, snug.ErrNonFinite)
		}
		return x, err
	}
	if e.Plus, err = evaluate(1); err != nil {
		return e, err
	}
	if e.Minus, err = evaluate(-1); err != nil {
		return e, err
	}
	e.Projected = (e.Plus - e.Minus) / (2 * float64(z.rule.Epsilon))
	most, noise := float64(lr)*float64(z.most), optim.MostNoise()
	if size := float32(most * e.Projected); !finite(size * noise) {
		return e, fmt.Errorf("the learning rate %g times the projected gradient %g times noise of up to %.3g: %w", most, e.Projected, noise, snug.ErrNonFinite)
	}
	along = 0
	err = z.pass(params, func(o *ParamOptions) change {
		rate := float64(lr) * float64(o.LR)
		return change{z.rule.Epsilon, float32(rate * e.Projected), float32(rate * float64(o.WeightDecay)), true}
	})
	if err == nil {
		z.t++
	}
	return e, err
}

// change is what a pass does to a parameter: p ← (p + along·z)·(1-decay) - size·z.
type change struct {
	along, size, decay float32
	random             bool
}

// check checks the arguments of Step.
func (z *ZerothOrder) check(lr float32, params iter.Seq2[string, snug.View], loss func() (float64, error)) error {
	if err := z.usable(); err != nil {
		return err
	}
	switch {
	case params == nil || loss == nil:
		return fmt.Errorf("the parameters or the loss function is nil: %w", snug.ErrConfig)
	case !validRate(lr):
		return fmt.Errorf("learning rate %g, want a finite number from 0 on: %w", lr, snug.ErrConfig)
	case z.half:
		return fmt.Errorf("step %d stopped half-way through the parameters: restore a state: %w", z.t+1, snug.ErrConfig)
	case z.t == math.MaxInt32:
		return fmt.Errorf("%d steps are the maximum: %w", z.t, snug.ErrConfig)
	}
	clear(z.seen)
	z.most = 1
	for name, p := range params {
		switch {
		case !p.DType().IsFloat():
			return fmt.Errorf("parameter %q holds %s, want f32, f16 or bf16: %w", name, p.DType(), snug.ErrDType)
		case z.seen[name]:
			return fmt.Errorf("parameter %q comes twice: %w", name, snug.ErrConfig)
		}
		z.seen[name] = true
		o, err := z.options(name)
		if err != nil {
			return err
		}
		z.most = max(z.most, o.LR)
	}
	return nil
}

// options returns the options of a parameter.
func (z *ZerothOrder) options(name string) (ParamOptions, error) {
	o := options{Options: Options{Params: z.o.Params}}
	return o.param(name, float64(z.rule.WeightDecay))
}

func (z *ZerothOrder) usable() error {
	switch {
	case !z.made:
		return fmt.Errorf("the optimizer was not made by NewZerothOrder: %w", snug.ErrConfig)
	case z.busy:
		return fmt.Errorf("the loss function called its optimizer: %w", snug.ErrConfig)
	}
	return nil
}

// pass makes the change that of returns for each parameter, with the noise of the step.
func (z *ZerothOrder) pass(params iter.Seq2[string, snug.View], of func(o *ParamOptions) change) error {
	z.half = true // until all parameters are changed
	for name, p := range params {
		o, err := z.options(name)
		if err != nil {
			return err
		}
		c, tensor := of(&o), rounding.Tensor(name)
		s := optim.Shift{
			P: p, Stream: philox.Stream{Seed: rounding.Seed(z.o.Seed, 2*z.t), Tensor: tensor}, Along: c.along, Keep: 1 - c.decay, Size: c.size,
			Random: c.random, Draws: rounding.Draws{Stream: philox.Stream{Seed: rounding.Seed(z.o.Seed, 2*z.t+1), Tensor: tensor}},
		}
		if z.noise != nil {
			s.Noise = z.noise(name, int(z.t))
		}
		if err := z.run(&s); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	z.half = false
	return nil
}

// stagePiece is how many elements of a parameter on another device are changed at a time.
const stagePiece = 1 << 16

// run makes a pass over one parameter, wherever it lies.
func (z *ZerothOrder) run(s *optim.Shift) error {
	if s.P.Device().IsCPU() {
		s.Run()
		return nil
	}
	whole := s.P
	near, free, err := snug.MakeView(snug.CPU(), whole.DType(), min(stagePiece, whole.Len()))
	if err != nil {
		return err
	}
	defer func() { _ = free() }() // memory of the CPU: free returns no error
	for lo := 0; lo < whole.Len(); lo += near.Len() {
		far, err := whole.Slice(lo, min(lo+near.Len(), whole.Len()))
		if err != nil {
			return err
		}
		if s.P, err = near.Slice(0, far.Len()); err != nil {
			return err
		}
		if err := snug.Copy(s.P, far); err != nil {
			return err
		}
		s.First, s.Draws.First = uint64(lo), uint64(lo)
		s.Run()
		if err := snug.Copy(far, s.P); err != nil {
			return err
		}
	}
	return nil
}

// AppendBinary appends the state to b: the seed and the number of steps. The parameters are saved with the model. A run
// that restores both goes on bit for bit. AppendBinary implements [encoding.BinaryAppender].
func (z *ZerothOrder) AppendBinary(b []byte) ([]byte, error) {
	if err := z.usable(); err != nil {
		return b, fmt.Errorf("quant8: MeZO: save: %w", err)
	}
	e := state.NewHeader(state.ZerothMagic)
	e.Put(state.Zeroth{Seed: z.o.Seed, Steps: z.t})
	saved, err := e.Bytes()
	if err != nil {
		return b, fmt.Errorf("quant8: MeZO: save: %w", err)
	}
	return append(b, saved...), nil
}

// UnmarshalBinary restores what AppendBinary saved. The error wraps [snug.ErrCorrupt] for bytes that are damaged, of
// another kind or of another version, and [snug.ErrConfig] for another seed. After an error z is unchanged.
func (z *ZerothOrder) UnmarshalBinary(data []byte) error {
	return fault.Of(z.unmarshal(data), "quant8: MeZO: restore")
}

func (z *ZerothOrder) unmarshal(data []byte) error {
	if err := z.usable(); err != nil {
		return err
	}
	if err := state.Verify(data); err != nil {
		return err
	}
	d := state.NewDecoder(bytes.NewReader(data), state.ZerothMagic)
	var s state.Zeroth
	if d.Get(&s); s.Steps > math.MaxInt32 {
		d.Corrupt("step %d", s.Steps)
	}
	if _, err := d.Finish(); err != nil {
		return err
	}
	if s.Seed != z.o.Seed {
		return fmt.Errorf("saved with the seed %d, this optimizer has %d: %w", s.Seed, z.o.Seed, snug.ErrConfig)
	}
	z.t, z.half = s.Steps, false
	return nil
}
