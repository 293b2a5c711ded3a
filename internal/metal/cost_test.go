//go:build metal

package metal

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// TestLargeGrids launches grids that take seconds on a system that kills command buffers after
// twice the budget. The pieces cover the grid, in order.
func TestLargeGrids(t *testing.T) {
	for _, grid := range [][3]int{{1, 1, 1}, {64, 1, 1}, {65, 1, 1}, {1500, 1, 1}, {20, 10, 7}, {3, 200, 2}, {2, 3, 150}} {
		for _, blockTime := range []float64{1e-7, 1e-3, 0.02} {
			t.Run(fmt.Sprint(grid, blockTime), func(t *testing.T) {
				f := newFake()
				f.blockTime = blockTime
				f.patience = max(2*budget, probe*blockTime)
				d := f.open(t)
				m, err := d.Alloc(64)
				require.NoError(t, err)
				l := f.fill(m, 7)
				l.Blocks = grid
				for range 3 {
					f.pieces = nil
					require.NoError(t, d.LaunchGrid(l))
					require.NoError(t, d.Sync())
					f.covers(t, grid)
				}
			})
		}
	}
}

// covers checks that the pieces that ran are the grid.
func (f *fake) covers(t *testing.T, grid [3]int) {
	t.Helper()
	at := 0
	for _, p := range f.pieces {
		require.Equal(t, words(grid), p.blocks)
		first := [3]int{int(p.first[0]), int(p.first[1]), int(p.first[2])}
		require.Equal(t, at, first[0]+grid[0]*(first[1]+grid[1]*first[2]))
		for i := range first {
			require.LessOrEqual(t, first[i]+p.extent[i], grid[i])
		}
		box := p.extent[0] * p.extent[1] * p.extent[2]
		if p.extent[0] < grid[0] { // a box of whole rows and planes, or a part of a row
			require.Equal(t, [2]int{1, 1}, [2]int{p.extent[1], p.extent[2]})
		} else if p.extent[1] < grid[1] {
			require.Equal(t, 1, p.extent[2])
		}
		at += box
	}
	require.Equal(t, grid[0]*grid[1]*grid[2], at)
}

// TestManyLaunches queues more work of one kernel than one command buffer may hold: the count
// follows what was measured.
func TestManyLaunches(t *testing.T) {
	for _, blockTime := range []float64{1e-6, 2e-3, 0.02} {
		t.Run(fmt.Sprint(blockTime), func(t *testing.T) {
			f := newFake()
			f.blockTime, f.patience = blockTime, 2*budget
			d := f.open(t)
			m, err := d.Alloc(64)
			require.NoError(t, err)
			l := f.fill(m, 7)
			for range 10 {
				require.NoError(t, d.LaunchGrid(l))
				require.NoError(t, d.Sync())
			}
			f.times = nil
			for range 5 * maxCommands {
				require.NoError(t, d.LaunchGrid(l))
			}
			require.NoError(t, d.Sync())
			commands := min(maxCommands, math.Ceil(budget/blockTime))
			require.InDelta(t, 5*maxCommands/commands, len(f.times), 3)
			require.LessOrEqual(t, slices.Max(f.times), 2*budget)
		})
	}
}

// TestCostFollowsOperands measures a kernel anew where its operands are longer.
func TestCostFollowsOperands(t *testing.T) {
	f := newFake()
	d := f.open(t)
	f.limit = 8 << 20
	m, err := d.Alloc(4 << 20)
	require.NoError(t, err)
	l := f.fill(m.Slice(0, 64), 7)
	l.Blocks = [3]int{2000, 1, 1}
	f.blockTime = 1e-7
	require.NoError(t, d.LaunchGrid(l))
	require.NoError(t, d.Sync())
	require.Len(t, f.pieces, 2, "one to measure")

	f.blockTime, f.patience, f.pieces = 1e-3, 2*budget, nil
	l.Operands[0] = m
	require.NoError(t, d.LaunchGrid(l))
	require.NoError(t, d.Sync())
	f.covers(t, l.Blocks)
	require.Greater(t, len(f.pieces), 20)
}

