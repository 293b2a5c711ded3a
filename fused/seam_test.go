package fused

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// layers is one pass through every function, over memory made once.
type layers[V snug.Vector, L snug.Vector32] struct {
	x, y, z, dx, dy, table, gamma, beta, pos      V
	mean, rstd, dgamma, dbeta, dtable, angles, ws L
	logp, lse                                     L
	weights, dweights, sums                       L
	experts, byRow, pairs, starts                 []int32
	aux                                           []float32
	router                                        Router
	ids, positions                                []int32
	config, tiled, mixed                          CrossEntropy
	loss                                          Loss
}

const layerRows, layerCols, layerVocab = 300, 130, 70

func newLayers[V snug.Vector, L snug.Vector32](low func(n int) V, f32 func(n int) L) *layers[V, L] {
	const n = layerRows * layerCols
	l := &layers[V, L]{
		x: low(n), y: low(n), z: low(n), dx: low(n), dy: low(n), table: low(layerVocab * layerCols),
		gamma: low(layerCols), beta: low(layerCols), pos: low(layerRows * layerCols),
		mean: f32(layerRows), rstd: f32(layerRows), dgamma: f32(layerCols), dbeta: f32(layerCols),
		dtable: f32(layerVocab * layerCols), angles: f32(layerVocab * 20),
		ids: tokens(newRand(9), layerRows, layerVocab), positions: tokens(newRand(10), layerRows, layerRows),
		config: CrossEntropy{Vocab: layerVocab, Cols: layerCols},
		tiled:  CrossEntropy{Vocab: layerVocab, Cols: layerCols, Tile: 32, Cap: 20, Weights: someWeights(layerRows)},
		mixed:  CrossEntropy{Vocab: layerVocab, Cols: layerCols, Tile: 64, Temperature: 2, Smoothing: 0.1, ZLoss: 1e-4, Bias: snug.ViewOf(low(layerVocab)), DBias: snug.ViewOf(f32(layerVocab))},
		logp:   f32(layerRows), lse: f32(layerRows),
		router:  Router{Experts: layerCols, Chosen: 3, Sigmoid: true, Normalize: true},
		weights: f32(3 * layerRows), dweights: f32(3 * layerRows), sums: f32(layerCols), aux: random(layerCols),
		experts: make([]int32, 3*layerRows), byRow: make([]int32, 3*layerRows), pairs: make([]int32, 3*layerRows), starts: make([]int32, layerCols+1),
	}
	l.ws = f32(max(DistillWorkspaceLen(l.config, l.config, layerRows), DistillWorkspaceLen(l.tiled, l.config, layerRows), LayerNormWorkspaceLen(layerRows, layerCols)))
	return l
}

