// Package fault makes errors whose text is complete: the text of the sentinel that they wrap is not printed after it. And it
// names the function that an error is of.
package fault

import (
	"fmt"
	"strings"
)

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

// Named puts the name of a function before its error, unless that is nil. The function defers it, with its result:
//
//	defer fault.Named(&err, "transformer: Save")
func Named(err *error, name string) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", name, *err)
	}
}

// Of puts names, with colons, before an error, unless that is nil.
func Of(err error, names ...string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(names, ": "), err)
}

// Rule is something that does not go together, and whether it is there.
type Rule = struct {
	Broken bool
	What   string
}

// Broken returns the text of the first rule that is broken, empty if none is.
func Broken(rules ...Rule) string {
	for _, r := range rules {
		if r.Broken {
			return r.What
		}
	}
	return ""
}

// Check returns an error with the text of the first rule that is broken. It wraps kind.
func Check(kind error, rules ...Rule) error {
	if what := Broken(rules...); what != "" {
		return fmt.Errorf("%s: %w", what, kind)
	}
	return nil
}
