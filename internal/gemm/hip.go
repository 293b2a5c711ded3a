//go:build hip

package gemm

import _ "embed"

//go:embed kernels/gemm_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
