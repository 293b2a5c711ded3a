//go:build hip

package snug

import _ "github.com/snug-ml/snug/internal/cuda" // registers the kind "hip"
