//go:build hip

package pack

import _ "embed"

//go:embed kernels/pack_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
