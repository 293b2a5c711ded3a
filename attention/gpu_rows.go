//go:build cuda || hip || metal || emu

package attention

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
)

// rowsKernels are the kernels for calls over ranks, which have their own image.
var rowsKernels = gpu.Module{Name: "attention_rows"}

// gpuRows is the parameters of the kernel of rows.h, RowsCopy there.
type gpuRows struct {
	items, pieces    uint64
	heads, n, dim    uint64
	to, from         gpuStrides
	toType, fromType uint32
	add, clear       uint32
}

// gpuRowsPiece is the elements of a row that a warp copies, ROWS_PIECE in rows.h.
const gpuRowsPiece = 1024

// Grids implements [gpu.Job].
func (j *rowsJob) Grids(q gpu.Launcher) error {
	pieces := gpu.CeilDiv(j.dim, gpuRowsPiece)
	items := j.rows() * pieces
	if items == 0 {
		return nil
	}
	dst, src := *device.Mem(&j.dst), *device.Mem(&j.src)
	if j.src.Len() == 0 {
		src = dst // bound, and not used
	}
	p := gpuRows{
		items: uint64(items), pieces: uint64(pieces), heads: uint64(j.heads), n: uint64(j.n), dim: uint64(j.dim), to: j.to.gpu(), from: j.from.gpu(),
		toType: uint32(j.dst.DType()), fromType: uint32(j.src.DType()), add: flag(j.add), clear: flag(j.src.Len() == 0),
	}
	return rowsKernels.Launch(q, "attention_rows", gpu.Grid(items, gpuThreads/32), gpuThreads, gpu.Params(&p), dst, src)
}

// Grids implements [gpu.Job].
func (j *sinkJob) Grids(q gpu.Launcher) error { return j.sinks(q) }
