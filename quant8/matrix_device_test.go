package quant8

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// matrixCase is a matrix and the operands of its steps.
type matrixCase struct {
	rows, cols int
	ruleCase
}

// matrixCases have several bands of rows, several strips of columns, and states in partial
// blocks of several chunks.
var matrixCases = []matrixCase{
	{33, 65, ruleCase{8, 32, 64, snug.F32, snug.BF16, 0, 9}},
	{300, 37, ruleCase{8, 33, 132, snug.BF16, snug.F32, 0, 0}},
	{37, 300, ruleCase{32, 256, 1024, snug.F16, snug.F16, 0, 9}},
	{64, 128, ruleCase{8, 256, 512, snug.BF16, snug.BF16, 0, 9}},
	{64, 32, ruleCase{32, 32, 1024, snug.F32, snug.F32, 0, 9}},
	{1, 1500, ruleCase{8, 64, 128, snug.F32, snug.F32, 0, 9}},
	{1500, 1, ruleCase{32, 33, 132, snug.BF16, snug.F16, 0, 9}},
	{1, 1, ruleCase{8, 32, 64, snug.F32, snug.F32, 0, 9}},
	{3, 16_500, ruleCase{32, 256, 4096, snug.F32, snug.BF16, 0, 9}},
	{0, 7, ruleCase{8, 32, 64, snug.F32, snug.F32, 0, 0}},
}

// onHost returns the parameters after steps of a matrix on the CPU.
func onHost(t *testing.T, a *Optimizer, c matrixCase, steps int) []float32 {
	return matrixSteps(t, kerneltest.Backend{}, a, c, nil, steps)
}

// matrixSteps makes steps of a matrix that starts at p, or unless there is one at numbers
// of its own, and returns it.
func matrixSteps(t *testing.T, backend kerneltest.Backend, a *Optimizer, c matrixCase, p []float32, steps int) []float32 {
	n := c.rows * c.cols
	if p == nil {
		p = kerneltest.Normal(1, n)
	}
	there := kerneltest.PutFloats(t, backend, c.pt, append(make([]float32, c.skip), p...))
	for range steps {
		advance(a)
		g := kerneltest.PutFloats(t, backend, c.gt, gradient(c.skip+n, uint64(a.Steps())))
		require.NoError(t, a.Step("w", after(t, there.View, c.skip), after(t, g.View, c.skip), 0.5))
	}
	return there.Get()[c.skip:]
}

// requireMatrix compares parameters: Adafactor's by their bits, Muon's within the rounding
// of its products, see TestOnDevices of package ortho, and of the type.
func requireMatrix(t *testing.T, a *Optimizer, c matrixCase, steps int, want, got []float32) {
	t.Helper()
	if a.o.Title != "Muon" {
		require.True(t, equal(want, got))
		return
	}
	share := map[snug.DType]float64{snug.F32: 0x1p-22, snug.F16: 0x1p-10, snug.BF16: 0x1p-7}[c.pt]
	size := 4e-5 * a.o.method.(orthogonalizing).by.factor(c.rows, c.cols) * float64(testRate(a))
	for i, w := range want {
		require.InDelta(t, w, got[i], float64(steps)*(size+share*math.Abs(float64(w))), "element %d", i)
	}
}

func TestMatricesOnDevices(t *testing.T) {
	const steps = 2
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for name := range matrixRules {
			if name == "soap" || slices.Contains(lowRankRules, name) {
				continue
			}
			for i, c := range matrixCases {
				if !kerneltest.Full() && i%3 > 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%v", name, c), func(t *testing.T) {
					s := Options{NearestCodes: i%2 == 1, Bits: c.bits, MinSize: 1, Block: c.block, Chunk: c.chunk}
					sides := map[string][2]int{"w": {c.rows, c.cols}}
					a, b := newMatrices(t, name, s, sides), newMatrices(t, name, s, sides)
					want := onHost(t, a, c, steps)
					got := matrixSteps(t, backend, b, c, nil, steps)
					if len(want) > 0 {
						requireMatrix(t, a, c, steps, want, got)
					}
					require.Equal(t, stateOf(t, a), stateOf(t, b))
				})
			}
		}
	})
}

