//go:build cuda

package attention

import _ "embed"

//go:embed kernels/attention.fatbin
var kernelImage []byte

func init() { kernels.Image = kernelImage }
