package fused

import (
	"errors"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// imageLayers is one pass through what lies between convolutions, over memory made once.
type imageLayers[V snug.Vector] struct {
	x, y, dy, dx V
}

const imageLen = 70003

func newImageLayers[V snug.Vector](low func(n int) V) *imageLayers[V] {
	return &imageLayers[V]{x: low(imageLen), y: low(imageLen), dy: low(imageLen), dx: low(imageLen)}
}

func (l *imageLayers[V]) pass() (err error) {
	for _, f := range activationForms {
		kept := l.y
		if f.a.FromInput() {
			kept = l.x
		}
		err = errors.Join(err, Activate(l.y, l.x, f.a), ActivateBackward(l.dx, l.dy, kept, f.a))
	}
	return err
}

//check:in race
func TestImageLayersDoNotDependOnWorkers(t *testing.T) {
	outputs := func(procs int) [][]float32 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		l := newImageLayers(random)
		require.NoError(t, l.pass())
		return [][]float32{l.y, l.dx}
	}
	want := outputs(1)
	for _, procs := range []int{2, 5} {
		for i, got := range outputs(procs) {
			requireBits(t, "outputs", want[i], got)
		}
	}
}

func TestImageLayersAllocateNothing(t *testing.T) {
	f32, bf16 := newImageLayers(random), newImageLayers(randomBF16)
	for name, pass := range map[string]func() error{"f32": f32.pass, "bf16": bf16.pass} {
		var err error
		t.Run(name, func(t *testing.T) { kerneltest.NoAllocs(t, func() { err = errors.Join(err, pass()) }) })
		require.NoError(t, err)
	}
}
