//go:build cuda

package quant8

import _ "embed"

//go:embed kernels/quant8.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
