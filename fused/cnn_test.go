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
	loss                                          Loss
	shapes                                        []Image
	x, y, dy, dx, gamma                           V
	mean, rstd, m2, var1, dgamma, dbeta, ws, sums []float32
}

const imageLen = 6 * 7 * 1700

func newImageLayers[V snug.Vector](low func(n int) V) *imageLayers[V] {
	l := &imageLayers[V]{x: low(imageLen), y: low(imageLen), dy: low(imageLen), dx: low(imageLen), gamma: low(6),
		mean: random(imageLen / 6), rstd: random(imageLen / 6), m2: random(6), var1: random(6), dgamma: random(6), dbeta: random(6), sums: random(12)}
	for _, last := range []bool{false, true} {
		s := Image{7, 6, 1700, last}
		l.shapes = append(l.shapes, s)
		if n := max(GroupNormWorkspaceLen(s), BatchNormWorkspaceLen(s), ChannelNormWorkspaceLen(s)); n > len(l.ws) {
			l.ws = random(n)
		}
	}
	return l
}

func (l *imageLayers[V]) pass() (err error) {
	for _, f := range activationForms {
		kept := l.y
		if f.a.FromInput() {
			kept = l.x
		}
		err = errors.Join(err, Activate(l.y, l.x, f.a), ActivateBackward(l.dx, l.dy, kept, f.a))
	}
	add, input := GradsInto{Params: snug.Into{Beta: 1}}, GradsInto{Input: snug.Into{Beta: 1}}
	for _, s := range l.shapes {
		mean, rstd, n := l.mean[:6], l.rstd[:6], s.Batch*s.Positions
		count, merged := MergeMoments(l.m2, l.var1, 3, mean, l.sums[:6], 4)
		err = errors.Join(err, merged,
			GroupNorm(l.y, l.mean[:21], l.rstd[:21], l.x, l.gamma, l.gamma, s, 3, testEps, l.ws),
			GroupNormBackward(l.dx, l.dgamma, l.dbeta, l.dy, l.y, l.mean[:21], l.rstd[:21], l.gamma, s, 3, input, l.ws),
			ChannelNorm(l.y, l.mean[:n], l.rstd[:n], l.y, l.gamma, l.gamma, s, testEps),
			ChannelNormBackward(l.dx, l.dgamma, l.dbeta, l.dx, l.y, l.mean[:n], l.rstd[:n], l.gamma, s, add, l.ws),
			BatchMoments(mean, l.m2, l.y, s, l.ws),
			UpdateRunning(mean, l.var1, mean, l.m2, n+count, 0.1),
			BatchRstd(rstd, l.m2, n, testEps),
			BatchNorm(l.y, l.y, mean, rstd, l.gamma, l.gamma, s),
			BatchNormSums(l.sums, l.dgamma, l.dbeta, l.dx, l.y, mean, rstd, s, snug.Into{Beta: 1}, l.ws),
			BatchNormBackward(l.dx, l.dx, l.y, mean, rstd, l.sums, l.gamma, s, n, snug.Into{}))
	}
	l.loss = Loss{}
	for _, f := range elementLosses {
		loss, failed := ElementwiseBackward(f.c, l.dx, l.x, l.y, 0.5)
		l.loss, err = l.loss.Plus(loss), errors.Join(err, failed)
	}
	loss, failed := DiceBackward(Dice{Cols: 1700}, l.y, l.x, l.y, 0.5)
	l.loss = l.loss.Plus(loss)
	return errors.Join(err, failed)
}

//check:in race
func TestImageLayersDoNotDependOnWorkers(t *testing.T) {
	outputs := func(procs int) [][]float32 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		l := newImageLayers(random)
		require.NoError(t, l.pass())
		return [][]float32{l.y, l.dx, l.mean, l.rstd, l.m2, l.dgamma, l.dbeta, l.sums, {float32(l.loss.Sum)}}
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
