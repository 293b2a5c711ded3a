package main

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"
)

// mpiexec returns the program that starts ranks. Without one, or on a processor that package mpi is not for, the test is skipped.
func mpiexec(t *testing.T) string {
	t.Helper()
	launcher, err := exec.LookPath("mpiexec")
	if err != nil {
		t.Skip("no mpiexec in PATH; .ci/ranks has one")
	}
	if !slices.Contains([]string{"amd64", "arm64"}, runtime.GOARCH) {
		t.Skip("package mpi is not for " + runtime.GOARCH)
	}
	return launcher
}

// openMPI lets Open MPI start more ranks than there are cores, and ranks of root.
var openMPI = []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"}
