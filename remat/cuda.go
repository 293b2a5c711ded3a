//go:build cuda

package remat

import _ "embed"

//go:embed kernels/remat.fatbin
var kernelImage []byte

func init() { kernels.Image = kernelImage }
