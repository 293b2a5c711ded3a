package plan

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// invalid returns an error that wraps [snug.ErrConfig], shapeless one that wraps [snug.ErrShape], and corrupt one that
// wraps [snug.ErrCorrupt]. [fmt.Errorf] makes the text.
func invalid(format string, args ...any) error {
	return fault.New("plan", snug.ErrConfig, format, args...)
}

func shapeless(format string, args ...any) error {
	return fault.New("plan", snug.ErrShape, format, args...)
}

func corrupt(format string, args ...any) error {
	return fault.New("plan", snug.ErrCorrupt, format, args...)
}

var errNoWriter = invalid("a writer is wanted, not nil")
