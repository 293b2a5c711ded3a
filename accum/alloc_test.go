package accum

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestAllocations has what a training step calls.
func TestAllocations(t *testing.T) {
	g, half := kerneltest.Uniform(1, 2*chunk), make([]snug.Float16, 2*chunk)
	grads := kerneltest.Walk(kerneltest.Slice("a", g))
	sum := float32(0)
	visit := func(_ string, g snug.View) bool { sum += g.Float32s()[0]; return true }
	for _, overflow := range []NonFinitePolicy{SkipWindow, DropMicro} {
		w := newWindow(t, []Param{{"a", len(g)}, {"b", len(g)}}, Options{NonFinite: overflow})
		add := func() error {
			_, err := w.AddAll(grads)
			return err
		}
		if overflow == SkipWindow {
			add = func() error {
				if err := w.Add("a", snug.ViewOf(half)); err != nil {
					return err
				}
				_, _, err := w.Into("b")
				return err
			}
		}
		var err error
		kerneltest.NoAllocs(t, func() {
			if err = w.Begin(2); err != nil {
				return
			}
			if err = add(); err != nil {
				return
			}
			_, err = w.End()
			w.Gradients()(visit)
			w.Reset()
		})
		require.NoError(t, err)
	}
}
