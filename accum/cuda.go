//go:build cuda

package accum

import _ "embed"

//go:embed kernels/accum.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
