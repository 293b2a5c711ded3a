package transformer

import (
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroTransformer calls functions and methods with zero values and nil: none panics.
func TestZeroTransformer(t *testing.T) {
	var none *Config
	kerneltest.Zero(t, none, new(Config), Rope{}, New, new(Model), Param{})
}