func (l *layers[V, L]) pass() error {
	add := snug.Into{Beta: 1}
	rotary := RotaryOptions{Heads: 5, Dim: layerCols / 5, Turned: 20, Interleaved: true}
	mask := DropoutMask{P: 0.1, Seed: 3, Tensor: 4}
	forward := errors.Join(
		Embedding(l.x, l.table, l.ids, l.pos, l.positions, layerCols),
		Rotary(l.x, l.angles, l.ids, rotary),
		LayerNorm(l.y, l.mean, l.rstd, l.x, l.gamma, l.beta, testEps),
		BiasGELU(l.z, l.y, l.beta),
		BiasGELUErf(l.z, l.z, l.beta),
		BiasAdd(l.z, l.z, l.beta),
		SwiGLU(l.z, l.z, l.y),
		GeGLU(l.z, l.z, l.y),
		Dropout(l.z, l.z, mask),
		Add(l.z, l.z, l.x),
	)
	var sum Loss
	for _, c := range [...]CrossEntropy{l.config, l.tiled, l.mixed} {
		evaluated, err := CrossEntropyLoss(c, l.z, l.table, l.ids, l.ws)
		if err != nil {
			return err
		}
		l.loss, err = CrossEntropyBackward(c, l.dx, l.dtable, l.z, l.table, l.ids, 0.5, add, l.ws)
		if err != nil {
			return err
		}
		if evaluated != l.loss {
			return fmt.Errorf("loss %v without gradients, %v with", evaluated, l.loss)
		}
		sum = sum.Plus(l.loss)
	}
	for _, c := range [...]CrossEntropy{l.config, l.tiled} {
		away, err := DistillBackward(c, l.config, l.dx, l.dtable, l.z, l.table, l.y, l.table, 0.5, add, l.ws)
		if err != nil {
			return err
		}
		sum = sum.Plus(away)
		c.Weights = nil
		if err := LogProbs(c, l.logp, l.lse, l.z, l.table, l.ids, l.ws); err != nil {
			return err
		}
		if err := LogProbsBackward(c, l.dx, l.dtable, l.logp, l.logp, l.lse, l.z, l.table, l.ids, add, l.ws); err != nil {
			return err
		}
	}
	l.loss = sum
	if err := l.mix(); err != nil {
		return err
	}
	return errors.Join(forward,
		ClampedSwiGLU(l.z, l.z, l.y, 1.7, 2),
		ClampedSwiGLUBackward(l.dy, l.dx, l.dx, l.y, l.x, 1.7, 2),
		DropoutBackward(l.dx, l.dx, mask),
		GeGLUBackward(l.dy, l.dx, l.dx, l.y, l.x),
		SwiGLUBackward(l.dy, l.dx, l.dx, l.y, l.x),
		BiasGELUBackward(l.dx, l.dbeta, l.dx, l.y, l.beta, add, l.ws),
		BiasGELUErfBackward(l.dx, l.dbeta, l.dx, l.y, l.beta, add, l.ws),
		BiasAddBackward(l.dbeta, l.dx, add, l.ws),
		LayerNormBackward(l.dx, l.dgamma, l.dbeta, l.dx, l.x, l.mean, l.rstd, l.gamma, GradsInto{Params: add}, l.ws),
		RMSNorm(l.y, l.rstd, l.x, l.gamma, testEps),
		RMSNormBackward(l.dx, l.dgamma, l.dy, l.x, l.rstd, l.gamma, GradsInto{Input: add, Params: add}, l.ws),
		RotaryBackward(l.dx, l.angles, l.ids, rotary),
		EmbeddingBackward(l.dtable, l.dx, l.ids, layerCols, snug.Into{Beta: 1}),
	)
}

// mix is a mixture of experts without a product, whose logits are x.
func (l *layers[V, L]) mix() error {
	err := errors.Join(
		Route(l.router, l.experts, l.weights, l.x, l.aux),
		Group(l.byRow, l.pairs, l.starts, l.experts, 3),
		AddScores(l.router, l.sums, l.x, l.ws),
	)
	own := l.pairs[l.starts[0]:l.starts[1]]
	x, dx := snug.ViewOf(l.x), snug.ViewOf(l.dy)
	inputs, outputs := span(x, 0, len(own)*layerCols), span(dx, 0, len(own)*layerCols)
	return errors.Join(err,
		AddRows(snug.ViewOf(l.z), inputs, snug.ViewOf(l.weights), own, 3, layerCols),
		AddRowsBackward(outputs, snug.ViewOf(l.dweights), snug.ViewOf(l.z), inputs, snug.ViewOf(l.weights), own, 3, layerCols),
		RouteBackward(l.router, l.dx, l.dweights, l.x, l.experts, l.aux),
	)
}

// random returns n numbers that depend on n only.
func random(n int) []float32 { return normals(newRand(uint64(n)), snug.F32, n, 0, 1) }

func randomBF16(n int) []snug.BFloat16 {
	v := make([]snug.BFloat16, n)
	for i, x := range random(n) {
		v[i] = snug.ToBFloat16(x)
	}
	return v
}

//check:in race
func TestResultsDoNotDependOnWorkers(t *testing.T) {
	outputs := func(procs int) [][]float32 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		l := newLayers(random, random)
		require.NoError(t, l.pass())
		return [][]float32{l.x, l.y, l.z, l.dx, l.dy, l.mean, l.rstd, l.dgamma, l.dbeta, l.dtable, l.logp, l.lse, l.weights, l.dweights, l.sums, l.mixed.DBias.Float32s(), {float32(l.loss.Sum)}}
	}
	want := outputs(1)
	for _, procs := range []int{2, 5} {
		for i, got := range outputs(procs) {
			requireBits(t, "outputs", want[i], got)
		}
	}
}

func TestPassAllocatesNothing(t *testing.T) {
	f32, bf16 := newLayers(random, random), newLayers(randomBF16, random)
	for name, pass := range map[string]func() error{"f32": f32.pass, "bf16": bf16.pass} {
		var err error
		t.Run(name, func(t *testing.T) { kerneltest.NoAllocs(t, func() { err = errors.Join(err, pass()) }) })
		require.NoError(t, err)
	}
}

