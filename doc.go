// Package snug is the vocabulary that the packages of snug share: element types, vectors over
// host and device memory, devices and errors. snug gives Go programs memory-efficient training
// primitives as independent packages over plain memory: no tensor framework, no automatic
// differentiation and no cgo. A program hands over the slices it has:
//
//	err := attention.Forward(out, lse, q, k, v, options)   // []float32: computed on the CPU
//
//	dev, err := snug.Open("cuda:0")                       // built with -tags cuda
//	q, err := snug.Make[snug.BFloat16](dev, n)            // device memory, until q.Close()
//	err = q.CopyIn(host)                                  // the same call on Arrays runs on dev
//
// The packages:
//
//   - amp: loss scaling, casts, master weights, mixed-precision matmul, weights
//     from safetensors
//   - accum: gradient accumulation over micro-batches and ranks
//   - remat: rematerialization (activation checkpointing): plans under a budget,
//     their executor, and a tape that evicts
//   - quant8: blockwise 8-bit optimizer state
//   - qlora: weights in 4 and 8 bits
//   - attention: tiled attention in O(N) memory
//   - offload: paged tensors over devices, host memory and disk, paged training, device
//     maps
//   - fused: layers that keep little for the backward pass
//   - conv: convolutions without patches in memory, pooling, resizing
//   - plan: predicted memory and time of training, and settings that fit a limit
//   - meter: what holds memory during a run
//
// Above these, layers has the building blocks of models, transformer published models, train a
// training loop, and the program cmd/snug fine-tunes within a memory limit. The guides in the folder docs begin with a goal,
// and their commands and programs are run by the tests: fine-tuning.md, which-technique.md,
// longer-sequences.md, surviving-kills.md, many-processes.md, own-layer.md and
// own-optimizer.md.
//
// # Vectors
//
// Functions take any [Vector]: a slice of float32, [Float16] or [BFloat16], an
// [Array] on a device, or a [View], whose element type is known at run time only.
// No function keeps a slice after it returns, unless its doc says so.
//
// # Devices
//
// [CPU] is plain Go memory. The build tags cuda, hip and metal add GPUs, which [Open]
// opens by name, such as "cuda:0", and [Make] allocates on. Work on them is
// asynchronous, in the order of the calls. The tag emu adds a device that runs the
// text of the GPU kernels on the host, for tests.
//
// # Errors
//
// No exported function panics on bad arguments. It checks them before it writes anything.
// The error wraps one of the sentinels of this package, and says the expected and the actual
// value.
//
// Two rules of Go remain. A method called on a nil pointer may panic. When the system refuses
// CPU memory to [Make] or to a constructor, the process ends. [ErrNoMemory] comes from
// devices, from limits, and for lengths that Go cannot address.
package snug
