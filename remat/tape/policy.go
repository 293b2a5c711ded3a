package tape

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// Op is what a [Policy] and a [Tape] know of an operation. Only the Name is
// needed.
type Op struct {
	Name  string // of the operation, such as "linear"; policies and errors use it
	Class Class  // what it does
	Value string // name of its result, as JAX's checkpoint_name gives one; may be empty

	// For a Tape.
	Bytes int64   // size of the result in bytes; 0 if only the computation tells it
	Extra int64   // transient bytes of the computation, beyond operands and result
	Cost  float64 // of the computation, in any one unit for the whole Tape; 0 stands for measured seconds
}

// Class says what an operation computes, for policies.
type Class uint8

// The classes of operations.
const (
	Other       Class = iota // anything but a matrix product
	MatMul                   // matrix product without batch dimensions, as of activations and weights
	BatchMatMul              // matrix product with batch dimensions, as of queries and keys
)

// String returns the name of the class.
func (c Class) String() string {
	names := [...]string{"other", "matmul", "batch matmul"}
	if int(c) >= len(names) {
		return "?"
	}
	return names[c]
}

// Decision is the treatment of a value between its first use and the next.
type Decision uint8

// The decisions. MustSave and MustRecompute bind; the others yield to the budget.
const (
	PreferSave      Decision = iota // keep it; under a budget it is evicted late
	Offload                         // move it out of memory and back
	PreferRecompute                 // under a budget it is evicted early
	MustSave                        // never drop it
	MustRecompute                   // drop it as soon as it has been used
	decisions
)

// String returns the name of the decision, such as "prefer save".
func (d Decision) String() string {
	names := [...]string{"prefer save", "offload", "prefer recompute", "must save", "must recompute"}
	if d >= decisions {
		return "?"
	}
	return names[d]
}

func (d Decision) binds() bool { return d == MustSave || d == MustRecompute }

// Policy decides on the results of operations. It is called once for every
// operation of a [Tape] and always decides the same on the same operation. nil
// is [SaveAll]. A Tape knows no backward pass: a policy that must recompute should
// leave gradients alone, by the names of operations.
//
// The constructors prefer; [Policy.MustSave] and [Policy.MustRecompute] make a
// preference binding and [Policy.Offloaded] turns saving into offloading. These
// are the policies of jax.checkpoint_policies and of torch.utils.checkpoint,
// where strict stands for MustSave().MustRecompute():
//
//	here                                     there
//	SaveAll().MustSave()                     JAX: everything_saveable
//	SaveNone().MustRecompute()               JAX: nothing_saveable; torch: checkpoint without a policy
//	SaveMatMuls(), strict                    JAX: dots_saveable
//	SaveWeightMatMuls(), strict              JAX: dots_with_no_batch_dims_saveable
//	SaveWeightMatMuls().Offloaded(), strict  JAX: offload_dot_with_no_batch_dims
//	SaveNames(a...), strict                  JAX: save_only_these_names
//	SaveAllBut(a...), strict                 JAX: save_anything_except_these_names
//	SaveNamedBut(a...), strict               JAX: save_any_names_but_these
//	SaveAndOffload(a, b), strict             JAX: save_and_offload_only_these_names
//	p.Or(q), strict                          JAX: save_from_both_policies
//	SaveOps(a...).MustSave()                 torch: create_selective_checkpoint_contexts of a list:
//	                                         MUST_SAVE for those, PREFER_RECOMPUTE for others
type Policy func(Op) (Decision, error)

// Decide returns p's decision on op. The error comes from p, or wraps
// [snug.ErrConfig] when two parts of p bind it to different decisions or when
// there is no such decision.
func (p Policy) Decide(op Op) (Decision, error) {
	if p == nil {
		return PreferSave, nil
	}
	d, err := p(op)
	if err != nil {
		return 0, err
	}
	if d >= decisions {
		return 0, fmt.Errorf("tape: policy: decision %d on operation %q: there is no such decision: %w", d, op.Name, snug.ErrConfig)
	}
	return d, nil
}

// saveIf is PreferSave where the condition holds, PreferRecompute elsewhere.
func saveIf(condition func(Op) bool) Policy {
	return func(op Op) (Decision, error) {
		if condition(op) {
			return PreferSave, nil
		}
		return PreferRecompute, nil
	}
}

// SaveAll saves every value.
func SaveAll() Policy { return saveIf(func(Op) bool { return true }) }

