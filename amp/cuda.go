//go:build cuda

package amp

import _ "embed"

//go:embed kernels/amp.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
