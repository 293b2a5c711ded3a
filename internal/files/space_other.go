//go:build !(darwin || freebsd || linux || windows)

package files

import (
	"errors"
	"syscall"
)

var errsFull = []error{syscall.ENOSPC}

func spaceOf(string) (Space, error) { return Space{}, errors.ErrUnsupported }
