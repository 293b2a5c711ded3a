package quant8

import (
	"cmp"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// Skipped returns, sorted by name, the gradients of the current step that were not finite
// and that [SkipStep] or [SkipElement] skipped: the number of elements that are not
// finite, the index of the first, and its value before gradScale. Micro is -1. Each call
// of [Optimizer.StepRange] has its own entry. [Optimizer.Advance] empties the list.
func (a *Optimizer) Skipped() []snug.NonFinite {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := slices.Clone(a.skipped)
	slices.SortFunc(found, func(x, y snug.NonFinite) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Index, y.Index))
	})
	return found
}

// Within tells the optimizer that the gradients of the current step have a Euclidean norm of
// at most norm, each of them or all together, as amp.Stats.Norm is after amp's Unscale or
// Measure. While norm times gradScale is below 2^62, no element of a gradient can be NaN,
// infinite or of magnitude 2^63: Step and StepRange then do not look for such elements. They
// read the gradient once and do not wait for its device. Other norms, such as NaN, change
// nothing. [Optimizer.Advance] ends it, and so does a state that is restored.
//
// The caller answers for the norm. Elements that are not finite all the same, such as those
// that come after norm was measured, spoil parameters and states.
func (a *Optimizer) Within(norm float64) { a.known = knownNorm{norm, norm >= 0} }

// knownNorm is an upper bound of the norms of gradients, if there is one.
type knownNorm struct {
	most  float64
	known bool
}

// allows says that all elements times scale are below 2^63, also after rounding.
func (k knownNorm) allows(scale float32) bool {
	return k.known && k.most*math.Abs(float64(scale)) < 1<<62
}

// report adds a gradient that is not finite to the list. first is its first such element,
// and lo the number of its element 0 in the parameter.
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
