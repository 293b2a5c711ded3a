//go:build cuda || metal || emu

package attention

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Matrix units are for 16-bit rows of up to 256 elements from multiples of 16 bytes to
// multiples of 16 bytes.
func TestKernelsFor(t *testing.T) {
	long := Config{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 4, Dim: 64}
	for name, tc := range map[string]struct {
		change func(*Config)
		dt     snug.DType
		start  int
		want   *gpuKernels
	}{
		"64":            {func(*Config) {}, snug.BF16, aligning, gpuUnits[0]},
		"128":           {func(c *Config) { c.Dim = 128 }, snug.F16, aligning, gpuUnits[1]},
		"256":           {func(c *Config) { c.Dim = 256 }, snug.BF16, aligning, gpuUnits[2]},
		"packed":        {func(c *Config) { *c = PackedQKV(*c) }, snug.F16, aligning, gpuUnits[0]},
		"short":         {func(c *Config) { c.Dim = 8 }, snug.F16, aligning, gpuUnits[0]},
		"96":            {func(c *Config) { c.Dim = 96 }, snug.F16, aligning, gpuUnits[1]},
		"values of 128": {func(c *Config) { c.DimV = 128 }, snug.F16, aligning, gpuUnits[1]},
		"keys of 192":   {func(c *Config) { c.Dim, c.DimV = 192, 128 }, snug.F16, aligning, gpuUnits[2]},
		"f32":           {func(*Config) {}, snug.F32, aligning, &gpuPlain},
		"264":           {func(c *Config) { c.Dim = 264 }, snug.F16, aligning, &gpuPlain},
		"values of 264": {func(c *Config) { c.DimV = 264 }, snug.F16, aligning, &gpuPlain},
		"60":            {func(c *Config) { c.Dim = 60 }, snug.F16, aligning, &gpuPlain},
		"values of 60":  {func(c *Config) { c.DimV = 60 }, snug.F16, aligning, &gpuPlain},
		"odd start":     {func(*Config) {}, snug.F16, 0, &gpuPlain},
		"odd rows":      {func(c *Config) { c.K = Strides{Batch: 800, Head: 400, Row: 68} }, snug.F16, aligning, &gpuPlain},
	} {
		t.Run(name, func(t *testing.T) {
			c := long
			tc.change(&c)
			r := resolved(t, c)
			var place kerneltest.Place
			for _, p := range kerneltest.Places(t) {
				if !onHost(p) {
					place = p
				}
			}
			views := [4]snug.View{}
			for i, o := range r.operands() {
				views[i] = put(t, place, tc.dt, o, tc.start, nil).View
			}
			require.Same(t, tc.want, gpuKernelsFor(&r, &views[0], &views[1], &views[2], &views[3]))
		})
	}
}