// TestSquareSumsOnDevices: all bits of the sums of rows and columns are the CPU's.
func TestSquareSumsOnDevices(t *testing.T) {
	sums := func(t *testing.T, backend kerneltest.Backend, c matrixCase) (rows, cols []float64) {
		a := newMatrices(t, "adafactor", Options{}, map[string][2]int{"w": {c.rows, c.cols}})
		g := kerneltest.PutFloats(t, backend, c.gt, gradient(c.skip+c.rows*c.cols, 1))
		require.NoError(t, a.work.take(g.Device()))
		if len(a.work.nearSums) == 0 { // where the device makes the factors
			a.work.nearSums = make([]float64, a.work.nSides)
		}
		s := a.params["w"].shape
		j := squareSumsJob{g: after(t, g.View, c.skip), all: a.work.sums.View(), shape: s, parts: partsOf(s), scale: 0.3}
		rows, cols, err := j.on(g.Device(), &a.work)
		require.NoError(t, err)
		return slices.Clone(rows), slices.Clone(cols)
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, c := range matrixCases[:len(matrixCases)-1] {
			wantRows, wantCols := sums(t, kerneltest.Backend{}, c)
			rows, cols := sums(t, backend, c)
			require.Equal(t, wantRows, rows, c)
			require.Equal(t, wantCols, cols, c)
		}
	})
}

// TestStochasticMatricesOnDevices: the random numbers are the CPU's. Muon's products are
// not, so that there is little to compare.
func TestStochasticMatricesOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, name := range []string{"adafactor", "momentum"} {
			for _, bits := range widths {
				c := matrixCase{33, 65, ruleCase{gt: snug.F32, pt: snug.BF16}}
				s := Options{Bits: bits, MinSize: 1, Block: 64, Stochastic: true, Seed: 3}
				sides := map[string][2]int{"w": {c.rows, c.cols}}
				a, b := newMatrices(t, name, s, sides), newMatrices(t, name, s, sides)
				require.True(t, equal(onHost(t, a, c, 2), matrixSteps(t, backend, b, c, nil, 2)))
				require.Equal(t, stateOf(t, a), stateOf(t, b))
			}
		}
	})
}

// TestMatricesMove: a run goes on where another device has left it, by a saved state and
// by the state in memory, and the scratch goes with it.
func TestMatricesMove(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		eachDeviceRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
			c := matrixCase{40, 33, ruleCase{gt: snug.F32, pt: snug.F32}}
			s, sides := Options{MinSize: 1, Block: 64, Chunk: 256}, map[string][2]int{"w": {c.rows, c.cols}}
			a, b := build(s, sides), build(s, sides)
			want := onHost(t, a, c, 3)

			p := matrixSteps(t, backend, b, c, nil, 1)
			saved := bytesOf(b.AppendBinary(nil))
			p = matrixSteps(t, kerneltest.Backend{}, b, c, p, 1)
			require.True(t, b.work.floats.Device().IsCPU())
			near := b.params["w"].state
			require.True(t, near.Len() == 0 || near.Device().IsCPU())
			p = matrixSteps(t, backend, b, c, p, 1)
			requireMatrix(t, a, c, 3, want, p)
			require.Equal(t, stateOf(t, a), stateOf(t, b))

			require.NoError(t, b.UnmarshalBinary(saved))
			require.Equal(t, saved, bytesOf(b.AppendBinary(nil)))
			if backend.Dev != nil {
				require.Equal(t, backend.Dev, b.params["w"].state.Device())
				require.Equal(t, backend.Dev, b.work.floats.Device())
			}
		})
	})
}

