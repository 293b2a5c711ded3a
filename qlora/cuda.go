//go:build cuda

package qlora

import _ "embed"

//go:embed kernels/qlora.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
