// Package mpi joins processes that a launcher of MPI has started, on one machine or many, as ranks of data-parallel
// training: a [World] is a Reducer of package accum.
//
//	world, err := mpi.Open(mpi.Options{})       // in a program that was started by mpiexec -n 4
//	...
//	window, err := accum.New(params, accum.Options{Reducer: world})
//	if err := train(world, window); err != nil {
//		world.Abort(err)                    // ends all ranks
//	}
//	err = world.Close()
//
// MPI moves bytes. Sums are computed here, in float32 and in the order of the ranks, so that they have the bits of
// [accum.Local] with as many ranks, whatever the library, the network and the number of machines.
//
// # Libraries
//
// No C compiler is needed, and no header. Open opens a shared library at run time, when the process has been started
// by a launcher:
//
//   - libmpi_abi.so.1, the standard ABI of MPI 5.0, which MPICH has from version 4.3 on; for example, the package mpich
//     of PyPI has it, with mpiexec
//   - libmpi.so.40 of Open MPI 4 and 5
//   - libmpi.so.12 of MPICH and of Intel MPI, which Debian calls libmpich.so.12
//
// It looks in the folder lib beside the bin of the launcher that has started the process, beside the mpiexec of PATH,
// and where the system looks. The environment variable SNUG_MPI names a library instead. The library must be of the
// same MPI as the launcher.
//
// # Failures
//
// A process that is killed ends the job: launchers see to that. Ranks that wait for others also look whether the others
// live. Each rank sends a byte to the next one every other second, from a thread of its own, while it computes too. If
// a rank is silent for Options.Silence, because its process is stopped or its machine is gone, the next rank names it
// and ends the job. A rank that lives and makes no call ends the job after Options.Timeout.
//
// All ranks compare what they call before any data moves: a program that differs between two ranks gets the same error
// on all.
//
// # Memory and threads
//
// A World takes 8 MiB and what the library takes. All functions of MPI are called from one goroutine that is locked to
// its thread, as MPI_THREAD_FUNNELED demands. While it waits for ranks that compute, it sleeps, up to 100 µs at a time,
// so that they have the CPU.
package mpi
