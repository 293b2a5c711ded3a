package plan

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/quant8"
)

// Optimizers returns the names that Task.Optimizer takes, sorted.
func Optimizers() []string { return quant8.Names() }

// rule returns the rule of the optimizer, nil for an unknown name.
func (t Task) rule() quant8.Rule {
	rule, err := quant8.RuleNamed(t.Optimizer)
	if err == nil && t.OptimizerRank > 0 {
		rule, _ = quant8.WithRank(rule, t.OptimizerRank)
	}
	return rule
}

// traits returns the traits of the optimizer, zero ones for an unknown name.
func (t Task) traits() quant8.Traits { return traitsByName()[t.Optimizer] }

var traitsByName = sync.OnceValue(func() map[string]quant8.Traits {
	all := map[string]quant8.Traits{}
	for _, name := range quant8.Names() {
		rule, _ := quant8.RuleNamed(name)
		all[name] = quant8.TraitsOf(rule)
	}
	return all
})

func (t Task) checkOptimizer() error {
	if _, err := quant8.RuleNamed(t.Optimizer); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if t.OptimizerRank < 0 || t.OptimizerRank > 0 && t.traits().Rank == 0 {
		return invalid("OptimizerRank is %d, want 0, or more for optimizers that project gradients", t.OptimizerRank)
	}
	return nil
}

// takes reports whether the optimizer is for a use.
func (t Task) takes(use quant8.Use) bool { return t.traits().Refuses(use) == "" }

// forwardOnly says whether a step consists of forward passes only, without gradients, state and master weights.
func (t Task) forwardOnly() bool { return t.traits().ForwardOnly }

// stateSize holds the bytes of an optimizer's state, and of the workspace of a step, and the floating-point operations of
// its matrix products in a step.
type stateSize struct {
	state, workspace int64
	operations       float64
	sizes
}

// sizes are the elements of all parameters, of the trained ones and of the largest of these, the number of the trained
// ones, and the pages of a file with a value for each of their elements.
type sizes struct{ all, trained, largest, params, pages int64 }

func (t Task) sizes() (s sizes) {
	s.all, s.trained, s.largest = t.counts()
	for p := range t.trained() {
		s.params += int64(p.times)
		s.pages += int64(p.times) * ((p.len()+int64(t.Chunk)-1)/int64(t.Chunk) + 1)
	}
	return s
}

// stateBytes returns the bytes of the optimizer's state and of its workspace, as package
// quant8 counts them: it makes an optimizer and adds all parameters, which allocates
// nothing for them. A rule whose Unit is Matrix has the matrices of the chain; if it takes
// nothing else, all other parameters have the default rule. Of
// a rule with Blocks it counts a block for each row, also of q and k, and for each element of a vector: the most that
// training has.
func (t Task) stateBytes(bits int) (stateSize, error) {
	traits := t.traits()
	if traits.ForwardOnly {
		return stateSize{sizes: t.sizes()}, nil
	}
	shared := 0 // elements of a block of the next parameter
	options := quant8.Options{Bits: cmp.Or(bits, 32), Chunk: t.Chunk, Params: func(string) quant8.ParamOptions {
		return quant8.ParamOptions{Shared: shared}
	}}
	opt, err := quant8.New(t.rule(), options)
	if err != nil {
		return stateSize{}, fmt.Errorf("plan: %w", err)
	}
	rest := opt
	if traits.MatricesOnly {
		if rest, err = quant8.New(quant8.Default(), options); err != nil {
			return stateSize{}, fmt.Errorf("plan: %w", err)
		}
	}
	number := 0
	add := func(p tensor) (err error) {
		number++
		name := strconv.Itoa(number)
		if shared = p.shape[len(p.shape)-1]; len(p.shape) == 1 {
			shared = 1
		}
		asMatrix := len(p.shape) == 2 && (p.linear || traits.Unit != quant8.Matrix)
		switch {
		case asMatrix && p.len() <= maxElements:
			err = opt.AddMatrix(name, p.shape[0], p.shape[1])
		case asMatrix && traits.Shaped:
			return shapeless("a matrix of %d×%d elements is more than %s counts on a system of %d bits",
				p.shape[0], p.shape[1], t.Optimizer, strconv.IntSize)
		default:
			err = addParts(rest, name, p.len())
		}
		if err != nil {
			return fmt.Errorf("plan: %w", err)
		}
		return nil
	}
	for p := range t.trained() {
		for range p.times {
			if err := add(p); err != nil {
				return stateSize{}, err
			}
		}
	}
	size := stateSize{opt.StateBytes(), opt.WorkspaceBytes(), opt.Operations(), t.sizes()}
	if rest != opt {
		size.state += rest.StateBytes()
	}
	return size, nil
}