// TestUnmeasuredGrids launches on a system that does not tell times.
func TestUnmeasuredGrids(t *testing.T) {
	f := newFake()
	f.unmeasured = true
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	l := f.fill(m, 7)
	l.Blocks = [3]int{1000, 1, 1}
	require.NoError(t, d.LaunchGrid(l))
	require.NoError(t, d.Sync())
	f.covers(t, l.Blocks)
}

// TestLongProducts cuts a product that takes long, by its shape alone.
func TestLongProducts(t *testing.T) {
	f := newFake()
	f.limit, f.productMAC, f.patience = 64<<20, 1e-12, 2*budget
	d := f.open(t)
	var made []product
	newProduct := d.api.newProduct
	d.api.newProduct = func(dev object, p product) object { made = append(made, p); return newProduct(dev, p) }
	type place struct{ off, rows, columns int }
	var places []place
	d.api.encodeProduct = func(o, cb, _, _, _ object) {
		f.do(func() {
			p := f.get(o, "product").product
			f.get(cb, "command buffer").seconds += f.productMAC * float64(p.m) * float64(p.n) * float64(p.k)
		})
	}
	const m, n, k = 200, 1 << 13, 1 << 14 // 27 ms for 200 rows at 1 TFLOP/s, pieces of 128
	short, err := d.Alloc(64)
	require.NoError(t, err)
	d.buffers[len(d.buffers)-1].size = 1 << 40 // as if it were that long
	short.Size = 1 << 40
	d.api.newMatrix = func(_ object, off, rows, columns, _ int, _ uint32) object {
		places = append(places, place{off, rows, columns})
		return locked(f, func() object { return f.make(&thing{kind: "matrix"}) })
	}
	for _, trans := range []bool{false, true} {
		made, places = nil, nil
		stride := k
		if trans {
			stride = m
		}
		a := gpu.Matrix{Mem: short, Stride: stride, Trans: trans}
		b, c := gpu.Matrix{Mem: short, Stride: n}, gpu.Matrix{Mem: short, Stride: n}
		done, err := d.MatMul(m, n, k, 1+bit(trans), a, b, 0, c)
		require.NoError(t, err)
		require.True(t, done)
		require.NoError(t, d.Sync())
		require.Equal(t, []int{128, 72}, []int{made[0].m, made[1].m})
		second := place{128 * k * 4, 72, k}
		if trans {
			second = place{128 * 4, k, 72}
		}
		require.Equal(t, second, places[3])
		require.Equal(t, place{0, k, n}, places[4], "all of the right operand")
		require.Equal(t, place{128 * n * 4, 72, n}, places[5])
	}
}

func bit(b bool) float32 {
	if b {
		return 1
	}
	return 0
}

// TestKilledWorkOnly goes on after a command buffer that the system killed, once a call has
// returned its error.
func TestKilledWorkOnly(t *testing.T) {
	for _, code := range []int{1, killedWork, 14} {
		f := newFake()
		d := f.open(t)
		m, err := d.Alloc(64)
		require.NoError(t, err)
		f.kill(&d.work, code)
		require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
		err = d.Sync()
		var killed *KilledError
		require.ErrorAs(t, err, &killed)
		require.ErrorIs(t, err, driver.ErrDevice)
		require.Equal(t, KilledError{Code: code, Reason: "injected"}, *killed)
		require.NotErrorAs(t, err, new(*LostError))

		require.NoError(t, d.LaunchGrid(f.fill(m, 9)))
		require.NoError(t, d.Sync())
		require.Equal(t, byte(9), m.Bytes()[0])
	}
	for _, code := range []int{codePageFault, codeAccessRevoked, codeNotPermitted, codeDeviceRemoved} {
		f := newFake()
		d := f.open(t)
		m, err := d.Alloc(64)
		require.NoError(t, err)
		f.kill(&d.work, code)
		require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
		for range 2 {
			require.ErrorAs(t, d.Sync(), new(*LostError))
		}
	}
}
