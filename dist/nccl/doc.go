// Package nccl joins processes, each with a GPU of NVIDIA, as ranks of data-parallel training: a [World] is a Reducer of
// package accum. It needs the build tag cuda, or hip for AMD.
//
//	dev, err := snug.Open("cuda:0")
//	...
//	world, err := nccl.Open(nccl.Options{Device: dev, Exchange: hosts})      // hosts is a World of dist/mpi
//	...
//	window, err := accum.New(params, accum.Options{Buffer: buffer, Reducer: world})      // buffer lies on dev
//	if err := train(world, window); err != nil {
//		world.Abort(err)                    // ends this rank
//	}
//	err = world.Close()
//
// NCCL moves bytes between the devices. Sums are computed here, by kernels, in float32 and in the order of the ranks, so
// that they have the bits of [accum.Local] with as many ranks. A NaN stays a NaN, whose payload is the device's.
//
// Each process on a machine opens another GPU. Its number among them comes from the launcher: MPI_LOCALRANKID of MPICH and
// Intel MPI, or OMPI_COMM_WORLD_LOCAL_RANK of Open MPI.
//
// This package has not run on two GPUs: its tests use a stand-in for the library and for the device. On an H200 one rank
// has run, with NCCL 2.28.3.
//
// # The library
//
// Open opens libnccl.so.2 at run time: no C compiler is needed, and no header. Options.Library or the environment
// variable SNUG_NCCL names another file. Version 2.7 or later is needed, the first with sends and receives. For devices
// of the kind "hip" the library is librccl.so.1, whose functions have the same names; it has not run.
//
// # Joining
//
// Rank 0 makes the unique id of a communicator, and the others need it. It goes through an [accum.Broadcaster] that the
// ranks have already, or through a file that all of them see; see [Options].
//
// # Vectors and queues
//
// A vector on Options.Device is sent from where it lies. Any other vector, such as a slice, passes through memory of the
// device, 32 MiB at a time: this is for what is small or rare.
//
// Communication has a stream of its own. It waits for the work that was queued on the device before the call; what is
// queued after the call runs at the same time. A call returns when its result is in memory, so that all work after it has
// the result.
//
// A Window of package accum notes when each bucket is complete, and makes its calls from a goroutine of its own. A bucket
// then waits for its gradients alone, and is reduced while the backward pass goes on. A World is an [accum.Overlapper] for
// this.
//
// # Failures
//
// All ranks compare what they call before any data moves: a program that differs between two ranks gets the same error on
// all. If other ranks do not make the call, or do not send their data, within Options.Timeout, the communicator is aborted
// and the call returns an error that says which rank waited for what. After an error every call is that error. A call that
// returns an error has ended what it began, so that its vectors can be freed, unless the library takes more than 5 seconds
// for that.
//
// # Memory
//
// On the device, a World of several ranks takes 32 MiB from the first sum on, 32 MiB more from the first sum of bfloat16
// on (with two ranks; less with more), and 32 MiB more from the first Sum or vector that lies elsewhere. The queue of
// communication takes 8 MiB of pinned host memory. NCCL takes memory of its own. A call allocates a few small objects
// for each kernel that it queues.
package nccl
