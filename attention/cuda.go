//go:build cuda

package attention

import _ "embed"

//go:embed kernels/attention.image
var kernelImage []byte

//go:embed kernels/attention_sm90a.image
var hopperImage []byte

//go:embed kernels/attention_rows.image
var rowsImage []byte

func init() {
	kernels.Image = kernelImage
	hopperKernels.Image = hopperImage
	rowsKernels.Image = rowsImage
}
