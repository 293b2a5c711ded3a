package tape

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// BudgetError says that a computation does not fit into the budget of a [Tape],
// whatever is evicted. It wraps [snug.ErrNoMemory].
type BudgetError struct {
	Operation string // or the input
	Budget    int64  // in bytes
	// Minimum is the budget in bytes that this computation needs: for its
	// operands, its result, its Extra bytes, and all other values that cannot be
	// evicted now. Other computations may need more.
	Minimum int64
}

// Error returns both budgets.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("tape: operation %q does not fit in %d bytes, the smallest budget that works for it is %d bytes: %v", e.Operation, e.Budget, e.Minimum, snug.ErrNoMemory)
}

// Unwrap returns [snug.ErrNoMemory].
func (e *BudgetError) Unwrap() error { return snug.ErrNoMemory }

// ThrashError says that a [Tape] spends its time on recomputations: the next one
// would exceed the limit that [Options] set. It wraps [snug.ErrNoMemory],
// because a larger budget helps.
type ThrashError struct {
	Operation  string  // to be recomputed next
	Budget     int64   // in bytes
	Work       float64 // cost of first computations, in the unit of Op.Cost
	ExtraWork  float64 // cost of recomputations, the next one included
	Recomputed int     // number of recomputations, the next one included
	Limit      float64 // MaxRecompute
}

// Error returns the figures.
func (e *ThrashError) Error() string {
	return fmt.Sprintf("tape: operation %q: %d recomputations of cost %.4g are more than %.4g times the %.4g of first computations, under a budget of %d bytes: %v",
		e.Operation, e.Recomputed, e.ExtraWork, e.Limit, e.Work, e.Budget, snug.ErrNoMemory)
}

// Unwrap returns [snug.ErrNoMemory].
func (e *ThrashError) Unwrap() error { return snug.ErrNoMemory }

var errNilContext = fmt.Errorf("tape: the context is nil: %w", snug.ErrConfig)
