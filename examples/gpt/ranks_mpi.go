//go:build !nompi

package main

import (
	"errors"
	"io"

	"github.com/snug-ml/snug/dist/mpi"
	"github.com/snug-ml/snug/internal/console"
)

// underLauncher reports whether a launcher of MPI has started this process.
func underLauncher() bool { return mpi.Launched() }

// launched is the rank of this process.
func launched(stop console.Stop, o options, stdout, stderr io.Writer) error {
	world, err := mpi.Open(mpi.Options{})
	if err != nil {
		return err
	}
	if o.ranks > 1 {
		world.Abort(errors.New("-ranks is for ranks within one process, and a launcher has started this one"))
	}
	if err := o.joins(world); err != nil {
		world.Abort(err)
	}
	if world.Rank() > 0 {
		stdout, stderr = io.Discard, io.Discard
	}
	err = trainAndReport(stop, o, stdout, stderr)
	interrupted := errors.As(err, new(console.Interruption))
	if err != nil && !interrupted {
		world.Abort(err)
	}
	if err := world.Close(); err != nil {
		world.Abort(err)
	}
	if world.Rank() > 0 && interrupted {
		return silent{err}
	}
	return err
}
