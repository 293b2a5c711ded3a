//go:build !linux

package offload

import (
	"errors"
	"os"
)

// openDirect fails: the cache cannot be passed by here.
func openDirect(string) (*os.File, error) { return nil, errors.ErrUnsupported }
