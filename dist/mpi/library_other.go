//go:build !((linux || darwin) && (amd64 || arm64))

package mpi

import (
	"fmt"
	"runtime"

	"github.com/snug-ml/snug"
)

// library is what this system does not have.
type library struct{ path string }

type requests struct{ n int }

func openLibrary() (*library, error) {
	return nil, fmt.Errorf("MPI is for linux and darwin on amd64 and arm64, not for %s/%s: %w", runtime.GOOS, runtime.GOARCH, snug.ErrNotBuilt)
}

func (*library) start() error                                               { return nil }
func (*library) place() (rank, size int, err error)                         { return 0, 1, nil }
func (*library) communicator() (uintptr, error)                             { return 0, nil }
func (*library) send(*requests, uintptr, []byte, int, int) error            { return nil }
func (*library) receive(*requests, uintptr, []byte, int, int) error         { return nil }
func (*library) gather(_ *requests, _ uintptr, own, all []byte) error       { return nil }
func (*library) broadcast(_ *requests, _ uintptr, b []byte, root int) error { return nil }
func (*library) done(*requests) (bool, error)                               { return true, nil }
func (*library) stop() error                                                { return nil }
func (*library) end()                                                       {}
