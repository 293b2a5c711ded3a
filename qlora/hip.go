//go:build hip

package qlora

import _ "embed"

//go:embed kernels/qlora_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
