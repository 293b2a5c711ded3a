//go:build cuda

package conv

import _ "embed"

//go:embed kernels/conv.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
