//go:build cuda

package fused

import _ "embed"

//go:embed kernels/fused.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