// freeBytes returns the free memory of a device after the work queued so far.
func freeBytes(t *testing.T, dev *snug.Device) int64 {
	t.Helper()
	require.NoError(t, dev.Sync())
	free, _, err := dev.Memory()
	require.NoError(t, err)
	return free
}

// TestMatrixMemoryOnDevices: state and scratch lie on the device, as large as they say,
// and are freed. The rest that a step takes is freed by its end.
func TestMatrixMemoryOnDevices(t *testing.T) {
	backend := kerneltest.Backends(t)[2]
	free := func() int64 { return freeBytes(t, backend.Dev) }
	eachDeviceRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		a := build(Options{}, map[string][2]int{"w": {70, 90}})
		p, g := kerneltest.Put(t, backend, kerneltest.Normal(1, 6300)), kerneltest.Put(t, backend, kerneltest.Normal(2, 6300))
		before := free()
		for range 2 {
			advance(a)
			require.NoError(t, a.Step("w", p.View, g.View, 1))
			require.Equal(t, a.StateBytes()+a.WorkspaceBytes(), before-free())
		}
		require.NoError(t, a.Close())
		require.Equal(t, before, free())
	})
}

// TestMatrixNoMemory: a step that finds no memory writes nothing, and can be made later.
func TestMatrixNoMemory(t *testing.T) {
	backend := kerneltest.Backends(t)[2]
	_, err := snug.Make[uint8](backend.Dev, int(freeBytes(t, backend.Dev))-1<<20)
	require.NoError(t, err)
	eachDeviceRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		a, b := build(Options{}, map[string][2]int{"w": {70, 90}}), build(Options{}, map[string][2]int{"w": {70, 90}})
		x := kerneltest.Normal(1, 6300)
		p, g := kerneltest.Put(t, backend, x), kerneltest.Put(t, backend, kerneltest.Normal(2, 6300))
		advance(a)
		workspace := int(a.WorkspaceBytes())
		// Of the scan's result; the two parts of the scratch; of the state; of the sums.
		for _, left := range []int{0, 64, workspace - 64, workspace + 8, workspace + int(a.StateBytes()) + 8} {
			filler, err := snug.Make[uint8](backend.Dev, int(freeBytes(t, backend.Dev))-left)
			require.NoError(t, err)
			err = a.Step("w", p.View, g.View, 1)
			if a.o.Title != "Muon" || left < workspace+int(a.StateBytes()) {
				require.ErrorIs(t, err, snug.ErrNoMemory, "%d bytes", left)
				require.True(t, equal(x, p.Get()))
				require.Equal(t, make([]byte, a.StateBytes()), stateOf(t, a))
			}
			require.NoError(t, filler.Close())
			require.NoError(t, a.work.free())
			require.NoError(t, a.params["w"].state.Close())
			a.params["w"].state, a.invalid = snug.Array[uint8]{}, ""
			clear(a.params["w"].marks) // of Muon, whose last step had the room for its momentum
		}
		freeBytes(t, backend.Dev) // waits until what was freed is free
		p = kerneltest.Put(t, backend, x)
		require.NoError(t, a.Step("w", p.View, g.View, 1))
		advance(b)
		step(t, b, "w", x, g.Get(), 1)
		require.Equal(t, stateOf(t, b), stateOf(t, a))
	})
}

// TestMatrixInfinite: nothing is written when the norm of a matrix is not finite.
func TestMatrixInfinite(t *testing.T) {
	for _, backend := range kerneltest.Backends(t)[2:] {
		p := kerneltest.Put(t, backend, []float32{1, 2, float32(math.Inf(1)), 4})
		a := newMatrices(t, "adafactor", Options{}, map[string][2]int{"w": {2, 2}})
		advance(a)
		err := a.Step("w", p.View, kerneltest.Put(t, backend, kerneltest.Normal(2, 4)).View, 1)
		require.ErrorIs(t, err, snug.ErrNonFinite)
		require.ErrorContains(t, err, `parameter "w": a norm`)
		require.Equal(t, []float32{1, 2, float32(math.Inf(1)), 4}, p.Get())
		require.Equal(t, make([]byte, 16), stateOf(t, a))
	}
}

