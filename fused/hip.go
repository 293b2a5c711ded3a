//go:build hip

package fused

import _ "embed"

//go:embed kernels/fused_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
