package plan

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// fault is an error whose text is complete, so that the text of the sentinel that it
// wraps is not printed after it.
type fault struct{ err, kind error }

func (f *fault) Error() string { return "plan: " + f.err.Error() }

// Unwrap returns the error that has the text, which may wrap other errors, and the
// sentinel.
func (f *fault) Unwrap() []error { return []error{f.err, f.kind} }

// invalid returns an error that wraps [snug.ErrConfig], shapeless one that wraps
// [snug.ErrShape], and corrupt one that wraps [snug.ErrCorrupt]. [fmt.Errorf] makes the
// text.
func invalid(format string, args ...any) error { return newFault(snug.ErrConfig, format, args) }

func shapeless(format string, args ...any) error { return newFault(snug.ErrShape, format, args) }

func corrupt(format string, args ...any) error { return newFault(snug.ErrCorrupt, format, args) }

func newFault(kind error, format string, args []any) error {
	return &fault{fmt.Errorf(format, args...), kind}
}
