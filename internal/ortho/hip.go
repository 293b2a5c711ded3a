//go:build hip

package ortho

import _ "embed"

//go:embed kernels/ortho_hip.image
var amdImage []byte

func init() { kernels.AMD = amdImage }
