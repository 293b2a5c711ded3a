//go:build hip

package attention

import _ "embed"

//go:embed kernels/attention_hip.image
var amdImage []byte

//go:embed kernels/attention_rows_hip.image
var amdRowsImage []byte

func init() {
	kernels.AMD = amdImage
	rowsKernels.AMD = amdRowsImage
}