// SaveNone saves no value.
func SaveNone() Policy { return saveIf(func(Op) bool { return false }) }

// SaveMatMuls saves the results of matrix products, which cost the most for
// their size.
func SaveMatMuls() Policy {
	return saveIf(func(op Op) bool { return op.Class == MatMul || op.Class == BatchMatMul })
}

// SaveWeightMatMuls saves the results of matrix products without batch
// dimensions. Those with them, such as attention scores, grow with the square of
// the sequence length.
func SaveWeightMatMuls() Policy { return saveIf(func(op Op) bool { return op.Class == MatMul }) }

// SaveOps saves the results of the operations of these names.
func SaveOps(names ...string) Policy {
	names = slices.Clone(names)
	return saveIf(func(op Op) bool { return slices.Contains(names, op.Name) })
}

// SaveNames saves the values of these names and no other. It never saves
// values without a name.
func SaveNames(names ...string) Policy {
	names = slices.Clone(names)
	return saveIf(func(op Op) bool { return op.Value != "" && slices.Contains(names, op.Value) })
}

// SaveAllBut saves every value except the values of these names. It saves values without
// a name.
func SaveAllBut(names ...string) Policy { return SaveNames(names...).Not() }

// SaveNamedBut saves every value that has a name, except the values of these names.
func SaveNamedBut(names ...string) Policy {
	named := saveIf(func(op Op) bool { return op.Value != "" })
	return named.And(SaveAllBut(names...))
}

// SaveAndOffload saves the values of some names and offloads the values of others. A
// name in both is saved.
func SaveAndOffload(save, offload []string) Policy {
	return SaveNames(save...).Or(SaveNames(offload...).Offloaded())
}

// Or saves what either saves: of two decisions it takes the first in the order
// PreferSave, Offload, PreferRecompute. A binding decision overrides one that is
// not; two different ones are an error that wraps [snug.ErrConfig].
func (p Policy) Or(q Policy) Policy {
	return p.combine(q, func(d, e Decision) Decision { return min(d, e) })
}

// And saves what both save: of two decisions it takes the last in the order
// PreferSave, Offload, PreferRecompute. A binding decision overrides one that is
// not; two different ones are an error that wraps [snug.ErrConfig].
func (p Policy) And(q Policy) Policy {
	return p.combine(q, func(d, e Decision) Decision { return max(d, e) })
}

// Not saves what p recomputes and recomputes what p saves, as bindingly. What p
// offloads it prefers to recompute.
func (p Policy) Not() Policy {
	return p.replace(func(d Decision) Decision {
		switch d {
		case PreferRecompute:
			return PreferSave
		case MustSave:
			return MustRecompute
		case MustRecompute:
			return MustSave
		}
		return PreferRecompute
	})
}

// MustSave makes p's PreferSave a MustSave.
func (p Policy) MustSave() Policy { return p.turn(PreferSave, MustSave) }

// MustRecompute makes p's PreferRecompute a MustRecompute.
func (p Policy) MustRecompute() Policy { return p.turn(PreferRecompute, MustRecompute) }

// Offloaded makes p's PreferSave an Offload.
func (p Policy) Offloaded() Policy { return p.turn(PreferSave, Offload) }

func (p Policy) turn(from, to Decision) Policy {
	return p.replace(func(d Decision) Decision {
		if d == from {
			return to
		}
		return d
	})
}

// replace changes p's decisions.
func (p Policy) replace(change func(Decision) Decision) Policy {
	return func(op Op) (Decision, error) {
		d, err := p.Decide(op)
		if err != nil {
			return 0, err
		}
		return change(d), nil
	}
}

// combine calls pick on two decisions that do not bind.
func (p Policy) combine(q Policy, pick func(d, e Decision) Decision) Policy {
	return func(op Op) (Decision, error) {
		d, err := p.Decide(op)
		if err != nil {
			return 0, err
		}
		e, err := q.Decide(op)
		if err != nil {
			return 0, err
		}
		switch {
		case d.binds() && e.binds() && d != e:
			return 0, fmt.Errorf("tape: policy: operation %q, value %q: one part decides %v, another %v: %w", op.Name, op.Value, d, e, snug.ErrConfig)
		case d.binds():
			return d, nil
		case e.binds():
			return e, nil
		}
		return pick(d, e), nil
	}
}
