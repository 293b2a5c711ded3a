//go:build metal || emu

package conv

import (
	"embed"

	"github.com/snug-ml/snug/internal/gpu"
)

//go:embed kernels/*.h kernels/*.cu kernels/*.metal
var kernelText embed.FS

func init() { kernels.Source = gpu.Folder(kernelText) }
