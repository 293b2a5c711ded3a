//go:build hip

package quant8

import _ "embed"

//go:embed kernels/quant8_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
