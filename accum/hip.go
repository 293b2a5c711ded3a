//go:build hip

package accum

import _ "embed"

//go:embed kernels/accum_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
