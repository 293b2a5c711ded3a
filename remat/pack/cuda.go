//go:build cuda

package pack

import _ "embed"

//go:embed kernels/pack.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
