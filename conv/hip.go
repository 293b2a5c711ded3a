//go:build hip

package conv

import _ "embed"

//go:embed kernels/conv_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