// wholeBytes returns the bytes of the largest Unit of the optimizer, in float32, where master
// weights that are not float32 make it for a step.
func (t Task) wholeBytes(r Run) int64 {
	unit := t.traits().Unit
	if unit == quant8.Element || r.Compute == snug.F32 || t.Rank > 0 || r.Gradients == InBackward || r.Masters == amp.FullMaster {
		return 0
	}
	most := int64(0)
	for p := range t.trained() {
		if p.linear || unit == quant8.Parameter {
			most = max(most, p.len())
		}
	}
	return 4 * most
}

// maxElements is the maximum number of elements of one parameter of an optimizer. A plan
// made on a 32-bit system may be for another machine.
const maxElements = math.MaxInt / 32

// addParts adds a parameter of n elements, whose state is the state of its parts. All
// parts except the last are whole blocks, and no part is so small that its state has
// another width.
func addParts(o *quant8.Optimizer, name string, n int64) error {
	const part = min(maxElements+1, 1<<40) / 2
	for ; n > maxElements; n -= part {
		if err := o.Add(fmt.Sprint(name, "/", n), part); err != nil {
			return err
		}
	}
	return o.Add(name, int(n))
}

// magnitudes returns how many magnitudes the adapter of a matrix has.
func (t Task) magnitudes(shape []int) int64 {
	if !t.DoRA {
		return 0
	}
	return int64(shape[0])
}

// adapterLen returns the elements of the adapter of a matrix, without what all share.
func (t Task) adapterLen(shape []int) int64 {
	if t.VeRA {
		return int64(t.Rank) + int64(shape[0])
	}
	return int64(t.Rank)*(int64(shape[0])+int64(shape[1])) + t.magnitudes(shape)
}

// trainedLen returns the elements of the adapter of a matrix that train.
func (t Task) trainedLen(shape []int) int64 {
	if t.FrozenA {
		return int64(t.Rank) * int64(shape[0])
	}
	return t.adapterLen(shape)
}

// frozenFirst reports whether the first matrix of each adapter is frozen.
func (t Task) frozenFirst() bool { return t.FrozenA || t.VeRA }

// untrainedBytes returns the bytes of the adapter of a matrix that do not train: a frozen A, and first values.
func (t Task) untrainedBytes(shape []int) (bytes int64) {
	if bytes = 4 * (t.adapterLen(shape) - t.trainedLen(shape)); t.keepsFirst() {
		bytes += 4 * t.adapterLen(shape)
	}
	return bytes
}

// shared returns the elements of the matrices A and B that all adapters share.
func (t Task) shared() (a, b int64) {
	if !t.VeRA {
		return 0, 0
	}
	for p := range t.Model.tensors() {
		if p.adapts {
			a, b = max(a, int64(p.shape[1])), max(b, int64(p.shape[0]))
		}
	}
	return a * int64(t.Rank), b * int64(t.Rank)
}

// trained yields the trained parameters: the parameters of the model, or the pairs of
// matrices of its adapters, with their magnitudes.
func (t Task) trained() func(yield func(tensor) bool) {
	if t.Rank == 0 {
		return t.Model.tensors()
	}
	return func(yield func(tensor) bool) {
		for p := range t.Model.tensors() {
			if !p.adapts {
				continue
			}
			if t.VeRA {
				if !yield(tensor{shape: []int{t.Rank}, times: p.times}) || !yield(tensor{shape: []int{p.shape[0]}, times: p.times}) {
					return
				}
				continue
			}
			if !t.FrozenA && !yield(tensor{shape: []int{t.Rank, p.shape[1]}, linear: true, times: p.times}) || !yield(tensor{shape: []int{p.shape[0], t.Rank}, linear: true, times: p.times}) ||
				t.DoRA && !yield(tensor{shape: []int{p.shape[0]}, times: p.times}) {
				return
			}
		}
		for _, shape := range t.Beside {
			if !yield(tensor{shape: shape, times: 1}) {
				return
			}
		}
	}
}
