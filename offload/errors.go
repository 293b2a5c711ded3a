package offload

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
)

// PageError says which page of a store is damaged and where it lies. It wraps
// [snug.ErrCorrupt].
type PageError struct {
	File   string     // the page file
	Name   string     // name of the blob or tensor
	DType  snug.DType // 0 for a blob
	Page   int        // number of the page in the tensor; 0 for a blob
	Offset int64      // position of the page in the file, in bytes
	Reason string
}

// Error names the file, the page and the offset.
func (e *PageError) Error() string {
	return fmt.Sprintf("offload: %s: %s at offset %d: %s: %v", e.File, pageName(e.Name, e.DType, e.Page), e.Offset, e.Reason, snug.ErrCorrupt)
}

// Unwrap returns [snug.ErrCorrupt].
func (e *PageError) Unwrap() error { return snug.ErrCorrupt }

// in returns err with the failed operation before its message, and the package's name
// once.
func in(err error, format string, args ...any) error {
	return &wrapped{fmt.Sprintf(format, args...), err}
}

type wrapped struct {
	what string
	err  error
}

const prefix = "offload: "

func (e *wrapped) Error() string {
	return prefix + e.what + ": " + strings.TrimPrefix(e.err.Error(), prefix)
}

func (e *wrapped) Unwrap() error { return e.err }
