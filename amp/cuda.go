//go:build cuda

package amp

import _ "embed"

//go:embed kernels/amp.fatbin
var kernelImage []byte

func init() { kernels.Image = kernelImage }
