//go:build emu

package attention

import (
	"os"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// hopperPlace returns an emulated device with the instructions of compute capability
// 9.0, in the modes of the emulator that have them.
func hopperBackend(t *testing.T) kerneltest.Backend {
	if mode := os.Getenv("SNUG_EMU"); mode == "check" || mode == "late" || mode == "portable" || mode == "wave64" {
		t.Skip("these instructions are for the modes plain and asan")
	}
	t.Setenv("SNUG_CUDA", "90")
	dev, err := snug.Open("emu:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return kerneltest.Backend{Name: "hopper", Dev: dev, Emulated: true}
}

// The kernels for compute capability 9.0, on all that matrix units take and on more tiles,
// for which stages are used again.
func TestHopper(t *testing.T) {
	backend := hopperBackend(t)
	checkUnits(t, backend, unitCases())
	checkUnits(t, backend, tileCases())
}

// What the mask hides stays hidden, in all groups of a block.
func TestNonFiniteInHopper(t *testing.T) { checkHidden(t, hopperBackend(t)) }

// The same bits whatever order copies arrive in, which the emulator changes from launch
// to launch.
//
//check:in race
func TestHopperDeterministic(t *testing.T) {
	backend := hopperBackend(t)
	p := newProblem(t, Options{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 200, SeqK: 300, Dim: 64, Causal: true}, snug.BF16, 6)
	p.start = aligning
	want := bitsOf(p.run(t, backend, snug.BF16))
	for range 3 {
		require.Equal(t, want, bitsOf(p.run(t, backend, snug.BF16)))
	}
}

// Without lse the output is the same.
func TestHopperWithoutLSE(t *testing.T) {
	backend := hopperBackend(t)
	c := Options{Batch: 1, Heads: 1, SeqQ: 20, SeqK: 150, Dim: 128}
	p := newProblem(t, c, snug.BF16, 8)
	p.start = aligning
	want := p.run(t, backend, snug.BF16).out
	r := resolved(t, c)
	o := r.operands()
	put := func(i int, x []float32) strided { return put(t, backend, snug.BF16, o[i], aligning, x) }
	out := put(3, nil)
	require.NoError(t, Forward(out.View, snug.View{}, put(0, p.q).View, put(1, p.k).View, put(2, p.v).View, c))
	require.Equal(t, want, out.contiguous())
}

// A negative scale, which makes the greatest product the smallest score, is for other
// kernels of the device, as is a type that has no matrix units.
func TestBesideHopper(t *testing.T) {
	backend := hopperBackend(t)
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		p := newProblem(t, Options{Batch: 1, Heads: 1, SeqQ: 20, SeqK: 30, Dim: 64, Scale: -0.1, Causal: true}, dt, 7)
		p.start = aligning
		p.check(t, backend, dt)
	}
}

// The emulator runs the kernels that are meant.
func TestHopperRuns(t *testing.T) {
	backend := hopperBackend(t)
	names := slices.Clone(hoppers[:])
	t.Cleanup(func() { copy(hoppers[:], names) })
	for i := range hoppers {
		hoppers[i].backwardKey.names[2] = "none"
	}
	p := newProblem(t, Options{Batch: 1, Heads: 1, SeqQ: 20, SeqK: 30, Dim: 64}, snug.BF16, 7)
	r := resolved(t, p.c)
	var views []snug.View
	for _, o := range r.operands() {
		views = append(views, put(t, backend, snug.BF16, o, aligning, nil).View)
	}
	numbers := func() snug.View { return kerneltest.Put(t, backend, filled(r.queries())).View }
	lse := numbers()
	require.NoError(t, Forward(views[3], lse, views[0], views[1], views[2], p.c))
	require.NoError(t, backend.Dev.Sync())
	var grads []snug.View
	for _, o := range r.operands() {
		grads = append(grads, put(t, backend, snug.BF16, o, aligning, nil).View)
	}
	require.NoError(t, Backward(grads[0], grads[1], grads[2], grads[3], views[0], views[1], views[2], views[3], lse, p.c, numbers()))
	require.ErrorContains(t, backend.Dev.Sync(), "no kernel none")
}