// TestSkipElementOfMatrices: elements whose gradient is not finite keep their values and
// have states of 0. To the others it is as if their gradients were 0, as all that the
// first step reads of them.
//
//check:in ordered
//check:not checked
func TestSkipElementOfMatrices(t *testing.T) {
	const rows, cols, scale = 37, 66, 0.5
	bad := map[int]float32{0: nan, 1: inf, 500: -inf, 501: 1e20, rows*cols - 1: nan}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for name := range matrixRules {
			if name == "soap" || slices.Contains(lowRankRules, name) {
				continue
			}
			for _, bits := range widths {
				s := Options{Bits: bits, MinSize: 1, Block: 64, Chunk: 640}
				sides := map[string][2]int{"w": {rows, cols}}
				clean := newMatrices(t, name, s, sides)
				s.NonFinite = SkipElement
				a := newMatrices(t, name, s, sides)
				g, zeros := kerneltest.Normal(2, rows*cols), kerneltest.Normal(2, rows*cols)
				for i, x := range bad {
					g[i], zeros[i] = x, 0
				}
				p, q := kerneltest.Put(t, backend, kerneltest.Normal(1, rows*cols)), kerneltest.Put(t, backend, kerneltest.Normal(1, rows*cols))
				advance(a)
				advance(clean)
				require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, g).View, scale))
				require.NoError(t, clean.Step("w", q.View, kerneltest.Put(t, backend, zeros).View, scale))
				require.Equal(t, len(bad), a.Skipped()[0].Count)
				got, want := p.Get(), q.Get()
				for i, x := range kerneltest.Normal(1, rows*cols) {
					if _, skip := bad[i]; skip {
						require.Equal(t, x, got[i], "%s, %d bits, element %d", name, bits, i)
						if name == "muon" {
							require.NotEqual(t, x, want[i]) // a mixture
						}
						continue
					}
					require.Equal(t, want[i], got[i], "%s, %d bits, element %d", name, bits, i)
				}
				require.Equal(t, stateOf(t, clean), stateOf(t, a), "%s, %d bits", name, bits)

				advance(a) // a second step, with states that are not 0
				require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, kerneltest.Normal(3, rows*cols)).View, scale))
				advance(a)
				before := p.Get()
				require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, g).View, scale))
				for i := range bad {
					require.Equal(t, before[i], p.Get()[i], "%s, %d bits, element %d", name, bits, i)
					for _, state := range statesOf(t, a, "w") {
						require.Zero(t, state[i])
					}
				}
			}
		}
	})
}

// TestFactorsOnDevices: where kernels have float64, a step of Adafactor waits for the norms alone.
func TestFactorsOnDevices(t *testing.T) {
	for _, backend := range kerneltest.Backends(t)[2:] {
		t.Run(backend.Name, func(t *testing.T) {
			a, err := New(Adafactor{}, Options{})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", 33, 65))
			p, g := kerneltest.Put(t, backend, kerneltest.Normal(1, 33*65)), kerneltest.Put(t, backend, kerneltest.Normal(2, 33*65))
			for i := range 3 {
				a.Advance(1e-3)
				a.Within(1e3)
				before := device.Counts(backend.Dev)
				require.NoError(t, a.Step("w", p.View, g.View, 1))
				want := driver.Counts{Waits: 1, ToHost: 1, Allocs: 1} // for the norms
				if !device.HasDoubles(backend.Dev) {
					want = driver.Counts{Waits: 4, ToHost: 4, ToDevice: 2, Allocs: 1}
				}
				if i > 0 {
					require.Equal(t, want, device.Counts(backend.Dev).Minus(before))
				}
			}
			require.NoError(t, a.Close())
		})
	}
}
