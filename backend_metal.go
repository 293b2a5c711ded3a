//go:build metal && darwin

package snug

import _ "github.com/snug-ml/snug/internal/metal" // registers the kind "metal"
