package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/quant8"
)

// rules are the rules of the optimizers, by name.
var rules = map[string]quant8.Rule{
	"adamw": quant8.AdamW{}, "adam": quant8.Adam{}, "ademamix": quant8.AdEMAMix{}, "lion": quant8.Lion{}, "sgd": quant8.SGD{},
	"rmsprop": quant8.RMSprop{}, "adagrad": quant8.Adagrad{}, "lamb": quant8.LAMB{}, "lars": quant8.LARS{},
	"adafactor": quant8.Adafactor{}, "muon": quant8.Muon{},
	"apollo": quant8.Apollo{}, "apollo-mini": quant8.Apollo{Tensor: true}, "galore": quant8.GaLore{}, "soap": quant8.SOAP{},
	"schedule-free": quant8.ScheduleFree{}, "mezo": quant8.MeZO{},
	"prodigy":   quant8.Prodigy{SliceP: ProdigySlice},
	"adam-mini": quant8.AdamMini{},
}

// lowRank says whether an optimizer projects the gradients of matrices onto few directions.
func lowRank(optimizer string) bool {
	return optimizer == "apollo" || optimizer == "apollo-mini" || optimizer == "galore"
}

// wholeMatrices says whether an optimizer has a rule of its own for the matrices of the chain, whose steps take whole
// matrices, and Adam for other parameters.
func wholeMatrices(optimizer string) bool { return lowRank(optimizer) || optimizer == "soap" }

// ProdigySlice is the SliceP of the optimizer "prodigy": every 11th element counts in its estimate of the distance to
// the solution, see quant8.Prodigy.
const ProdigySlice = 11

// Optimizers returns the names that Task.Optimizer takes, sorted.
func Optimizers() []string { return slices.Sorted(maps.Keys(rules)) }

// inBackward says whether each parameter can be updated as soon as its gradient is complete. Schedule-Free AdamW cannot
// do that: during an evaluation of the averages, the gradients' memory holds the parameters in training.
func (t Task) inBackward() bool { return t.Optimizer != "schedule-free" && !t.forwardOnly() }

// forwardOnly says whether a step consists of forward passes only, without gradients, state and master weights.
func (t Task) forwardOnly() bool { return t.Optimizer == "mezo" }

// folds says whether gradients can be folded into the optimizer's state.
func (t Task) folds() bool { return quant8.Folds(rules[t.Optimizer]) }

func (t Task) checkOptimizer() error {
	if rules[t.Optimizer] == nil {
		return invalid("unknown optimizer %.40q, want one of %s", t.Optimizer, strings.Join(Optimizers(), ", "))
	}
	if t.OptimizerRank < 0 || t.OptimizerRank > 0 && !lowRank(t.Optimizer) {
		return invalid("OptimizerRank is %d, want 0, or more for apollo, apollo-mini and galore", t.OptimizerRank)
	}
	return nil
}

// rule returns the rule of the optimizer.
func (t Task) rule() quant8.Rule {
	switch r := rules[t.Optimizer].(type) {
	case quant8.Apollo:
		r.Rank = t.OptimizerRank
		return r
	case quant8.GaLore:
		r.Rank = t.OptimizerRank
		return r
	default:
		return r
	}
}

// stateSize holds the bytes of an optimizer's state, and of the workspace of a step, and the floating-point operations of
// its matrix products in a step.
type stateSize struct {
	state, workspace int64
	operations       float64
}

// width returns the bits of a state.
func width(bits int) int {
	if bits == 0 {
		return 32
	}
	return bits
}

// stateBytes returns the bytes of the optimizer's state and of its workspace, as package
// quant8 counts them: it makes an optimizer and adds all parameters, which allocates
// nothing for them. Muon takes only the matrices of the chain; all other parameters have
// AdamW. APOLLO, GaLore and SOAP, which have AdamW for them, project only those matrices. Of
// Adam-mini it counts a second moment for each row, also of q and k, and for each element of a vector: the most that
// training has.
func (t Task) stateBytes(bits int) (stateSize, error) {
	if t.forwardOnly() {
		return stateSize{}, nil
	}
	shared := 0 // elements of the next parameter that share a second moment of Adam-mini
	options := quant8.Options{Bits: width(bits), Chunk: t.Chunk, Params: func(string) quant8.ParamOptions {
		return quant8.ParamOptions{Shared: shared}
	}}
	opt, err := quant8.New(t.rule(), options)
	if err != nil {
		return stateSize{}, fmt.Errorf("plan: %w", err)
	}
	rest := opt
	if t.Optimizer == "muon" {
		if rest, err = quant8.New(rules["adamw"], options); err != nil {
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
		asMatrix := len(p.shape) == 2 && (p.linear || rest == opt && !wholeMatrices(t.Optimizer))
		switch {
		case asMatrix && p.len() <= maxElements:
			err = opt.AddMatrix(name, p.shape[0], p.shape[1])
		case asMatrix && (rest != opt || t.Optimizer == "adafactor" || t.Optimizer == "adam-mini" || wholeMatrices(t.Optimizer)):
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
	size := stateSize{opt.StateBytes(), opt.WorkspaceBytes(), opt.Operations()}
	if rest != opt {
		size.state += rest.StateBytes()
	}
	return size, nil
}

// wholeBytes returns the bytes of the largest matrix, of Adam-mini of the largest parameter, in float32, where master
// weights that are not float32 make it for a step of an optimizer that takes whole ones.
func (t Task) wholeBytes(r Run) int64 {
	mini := t.Optimizer == "adam-mini"
	if !wholeMatrices(t.Optimizer) && !mini || r.Compute == snug.F32 || t.Rank > 0 || r.Gradients == InBackward || r.Masters == amp.FullMaster {
		return 0
	}
	most := int64(0)
	for p := range t.trained() {
		if p.linear || mini {
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
		if p.linear {
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
			if !p.linear {
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
