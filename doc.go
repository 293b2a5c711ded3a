// Package snug is the vocabulary that the packages of snug share: element
// types, vectors over host and device memory, devices and errors.
//
// snug gives Go programs memory-efficient training primitives as independent
// packages over plain memory. There is no tensor framework, no automatic
// differentiation and no cgo: a program hands over the slices it has.
//
//   - amp: loss scaling, casts, master weights, mixed-precision matmul, weights
//     from safetensors
//   - accum: gradient accumulation over micro-batches and ranks
//   - remat: rematerialization (activation checkpointing): plans under a budget,
//     their executor, and a tape that evicts
//   - quant8: blockwise 8-bit optimizer state
//   - qlora: weights in 4 bits
//   - attention: tiled attention in O(N) memory
//   - offload: paged tensors over devices, host memory and disk, paged training, device
//     maps
//   - fused: layers that keep little for the backward pass
//   - plan: what training takes, predicted and counted, and what fits
//
// # Vectors
//
// Functions take any [Vector]: a slice of float32, [Float16] or [BFloat16], an
// [Array] on a device, or a [View], which has its element type erased. Slices
// are never kept after a call returns, unless the function's doc says so.
//
// # Devices
//
// [CPU] is plain Go memory. The build tags cuda and metal add GPUs, which [Open]
// opens by name, such as "cuda:0", and [Make] allocates on. Work on them is
// asynchronous, in the order of the calls. The tag emu adds a device that runs the
// text of the GPU kernels on the host, for tests.
//
// # Errors
//
// No exported function panics on bad arguments. They are checked before
// anything is written, and the error wraps one of the sentinels of this
// package and says what was expected and what came.
//
// Two things are as in any Go program. A method that is called on a nil pointer
// may panic. Memory on the CPU is Go's: when the system refuses it, as to [Make]
// or to a constructor, the process ends. [ErrNoMemory] comes from devices, from
// limits, and for lengths that Go cannot address.
package snug
