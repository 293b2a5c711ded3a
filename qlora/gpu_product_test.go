//go:build cuda || hip || metal || emu

package qlora

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// formed is a product by a form, or by the one that Grids chooses where the device does not have it.
type formed struct {
	productJob
	form gemm.Form
}

func (f *formed) Grids(q gpu.Launcher) error {
	if f.form >= gemm.Units64 && !gpu.HasUnits(q) {
		return f.productJob.Grids(q)
	}
	return f.launch(q, f.form)
}

// TestProductForms compares every form, on both sides of the edges of its tiles and with
// more tiles than one, with float64. Both forms on matrix units have the same bits.
//
//check:in metal24
func TestProductForms(t *testing.T) {
	forms := map[snug.DType][]gemm.Form{
		snug.F32:  {gemm.Plain, gemm.Thin},
		snug.F16:  {gemm.Plain, gemm.Thin, gemm.Units64, gemm.Units128},
		snug.BF16: {gemm.Plain, gemm.Thin, gemm.Units64, gemm.Units128},
	}
	for _, backend := range devices(t)[1:] {
		for n, tc := range []struct {
			rows, out, in int
			opt           Options
		}{
			{129, 16, 32, Options{Block: 32}},
			{5, 136, 160, Options{Type: FP4, Block: 32, Single: true}},
			{70, 24, 64, Options{Type: FP4}},
		} {
			for _, dt := range floatTypes {
				for _, back := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%dx%dx%d/%v/%v", backend.Name, tc.rows, tc.out, tc.in, dt, back), func(t *testing.T) {
						p := newWholeProduct(t, backend.Dev, dt, tc.out, tc.in, tc.opt, tc.rows, back)
						cols, k := p.shape()
						a, beta, to := on(t, backend.Dev, dt, kerneltest.Normal(2, tc.rows*k)), float32(n)/2, floatTypes[n]
						first := values(t, on(t, backend.Dev, to, kerneltest.Normal(3, tc.rows*cols)))
						var units []float32
						for _, form := range forms[dt] {
							c := kerneltest.PutFloats(t, backend, to, first)
							require.NoError(t, device.Queue(backend.Dev, formed{newProduct(p.l.w, tc.rows, c.View, a, beta, back), form}))
							got := c.Get()
							p.check(t, got, first, values(t, a), beta, to)
							if units != nil {
								sameBits(t, units, got)
							}
							if form == gemm.Units64 {
								units = got
							}
						}
					})
				}
			}
		}
	}
}
