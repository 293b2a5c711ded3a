//go:build cuda

package snug

import _ "github.com/snug-ml/snug/internal/cuda" // registers the kind "cuda"
