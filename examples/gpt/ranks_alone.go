//go:build nompi

package main

import (
	"io"

	"github.com/snug-ml/snug/internal/console"
)

// A program without MPI needs no C library when it starts, whose pages count in its resident memory.

func underLauncher() bool { return false }

func launched(stop console.Stop, o options, stdout, stderr io.Writer) error {
	return trainAndReport(stop, o, stdout, stderr)
}
