package mpi

// abi is the binary interface of a library: the values of its constants and the size of its handles. Sources: mpi_abi.h
// of the MPI 5.0 standard, and mpi.h of MPICH 4.0 to 5.0 and of Open MPI 4.1 to 5.0.
type abi struct {
	name     string
	handle   uintptr // bytes of a handle: a pointer or an int
	world    uintptr // MPI_COMM_WORLD
	bytes    uintptr // MPI_BYTE
	returns  uintptr // MPI_ERRORS_RETURN
	ignore   uintptr // MPI_STATUSES_IGNORE
	funneled uintptr // MPI_THREAD_FUNNELED
	atExit   bool    // a handler of C's exit takes leave of the launcher
}

// standard is the ABI of MPI 5.0. Its handles are pointers.
var standard = abi{name: "the standard ABI", handle: 8, world: 0x101, bytes: 0x247, returns: 0x143, ignore: 0, funneled: 1024, atExit: true}

// mpich is the ABI of MPICH, which Intel MPI and others share. Its handles are ints.
var mpich = abi{name: "the ABI of MPICH", handle: 4, world: 0x44000000, bytes: 0x4c00010d, returns: 0x54000001, ignore: 1, funneled: 1, atExit: true}

// openMPI returns the ABI of Open MPI, whose handles are addresses of its variables, which find looks up.
func openMPI(find func(name string) (uintptr, error)) (a abi, err error) {
	a = abi{name: "the ABI of Open MPI", handle: 8, ignore: 0, funneled: 1}
	for _, v := range []struct {
		name string
		to   *uintptr
	}{{"ompi_mpi_comm_world", &a.world}, {"ompi_mpi_byte", &a.bytes}, {"ompi_mpi_errors_return", &a.returns}} {
		if *v.to, err = find(v.name); err != nil {
			return a, err
		}
	}
	return a, nil
}
