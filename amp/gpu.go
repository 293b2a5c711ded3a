//go:build cuda || metal || emu

package amp

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "amp"}

// threads is the size of a block of the kernels that go through elements.
const threads = 256

var castNames = map[[2]snug.DType]string{}

func init() {
	for _, from := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
		for _, to := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			castNames[[2]snug.DType{from, to}] = "amp_cast_" + from.String() + "_" + to.String()
		}
	}
}

func (j *castJob) Grids(q gpu.Launcher) error {
	if j.dst.DType() == j.src.DType() {
		return q.Copy(*j.dst.Mem(), *j.src.Mem())
	}
	params := struct{ n uint64 }{uint64(j.dst.Len())}
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: castNames[[2]snug.DType{j.src.DType(), j.dst.DType()}],
		Blocks: gpu.Grid(j.dst.Len(), threads), Threads: threads,
		Operands: []driver.Mem{*j.dst.Mem(), *j.src.Mem()}, Params: gpu.Params(&params),
	})
}
