package quant8

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
)

// StepOptions says how an optimizer of any rule makes its steps. With the zero value it
// makes those of torch's and bitsandbytes' optimizers, but that gradients that are not
// finite are errors.
type StepOptions struct {
	// NonFinite is what a step does with a NaN, an infinity or a magnitude of 2^63
	// or more in its gradient; default Fail.
	NonFinite NonFinitePolicy
	// MaxUpdate, unless 0, is the largest Euclidean norm of a parameter's update, as
	// a share of the norm of the parameter: a longer one is shortened to that. The
	// update is what the learning rate multiplies, with coupled and without decoupled
	// weight decay, which stays lr·wd in full. A parameter of zeros has any update. Such
	// steps have two passes as those of [NewLAMB], and want whole parameters as these.
	//
	// It is max_unorm of bitsandbytes, which has it with 32-bit state, in its default
	// backend: there the norm of Adam has the bias corrections, and no norm has coupled
	// decay. Its CPU backend takes the norm of Adam's update without the bias
	// corrections, so that with the default betas a step of full length is 3.2 times
	// shorter than here at step 1, 6.5 times at step 10 and 5.6 times at step 30. Its Lion
	// and AdEMAMix have another limit, or none.
	MaxUpdate float32
	// SumNorms, unless nil, replaces two sums by those over all processes, as an
	// all-reduce does, so that [NewLAMB], [NewLARS] and MaxUpdate take shards of a
	// parameter. Every process calls it once in each step of each parameter, also with
	// an empty shard. A step that fails before or is skipped, for a gradient that is not
	// finite, does not: let all processes agree on that first. The sums are rounded as
	// they are added: with other shards the last bits of a step can differ.
	SumNorms func(name string, sums *[2]float64) error
	// Stochastic rounds parameters of bfloat16 and float16 at random to one of the
	// two neighbours, by their distance, so that updates too small for the type
	// count on average, and no copy in float32 is needed (Gupta et al. 2015, "Deep
	// Learning with Limited Numerical Precision"). Parameters of float32 are not
	// rounded.
	Stochastic bool
	// Seed names the random numbers of Stochastic, and those that round states of 16
	// bits, with the step count, the name of the parameter and the element, so that
	// they do not depend on the device, on shards, or on a restart.
	Seed uint64
	// Params, unless nil, returns what is particular to a parameter. It is asked
	// when one is added.
	Params func(name string) ParamOptions
}

// NonFinitePolicy is what becomes of a step whose gradient is not finite.
type NonFinitePolicy uint8

const (
	// Fail makes the step an error that wraps snug.ErrNonFinite.
	Fail NonFinitePolicy = iota
	// SkipStep leaves the parameter, or with StepRange its range, as it is.
	SkipStep
	// SkipElement leaves the elements alone and sets their states to 0, as
	// bitsandbytes' CUDA kernels do. Norms of updates leave them out. In 4 bits states
	// without signs become the least value of their block, and in 8 bits second moments
	// count as 1.6e-7 of its absmax. In the sums over rows and columns
	// of [NewAdafactor], and in the matrix that [NewMuon] makes orthogonal, they count as 0.
	SkipElement
)

// ParamOptions is what is particular to a parameter.
type ParamOptions struct {
	// LR multiplies the learning rate; 0 stands for 1.
	LR float32
	// WeightDecay is used in the place of the optimizer's, unless it is 0.
	WeightDecay float32
	// NoDecay says that the parameter does not decay, as biases and the scales of
	// norms should not.
	NoDecay bool
}

func (o *StepOptions) check(rule optim.Rule) error {
	switch {
	case o.NonFinite > SkipElement:
		return fmt.Errorf("policy %d for gradients that are not finite is not known: %w", o.NonFinite, snug.ErrConfig)
	case !(o.MaxUpdate >= 0 && o.MaxUpdate < math.MaxFloat32):
		return fmt.Errorf("MaxUpdate is %g, want a finite number from 0 on: %w", o.MaxUpdate, snug.ErrConfig)
	case o.MaxUpdate > 0 && rule.Whole():
		return fmt.Errorf("MaxUpdate is %g, want 0 for %v, which sizes its steps itself: %w", o.MaxUpdate, rule, snug.ErrConfig)
	}
	return nil
}

// param returns what is particular to a parameter, with the learning rate's factor
// and the weight decay that hold.
func (o *StepOptions) param(name string, decay float64) (ParamOptions, error) {
	var p ParamOptions
	if o.Params != nil {
		p = o.Params(name)
	}
	if p.NoDecay && p.WeightDecay != 0 {
		return p, fmt.Errorf("parameter %q: WeightDecay is %g with NoDecay: %w", name, p.WeightDecay, snug.ErrConfig)
	}
	if !p.NoDecay {
		p.WeightDecay = cmp.Or(p.WeightDecay, float32(decay))
	}
	p.LR = cmp.Or(p.LR, 1)
	if !(p.LR > 0 && p.LR < math.MaxFloat32 && p.WeightDecay >= 0 && p.WeightDecay < math.MaxFloat32) {
		return p, fmt.Errorf("parameter %q: LR is %g and WeightDecay %g, want finite numbers from 0 on: %w", name, p.LR, p.WeightDecay, snug.ErrConfig)
	}
	return p, nil
}

// Skipped returns, by name, the gradients of the current step that were not finite
// and were passed over by [SkipStep] or [SkipElement]: how many elements, which was the
// first, and its value before gradScale. Micro is -1. What was stepped by ranges is
// listed by ranges. [Optimizer.Advance] empties the list.
func (a *Optimizer) Skipped() []snug.NonFinite {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := slices.Clone(a.skipped)
	slices.SortFunc(found, func(x, y snug.NonFinite) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Index, y.Index))
	})
	return found
}

// report adds what is not finite in a gradient, of which element first is the first,
// to the list. lo is the number of its element 0.
func (a *Optimizer) report(name string, lo, first int, g snug.View, scale float32) error {
	n := snug.NonFinite{Name: name, Index: lo + first, Micro: -1}
	tile := tiles.Get(grain)
	defer tiles.Put(tile)
	for begin := first; begin < g.Len(); begin += grain {
		part, err := g.Slice(begin, min(begin+grain, g.Len()))
		if err != nil {
			return err
		}
		x := (*tile)[:part.Len()]
		if err := hostFloats(x, part); err != nil {
			return err
		}
		if begin == first {
			n.Value = x[0]
		}
		for _, v := range x {
			if math.Float32bits(v*scale)&^(1<<31) >= tooLarge {
				n.Count++
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.skipped = append(a.skipped, n)
	return nil
}

// hostFloats converts all of a view, which may lie on a device, to float32.
func hostFloats(dst []float32, v snug.View) error {
	if !v.Device().IsCPU() {
		near, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
		if err != nil {
			return err
		}
		if err := snug.Copy(near, v); err != nil {
			return err
		}
		v = near
	}
	half.Load(dst, v, 0)
	return nil
}
