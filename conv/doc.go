// Package conv computes convolutions of one, two and three dimensions, forward and backward, without patches in
// memory: no matrix of patches (im2col) is made, and the workspace does not grow with the batch.
//
//	s := conv.Shape{Batch: 8, In: 64, Out: 128, Dims: 2, Size: [3]int{56, 56}, Kernel: [3]int{3, 3}}.Same()
//	err := conv.Forward(y, x, w, bias, s)                                // y: s.YLen() elements
//	err = conv.BackwardInput(dx, dy, w, s, snug.Into{})                  // dx = the gradient of x
//	err = conv.BackwardWeight(dw, db, x, dy, s, snug.Into{Beta: 1}, ws)  // dw and db += the gradients of w and bias
//
// A [Shape] says what is convolved: channels, groups, sizes, strides, dilation, padding, and the order of the
// elements. Groups as many as channels make a depthwise convolution, Transposed the adjoint, which decoders
// upsample with. Weights lie as in PyTorch, so published ones need no change.
//
// [MaxPool] and [AvgPool] take the largest elements and the means of windows, which may be [PoolShape.Adaptive];
// [Resize] interpolates as PyTorch does. Each has its gradient.
//
// As in all of deep learning the kernel is not mirrored: with x 0 outside of its size,
//
//	y[b, o, p] = bias[o] + Σ over c, t of w[o, c, t] · x[b, c, p·stride + t·dilation − padBefore]
//
// for output channel o and position p, the input channels c of o's group, and the taps t of the kernel; p, t and
// the sizes have a component a dimension. Backward needs x and w, nothing else.
//
// # Types
//
// Vectors are dense. The vectors V of one call have one element type: float32, binary16 or bfloat16. This holds for
// views too. Gradients of w and of the bias are float32 and enter the caller's accumulators directly, see
// [snug.Into]. Products are added in float32 and rounded once, to nearest even. A sum of n products has an absolute
// error of at most (n+3)·2^-24·Σ|product| before that, unless float32 overflows or underflows. Processors that multiply
// bfloat16 in hardware (AMX, AVX512_BF16) do so, and may take subnormal numbers, below 2^-126, for 0.
//
// # Results
//
// Results do not depend on GOMAXPROCS, bit for bit. NaN and infinities propagate by the equations, with one
// exception: whether a weight that is not finite meets the zeros of the padding is not specified.
//
// # Memory
//
// On the CPU nothing is allocated, and each running worker holds at most [Scratch] bytes in a reused buffer. [BackwardWeight] takes
// a workspace: a float32 vector on the device of the operands, at least as long as [Shape.WorkspaceLen] says. On another device it
// borrows at most 5 MB instead, for sums of parts of the positions, and [Resize] takes as much of the host as of its workspace.
//
// On NVIDIA's and Apple's GPUs convolutions of 16-bit types use matrix units. They read fastest with channels last, where the channels
// of x and y are multiples of 8 and vectors begin at multiples of 16 bytes.
//
// # Errors
//
// Arguments are checked in this order, before anything is written: the shape and options ([snug.ErrConfig],
// [snug.ErrShape]), element types ([snug.ErrDType]), lengths ([snug.ErrShape]), devices ([snug.ErrDevice]), overlaps
// ([snug.ErrConfig]). Kernels of other devices count in 32 bits: they refuse vectors of more than 2^32 − 2^24 elements with
// [snug.ErrNotBuilt].
package conv
