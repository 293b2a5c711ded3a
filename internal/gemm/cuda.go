//go:build cuda

package gemm

import _ "embed"

//go:embed kernels/gemm.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
