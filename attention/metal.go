//go:build metal || emu

package attention

import (
	"embed"

	"github.com/snug-ml/snug/internal/gpu"
)

//go:embed kernels/*.h kernels/*.cu kernels/*.metal
var kernelText embed.FS

func init() {
	kernels.Source = gpu.Folder(kernelText)
	hopperKernels.Source, rowsKernels.Source = kernels.Source, kernels.Source
}