// A pass over arrays gives the bits of a pass over slices, or on a GPU those of
// another pass there, and leaves no memory behind on the device.
//
//check:in ordered
//check:not checked
func TestArraysOnDevices(t *testing.T) {
	onHost := newLayers(randomBF16, random)
	require.NoError(t, onHost.pass())
	for _, p := range kerneltest.Backends(t)[1:] {
		t.Run(p.Name, func(t *testing.T) {
			want := onHost
			if onGPU(p) {
				other := layersOn(t, p.Dev)
				require.NoError(t, other.pass())
				require.InEpsilon(t, onHost.loss.Sum, other.loss.Sum, 1e-4)
				want = &layers[[]snug.BFloat16, []float32]{
					dx: hostOf(t, other.dx), z: hostOf(t, other.z), dgamma: hostOf(t, other.dgamma),
					dbeta: hostOf(t, other.dbeta), dtable: hostOf(t, other.dtable), loss: other.loss,
				}
			}
			got := layersOn(t, p.Dev)
			before, _, err := p.Dev.Memory()
			require.NoError(t, err)
			require.NoError(t, got.pass())
			require.NoError(t, p.Dev.Sync())
			after, _, err := p.Dev.Memory()
			require.NoError(t, err)
			require.Equal(t, before, after)
			require.Equal(t, want.loss, got.loss)
			requireSame(t, want.dx, got.dx)
			requireSame(t, want.z, got.z)
			requireSame(t, want.dgamma, got.dgamma)
			requireSame(t, want.dbeta, got.dbeta)
			requireSame(t, want.dtable, got.dtable)
		})
	}
}

func layersOn(t *testing.T, dev *snug.Device) *layers[snug.Array[snug.BFloat16], snug.Array[float32]] {
	return newLayers(
		func(n int) snug.Array[snug.BFloat16] { return arrayOf(t, dev, randomBF16(n)) },
		func(n int) snug.Array[float32] { return arrayOf(t, dev, random(n)) })
}

func arrayOf[T snug.Element](t *testing.T, dev *snug.Device, vals []T) snug.Array[T] {
	a, err := snug.Make[T](dev, len(vals))
	require.NoError(t, err)
	require.NoError(t, a.CopyIn(vals))
	return a
}

func hostOf[T snug.Element](t *testing.T, a snug.Array[T]) []T {
	t.Helper()
	got := make([]T, a.Len())
	require.NoError(t, a.CopyOut(got))
	return got
}

func requireSame[T snug.Element](t *testing.T, want []T, a snug.Array[T]) {
	t.Helper()
	require.Equal(t, want, hostOf(t, a))
}

// The indices of a queued kernel are its own: the caller may reuse its slices.
func TestIndicesAreNotKept(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	table := arrayOf(t, dev, []float32{1, 2, 3})
	var outs []snug.Array[float32]
	ids := []int32{0}
	for i := range int32(3) {
		ids[0] = i
		out := arrayOf(t, dev, []float32{0})
		require.NoError(t, Embedding(out, table, ids, snug.Array[float32]{}, nil, 1))
		outs = append(outs, out)
	}
	for i, out := range outs {
		requireSame(t, []float32{float32(i + 1)}, out)
	}
}

