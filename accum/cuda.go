//go:build cuda

package accum

import _ "embed"

//go:embed kernels/accum.fatbin
var kernelImage []byte

func init() { kernels.Image = kernelImage }
