// Package pass says in a context whether a step runs for the first time.
package pass

import "context"

// Key is the key of a bool in a context: whether the step that runs is the first of its kind.
type Key struct{}

// First reports whether no context on the way says that the step runs again.
func First(ctx context.Context) bool {
	if ctx == nil {
		return true
	}
	first, known := ctx.Value(Key{}).(bool)
	return first || !known
}

// Again returns a context of a step that runs again.
func Again(ctx context.Context) context.Context { return context.WithValue(ctx, Key{}, false) }
