//go:build emu

package snug

import _ "github.com/snug-ml/snug/internal/emu" // registers emu:0 and emu:1
