// Package fault makes errors whose text is complete: the text of the sentinel that they wrap is not printed after it.
package fault

import "fmt"

type fault struct {
	text      string
	err, kind error
}

func (f *fault) Error() string { return f.text }

func (f *fault) Unwrap() []error { return []error{f.err, f.kind} }

// New returns an error that wraps kind, and what format wraps by %w. [fmt.Errorf] makes the text, which begins with
// the name of the package.
func New(pkg string, kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &fault{pkg + ": " + err.Error(), err, kind}
}
