//go:build metal || emu

package gpu

import "embed"

// Include holds the headers of the kernel dialect, in the folder include.
//
//go:embed include
var Include embed.FS
