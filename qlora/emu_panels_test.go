//go:build emu

package qlora

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

func init() {
	openers = append(openers, openEmulated)
}

// openEmulated opens an emulated device whose library multiplies on the host.
func openEmulated() (*libraryDevice, error) {
	emu, err := driver.Lookup("emu")
	if err != nil {
		return nil, err
	}
	inner, err := emu.Open(0)
	if err != nil {
		return nil, err
	}
	takes := func(string) (bool, error) { return true, nil }
	d := &libraryDevice{Driver: inner, has: takes, multiply: takes}
	d.launch = func(j driver.Job) error { return gpu.Run(j, hostLibrary{inner.(launcher), d}) }
	return d, nil
}

type launcher interface {
	driver.Driver
	gpu.UnitsLauncher
	gpu.ParallelLauncher
}

// hostLibrary is a Launcher with a library.
type hostLibrary struct {
	launcher
	d *libraryDevice
}

func (h hostLibrary) LaunchGrid(l *gpu.Launch) error {
	h.d.products = append(h.d.products, l.Func)
	return h.launcher.LaunchGrid(l)
}

func (h hostLibrary) HasMatMul(m, n, k int, a, b, c gpu.Matrix) (bool, error) {
	if c.Type != a.Type && c.Type != gpu.F32 {
		return false, nil
	}
	return h.d.has(fmt.Sprint(m, n, k))
}

func (h hostLibrary) MatMul(m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) (bool, error) {
	has, err := h.HasMatMul(m, n, k, a, b, c)
	if err == nil && has {
		has, err = h.d.multiply(fmt.Sprint(m, n, k))
	}
	if err != nil || !has {
		return false, err
	}
	h.d.products = append(h.d.products, fmt.Sprint("library ", m, n, k))
	var on [3]gemm.Matrix
	for i, x := range []gpu.Matrix{a, b, c} {
		v, _, err := snug.MakeView(snug.CPU(), snug.DType(x.Type+1), x.Mem.Size/x.Type.Size())
		if err == nil {
			err = h.CopyOut(device.Mem(&v).Bytes(), x.Mem)
		}
		if err != nil {
			return false, err
		}
		on[i] = gemm.Matrix{Data: v, Stride: x.Stride, Trans: x.Trans}
	}
	gemm.Mul(m, n, k, alpha, on[0], on[1], beta, on[2])
	return true, h.CopyIn(c.Mem, device.Mem(&on[2].Data).Bytes())
}

// TestPanelsRefused: a product that the library does not have is left to the kernel that decodes on the way, before
// anything is queued; one that it refuses later, to snug's kernels; its errors are errors.
func TestPanelsRefused(t *testing.T) {
	const out, in, rows, tile = 1100, 32, 512, 512
	dev, err := snug.Open("library:1")
	require.NoError(t, err)
	defer dev.Close()
	d := opened
	yes := func(string) (bool, error) { return true, nil }
	no := func(string) (bool, error) { return false, nil }
	last := func(product string) (bool, error) { return product != fmt.Sprint(rows, out-2*tile, in), nil }
	fails := func(string) (bool, error) { return false, kerneltest.ErrFault }
	p := newPanels(t, dev, snug.BF16, out, in, Options{Block: 32}, (tile+panelStep-1)*in)
	p.rows = rows
	x, first := on(t, dev, snug.BF16, kerneltest.Normal(2, rows*in)), values(t, on(t, dev, snug.BF16, kerneltest.Normal(3, rows*out)))
	decode, library := "qlora_double_bf16", fmt.Sprint("library ", rows, tile, in)
	for what, c := range map[string]struct {
		has, multiply func(string) (bool, error)
		want          []string // the beginnings of names
		err           error
	}{
		"taken":                 {yes, yes, []string{decode, library, decode, library, decode, fmt.Sprint("library ", rows, out-2*tile, in)}, nil},
		"without the product":   {no, yes, []string{"qlora_product"}, nil},
		"without the last":      {last, yes, []string{"qlora_product"}, nil},
		"refused":               {yes, no, []string{decode, "gemm_", decode, "gemm_", decode, "gemm_"}, nil},
		"the last is refused":   {yes, last, []string{decode, library, decode, library, decode, "gemm_"}, nil},
		"the question fails":    {fails, yes, nil, kerneltest.ErrFault},
		"a product fails":       {yes, fails, []string{decode}, kerneltest.ErrFault},
		"results of other type": {yes, yes, []string{"qlora_product"}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			to := snug.BF16
			if what == "results of other type" {
				to = snug.F16
			}
			y := on(t, dev, to, first)
			start := values(t, y)
			d.has, d.multiply, d.products = c.has, c.multiply, nil
			require.ErrorIs(t, p.l.Forward(y, x, 0.5), c.err)
			require.Len(t, d.products, len(c.want), "%v", d.products)
			for i, name := range d.products {
				require.True(t, strings.HasPrefix(name, c.want[i]), "%v, want %v", d.products, c.want)
			}
			if c.err == nil {
				p.check(t, values(t, y), start, values(t, x), 0.5, to)
			}
		})
	}
}
