//go:build cuda

package ortho

import _ "embed"

//go:embed kernels/ortho.image
var kernelImage []byte

func init() { kernels.Image = kernelImage }
