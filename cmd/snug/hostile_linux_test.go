package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// limitData ends the process before a fault takes the memory of the machine.
func limitData(t *testing.T) {
	t.Helper()
	const rlimitData = 2
	require.NoError(t, syscall.Setrlimit(rlimitData, &syscall.Rlimit{Cur: 4 << 30, Max: 4 << 30}))
}
