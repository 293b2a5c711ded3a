//go:build hip

package amp

import _ "embed"

//go:embed kernels/amp_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
