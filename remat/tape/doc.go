// Package tape runs graphs that nobody planned under a budget of memory: it evicts values and
// computes them again when they are needed.
//
//	t, err := tape.New(tape.Options[[]float32]{
//		Bytes:  func(v []float32) int64 { return int64(4 * len(v)) },
//		Budget: 1 << 30,
//	})
//	x, err := t.Input(ctx, "x", input)
//	y, err := t.Do(ctx, tape.Op{Name: "tanh", Bytes: size, Cost: 1}, tanh, x) // a Value
//	v, done, err := t.Get(ctx, y)                                             // computed again if evicted
//	...
//	done()
//
// Forward and backward operations are alike: each is a function of the values that it is
// given, which gives the same result when it is called again. A [Heuristic] chooses the
// values to evict; the default is from Dynamic Tensor Rematerialization (Kirisame et al. 2021,
// "Dynamic Tensor Rematerialization", ICLR). A [Policy] decides by the name and the class of
// an operation whether its result is kept, computed again or offloaded.
//
// For a chain of stages, package [github.com/snug-ml/snug/remat] plans in advance, and its plans are
// better.
package tape