// Jobs have the names under which a backend finds their kernels.
func TestKernelNames(t *testing.T) {
	require.Equal(t, "fused.layernorm", new(layerNormJob).Kernel())
	require.Equal(t, "fused.layernorm_backward", new(layerNormBackwardJob).Kernel())
	require.Equal(t, "fused.rmsnorm", new(rmsNormJob).Kernel())
	require.Equal(t, "fused.rmsnorm_backward", new(rmsNormBackwardJob).Kernel())
	require.Equal(t, "fused.swiglu", new(gatedJob).Kernel())
	require.Equal(t, "fused.geglu", (&gatedJob{act: activation{gate: tanhGate}}).Kernel())
	require.Equal(t, "fused.swiglu_backward", new(gatedBackwardJob).Kernel())
	require.Equal(t, "fused.geglu_backward", (&gatedBackwardJob{act: activation{gate: tanhGate}}).Kernel())
	require.Equal(t, "fused.clamped_swiglu", (&gatedJob{act: activation{gate: clampedGate}}).Kernel())
	require.Equal(t, "fused.clamped_swiglu_backward", (&gatedBackwardJob{act: activation{gate: clampedGate}}).Kernel())
	require.Equal(t, "fused.route", new(routeJob).Kernel())
	require.Equal(t, "fused.route_backward", new(routeBackwardJob).Kernel())
	require.Equal(t, "fused.add_scores", new(scoresJob).Kernel())
	require.Equal(t, "fused.add_rows", new(addRowsJob).Kernel())
	require.Equal(t, "fused.add_rows_backward", new(addRowsBackwardJob).Kernel())
	require.Equal(t, "fused.rotary", new(rotaryJob).Kernel())
	require.Equal(t, "fused.dropout", new(dropoutJob).Kernel())
	require.Equal(t, "fused.bias_gelu", new(biasGELUJob).Kernel())
	require.Equal(t, "fused.bias_gelu_backward", new(biasGELUBackwardJob).Kernel())
	require.Equal(t, "fused.bias_gelu_erf", (&biasGELUJob{form: geluErf}).Kernel())
	require.Equal(t, "fused.bias_gelu_erf_backward", (&biasGELUBackwardJob{form: geluErf}).Kernel())
	require.Equal(t, "fused.bias_add", (&biasGELUJob{form: noGELU}).Kernel())
	require.Equal(t, "fused.bias_add_backward", new(biasAddBackwardJob).Kernel())
	require.Equal(t, "fused.add", new(addJob).Kernel())
	require.Equal(t, "fused.embedding", new(embeddingJob).Kernel())
	require.Equal(t, "fused.embedding_backward", new(embeddingBackwardJob).Kernel())
	require.Equal(t, "fused.cross_entropy_loss", new(crossEntropyJob).Kernel())
	require.Equal(t, "fused.cross_entropy_backward", (&crossEntropyJob{gradients: true}).Kernel())
	require.Equal(t, "fused.log_probs", new(logProbsJob).Kernel())
	require.Equal(t, "fused.log_probs_backward", (&logProbsJob{gradients: true}).Kernel())
	require.Equal(t, "fused.distill", new(distillJob).Kernel())
	require.Equal(t, "fused.distill_backward", (&distillJob{gradients: true}).Kernel())
}

// scarce is an opaque device on which only so many allocations succeed.
type scarce struct {
	driver.Driver
	left int
}

func (*scarce) Count() (int, error) { return 1, nil }

func (s *scarce) Open(index int) (driver.Driver, error) {
	b, err := driver.Lookup("opaque")
	if err != nil {
		return nil, err
	}
	s.Driver, err = b.Open(index)
	return s, err
}

func (s *scarce) Alloc(size int) (driver.Mem, error) {
	if s.left--; s.left < 0 {
		return driver.Mem{}, driver.ErrNoMemory
	}
	return s.Driver.Alloc(size)
}

var scarceDevice = new(scarce)

// leave makes dev, the scarce device, refuse all but left allocations. When it refuses one, it frees what it keeps for
// calls.
func leave(t *testing.T, dev *snug.Device, left int) {
	scarceDevice.left = 0
	_, err := snug.Make[float32](dev, 1)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	scarceDevice.left = left
}

func init() { driver.Register("scarce", scarceDevice) }

// Without memory for the indices or the loss there is an error, and no leak.
func TestNoMemoryForIndices(t *testing.T) {
	dev, err := snug.Open("scarce:0")
	require.NoError(t, err)
	scarceDevice.left = 3
	x, w, ws := arrayOf(t, dev, []float32{0, 0}), arrayOf(t, dev, []float32{1, 2}), arrayOf(t, dev, make([]float32, 14))
	before, _, err := dev.Memory()
	require.NoError(t, err)
	ids, none, c := []int32{0, 1}, snug.Array[float32]{}, CrossEntropy{Vocab: 2, Cols: 1}

	for left := range 2 {
		leave(t, dev, left)
		_, err := CrossEntropyLoss(c, x, w, ids, ws)
		require.ErrorIs(t, err, snug.ErrNoMemory)
		leave(t, dev, left)
		require.ErrorIs(t, Embedding(x, w, ids, w, ids, 1), snug.ErrNoMemory)
	}
	for left := range 2 {
		leave(t, dev, left)
		require.ErrorIs(t, EmbeddingBackward(w, x, ids, 1, snug.Into{Beta: 1}), snug.ErrNoMemory)
	}
	require.NoError(t, dev.Sync())
	after, _, err := dev.Memory()
	require.NoError(t, err)
	require.Equal(t, before, after)

	leave(t, dev, 2) // the backward pass borrows room to sort the tokens, too
	require.NoError(t, Embedding(x, w, ids, none, nil, 1))
	requireSame(t, []float32{1, 2}, x)
	for range 3 { // with the memory of the first
		require.NoError(t, EmbeddingBackward(w, x, ids, 1, snug.Into{Beta: 1}))
	}
	require.NoError(t, dev.Close())
}
