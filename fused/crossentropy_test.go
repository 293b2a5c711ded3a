package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in tiers arm64
func TestCrossEntropyGradientOfTheDefinition(t *testing.T) {
	rng := newRand(4)
	for _, c := range []CrossEntropy{{}, {Cap: 1.5}, {Smoothing: 0.25, ZLoss: 0.125}, {Cap: 2, Temperature: 0.5, Smoothing: 1}, {Temperature: 4, ZLoss: 3}} {
		c.Vocab, c.Cols, c.Weights = 5, 3, []float32{0.5, 1, 3}
		h := &head64{CrossEntropy: c, targets: []int32{2, -1, 4}}
		h.x, h.w = float64s(normals(rng, snug.F32, 9, 0, 1)), float64s(normals(rng, snug.F32, 15, 0, 1))
		h.bias = float64s(normals(rng, snug.F32, 5, 0, 1))
		loss := func() float64 { s, _ := h.loss(); return s }
		g := h.gradients(2, 0)
		for _, p := range []struct{ at, grads []float64 }{{h.x, g.dx}, {h.w, g.dw}, {h.bias, g.dbias}} {
			for i := range p.at {
				require.InDelta(t, 2*slope(loss, p.at, i), p.grads[i], 2e-7, c)
			}
		}
	}
}

// targetsWithGaps ignores about a third of the rows, by various numbers.
func targetsWithGaps(seed uint64, rows, vocab int) []int32 {
	rng := newRand(seed)
	t := tokens(rng, rows, vocab)
	for i := range t {
		switch rng.IntN(6) {
		case 0:
			t[i] = -1
		case 1:
			t[i] = -100
		}
	}
	return t
}

//check:in tiers arm64
func TestCrossEntropyAgainstDefinition(t *testing.T) {
	const scale = 0.125
	into := snug.Into{Alpha: 0.5, Beta: 0.25}
	for i, size := range []struct {
		rows, vocab, cols, chunk, tile int
		limit                          float32 // of the cap
		weighted                       bool
		more                           CrossEntropy // what else it has, with any bias
	}{
		{0, 3, 2, 0, 0, 0, false, CrossEntropy{}}, {1, 1, 1, 1, 0, 0, true, CrossEntropy{}}, {5, 7, 1, 2, 0, 0, false, CrossEntropy{}},
		{5, 64, 7, 8, 0, 2, false, CrossEntropy{}}, {130, 11, 3, 0, 0, 0, true, CrossEntropy{}}, {130, 5, 64, 129, 0, 30, true, CrossEntropy{}},
		{7, 701, 3, 3, 0, 0, false, CrossEntropy{}}, {5, 3, 129, 1, 0, 5, false, CrossEntropy{}}, {3, 4099, 1, 0, 0, 0, false, CrossEntropy{}},
		{3, 4099, 1, 0, 0, 1, true, CrossEntropy{}}, {0, 3, 2, 0, 2, 1, true, CrossEntropy{}}, {1, 2, 1, 0, 1, 0, false, CrossEntropy{}},
		{5, 7, 3, 2, 3, 0, true, CrossEntropy{}}, {5, 64, 129, 8, 63, 0.5, false, CrossEntropy{}}, {130, 11, 64, 0, 1, 0, false, CrossEntropy{}},
		{7, 701, 3, 3, 100, 3, true, CrossEntropy{}}, {3, 4099, 7, 0, 2050, 2, true, CrossEntropy{}}, {3, 40, 7, 0, 41, 0, false, CrossEntropy{}},
		{5, 64, 7, 2, 0, 0, true, CrossEntropy{Smoothing: 0.1}}, {7, 701, 3, 3, 100, 3, false, CrossEntropy{Smoothing: 1, Temperature: 2}},
		{3, 2055, 7, 0, 0, 0, true, CrossEntropy{ZLoss: 1e-2, Temperature: 0.5}}, {130, 11, 3, 0, 4, 0, false, CrossEntropy{ZLoss: 1, Smoothing: 0.3}},
		{0, 5, 3, 0, 2, 0, false, CrossEntropy{Smoothing: 0.3}}, {5, 1030, 3, 2, 0, 2, true, CrossEntropy{ZLoss: 0.1, Smoothing: 0.2, Temperature: 3}},
	} {
		for j, dt := range floatTypes {
			if !kerneltest.Taken(i+j, len(floatTypes)) {
				continue
			}
			t.Run(fmt.Sprint(size, dt), func(t *testing.T) {
				kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
					rows, vocab, cols := size.rows, size.vocab, size.cols
					c := size.more
					c.Vocab, c.Cols, c.Chunk, c.Tile, c.Cap = vocab, cols, size.chunk, size.tile, size.limit
					rng := newRand(5)
					x, w := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, vocab*cols, 0, 0.7)
					dw0, dbias0, bias := normals(rng, snug.F32, vocab*cols, 0, 1), normals(rng, snug.F32, vocab, 0, 1), normals(rng, dt, vocab, 0, 1)
					if size.weighted {
						c.Weights = someWeights(rows)
					}
					h := &head64{c, float64s(x), float64s(w), nil, targetsWithGaps(6, rows, vocab)}
					px, pw := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, w)
					pdx, pdw := kerneltest.PutFloats(t, p, dt, fill(rows*cols, float32(math.NaN()))), kerneltest.Put(t, p, dw0)
					pdbias := kerneltest.Put(t, p, dbias0)
					if size.more.Smoothing+size.more.ZLoss > 0 {
						h.bias, c.Bias = float64s(bias), kerneltest.PutFloats(t, p, dt, bias).View
					}
					c.DBias = pdbias.View
					ws := kerneltest.Put(t, p, fill(c.WorkspaceLen(rows), float32(math.NaN())))

					loss, err := CrossEntropyLoss(c, px.View, pw.View, h.targets, ws.View)
					require.NoError(t, err)
					want, bound := h.loss()
					require.InDelta(t, want, loss.Sum, bound)
					n, weight := 0, 0.0
					for i, target := range h.targets {
						if target >= 0 {
							n, weight = n+1, weight+h.weight(i)
						}
					}
					require.Equal(t, n, loss.Targets)
					require.Equal(t, weight, loss.Weight)

					same, err := CrossEntropyBackward(c, pdx.View, pdw.View, px.View, pw.View, h.targets, scale, into, ws.View)
					require.NoError(t, err)
					require.Equal(t, loss, same)
					requireGrads(t, h.gradients(scale, narrowing(p, dt)), dt, into, pdx.Get(), pdw.Get(), dw0, pdbias.Get(), dbias0)

					// dx in the place of x, w frozen.
					c.DBias = snug.View{}
					_, err = CrossEntropyBackward(c, px.View, snug.View{}, px.View, pw.View, h.targets, scale, into, ws.View)
					require.NoError(t, err)
					requireBits(t, "dx is x", pdx.Get(), px.Get())
				})
			})
		}
	}
}

// someWeights returns weights of rows, with zeros among them.
func someWeights(rows int) []float32 {
	w := make([]float32, rows)
	for i := range w {
		w[i] = float32(i%4) * 0.7
	}
	return w
}

func TestCrossEntropyAllIgnored(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		c := CrossEntropy{Vocab: 3, Cols: 2, Chunk: 2}
		put := func(v ...float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, v) }
		x, w, ws := put(1, 2, 3, 4, 5, 6), put(1, 2, 3, 4, 5, 6), put(make([]float32, c.WorkspaceLen(3))...)
		dx, dw := put(fill(6, 42)...), put(fill(6, 42)...)
		loss, err := CrossEntropyBackward(c, dx.View, dw.View, x.View, w.View, []int32{-1, -100, math.MinInt32}, 1, snug.Into{Beta: 0.5}, ws.View)
		require.NoError(t, err)
		require.Equal(t, Loss{}, loss)
		require.Equal(t, make([]float32, 6), dx.Get())
		require.Equal(t, fill(6, 21), dw.Get())
	})
}

func TestCrossEntropyNonFinite(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		put := func(v ...float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, v) }
		c := CrossEntropy{Vocab: 3, Cols: 1}
		w, ws := put(1, -1, 2), put(make([]float32, 30)...)
		for _, c.Tile = range []int{0, 1, 2} {
			for _, bad := range []float32{nan, inf, -inf} {
				x, dx, dw := put(1, bad, 2), put(0, 0, 0), put(0, 0, 0)
				loss, err := CrossEntropyBackward(c, dx.View, dw.View, x.View, w.View, []int32{0, 1, 2}, 1, snug.Into{}, ws.View)
				require.NoError(t, err)
				require.True(t, math.IsNaN(loss.Sum), "x = %v", bad)
				got := dx.Get()
				require.True(t, math.IsNaN(float64(got[1])))
				require.False(t, math.IsNaN(float64(got[0]+got[2])))
			}
			// Far logits: the probability of the target underflows, the loss does not.
			loss, err := CrossEntropyLoss(c, put(1e30).View, w.View, []int32{1}, ws.View)
			require.NoError(t, err)
			require.InDelta(t, 3e30, loss.Sum, 1e24)

			// Logits of -Inf have no probability, also where a tile has no others.
			for _, some := range [][]float32{{-inf, 1, 2}, {1, -inf, 2}, {-inf, -inf, 2}, {2, 1, -inf}} {
				loss, err := CrossEntropyLoss(c, put(1).View, put(some...).View, []int32{1}, ws.View)
				require.NoError(t, err)
				sum := 0.0
				for _, z := range some {
					sum += math.Exp(float64(z))
				}
				require.InDelta(t, math.Log(sum)-float64(some[1]), loss.Sum, 1e-6, "%v", some)
			}
			for _, some := range [][]float32{{nan, 1, 2}, {1, nan, 2}, {-inf, nan, 2}, {1, 2, nan}, {-inf, -inf, -inf}, {inf, 1, 2}, {2, 1, inf}} {
				loss, err := CrossEntropyLoss(c, put(1).View, put(some...).View, []int32{1}, ws.View)
				require.NoError(t, err)
				require.True(t, math.IsNaN(loss.Sum), "%v", some)
			}
			// A cap bounds what is infinite.
			c.Cap = 2
			loss, err = CrossEntropyLoss(c, put(1).View, put(inf, -inf, 0).View, []int32{1}, ws.View)
			require.NoError(t, err)
			require.InDelta(t, math.Log(math.Exp(2)+math.Exp(-2)+1)+2, loss.Sum, 1e-6)
			c.Cap = 0
		}
	})
}

// The sum is that of the rows' losses, which are in the workspace, in float64
// and in their order.
func TestCrossEntropySum(t *testing.T) {
	const rows = 260
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		rng := newRand(9)
		for _, scale := range []float64{1e-44, 1e-7, 1, 1e25} { // of the logits
			c := CrossEntropy{Vocab: 2, Cols: 1, Chunk: rows}
			x := normals(rng, snug.F32, rows, 0, 1)
			for i := range x {
				x[i] *= float32(scale * math.Exp2(float64(i%40)))
			}
			ws := kerneltest.Put(t, p, make([]float32, c.WorkspaceLen(rows)))
			px, pw := kerneltest.Put(t, p, x), kerneltest.Put(t, p, []float32{0, 1})
			targets := tokens(rng, rows, 2)
			loss, err := CrossEntropyLoss(c, px.View, pw.View, targets, ws.View)
			require.NoError(t, err)
			want := 0.0
			for _, l := range ws.Get()[2*rows : 3*rows] {
				want += float64(l)
			}
			require.Equal(t, want, loss.Sum, "logits of about %g", scale)
			c.Chunk = 100
			chunks, err := CrossEntropyLoss(c, px.View, pw.View, targets, ws.View)
			require.NoError(t, err)
			require.Equal(t, loss, chunks, "in chunks")
		}
	})
}

// The loss and dx are sums over the columns and the vocabulary, whose order
// no chunk changes; dw is a sum over chunks.
func TestCrossEntropyChunks(t *testing.T) {
	const rows, vocab, cols, scale = 130, 37, 9, 0.25
	rng := newRand(7)
	x, w := normals(rng, snug.F32, rows*cols, 0, 1), normals(rng, snug.F32, vocab*cols, 0, 1)
	h := &head64{CrossEntropy: CrossEntropy{Vocab: vocab, Cols: cols}, x: float64s(x), w: float64s(w), targets: targetsWithGaps(8, rows, vocab)}
	want := h.gradients(scale, 0)
	for _, tile := range []int{0, 1, 16, 36, 37} {
		var first Loss
		var firstDx []float32
		for chunk := 0; chunk <= rows+1; chunk++ {
			c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: chunk, Tile: tile}
			dx, dw, ws := make([]float32, rows*cols), make([]float32, vocab*cols), make([]float32, c.WorkspaceLen(rows))
			loss, err := CrossEntropyBackward(c, dx, dw, x, w, h.targets, scale, snug.Into{}, ws)
			require.NoError(t, err)
			if chunk == 0 {
				first, firstDx = loss, dx
			}
			require.Equal(t, first, loss, "chunk %d", chunk)
			requireBits(t, "dx", firstDx, dx)
			requireClose(t, "dw", want.dw, want.boundW, dw)
		}
	}
}

// A vocabulary is cut from 64 Ki classes on, unless Tile says otherwise; the results are the same but
// for rounding.
func TestCrossEntropyLargeVocabulary(t *testing.T) {
	const rows, cols = 3, 2
	for _, vocab := range []int{wholeVocab, wholeVocab + 1} {
		rng := newRand(7)
		x, w, targets := normals(rng, snug.F32, rows*cols, 0, 2), normals(rng, snug.F32, vocab*cols, 0, 2), []int32{int32(vocab - 1), 0, 40000}
		run := func(tile int) (Loss, []float32, []float32) {
			c := CrossEntropy{Vocab: vocab, Cols: cols, Tile: tile}
			dx, dw, ws := make([]float32, rows*cols), make([]float32, vocab*cols), make([]float32, c.WorkspaceLen(rows))
			loss, err := CrossEntropyBackward(c, dx, dw, x, w, targets, 1, snug.Into{}, ws)
			require.NoError(t, err)
			return loss, dx, dw
		}
		loss, dx, dw := run(0)
		want := vocab
		if vocab > wholeVocab {
			want = defaultTile
		}
		same, sameX, sameW := run(want)
		require.Equal(t, same, loss)
		requireBits(t, "dx", sameX, dx)
		requireBits(t, "dw", sameW, dw)
		whole, wholeX, wholeW := run(vocab)
		require.InEpsilon(t, whole.Sum, loss.Sum, 1e-6)
		require.InDeltaSlice(t, wholeX, dx, 1e-4)
		require.InDeltaSlice(t, wholeW, dw, 1e-6)
	}
}

// A weight multiplies what a row adds: 0 is as good as an ignored row, and 1 as none.
func TestCrossEntropyWeights(t *testing.T) {
	const rows, vocab, cols = 5, 9, 4
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		rng := newRand(11)
		x, w := kerneltest.Put(t, p, normals(rng, snug.F32, rows*cols, 0, 1)), kerneltest.Put(t, p, normals(rng, snug.F32, vocab*cols, 0, 1))
		for _, tile := range []int{0, 4} {
			run := func(weights []float32, targets ...int32) (Loss, []float32, []float32) {
				c := CrossEntropy{Vocab: vocab, Cols: cols, Tile: tile, Weights: weights, Chunk: 2}
				dx, dw := kerneltest.Put(t, p, fill(rows*cols, 42)), kerneltest.Put(t, p, fill(vocab*cols, 42))
				ws := kerneltest.Put(t, p, fill(c.WorkspaceLen(rows), 42))
				loss, err := CrossEntropyBackward(c, dx.View, dw.View, x.View, w.View, targets, 1, snug.Into{}, ws.View)
				require.NoError(t, err)
				return loss, dx.Get(), dw.Get()
			}
			plain, dx, dw := run(nil, 1, 2, 3, 4, 5)
			ones, onesX, onesW := run(fill(rows, 1), 1, 2, 3, 4, 5)
			require.Equal(t, plain, ones)
			requireBits(t, "dx", dx, onesX)
			requireBits(t, "dw", dw, onesW)
			require.Equal(t, plain.Sum/5, plain.Mean())

			left, dx, dw := run(nil, 1, -1, 3, -1, 5)
			zeros, zerosX, zerosW := run([]float32{1, 0, 1, 0, 1}, 1, 2, 3, 4, 5)
			require.Equal(t, Loss{left.Sum, 5, 3}, zeros)
			require.Equal(t, left.Mean(), zeros.Mean())
			require.InDeltaSlice(t, dx, zerosX, 0)
			require.InDeltaSlice(t, dw, zerosW, 0)

			twice, twiceX, _ := run(fill(rows, 2), 1, 2, 3, -1, 5)
			once, onceX, _ := run(nil, 1, 2, 3, -1, 5)
			require.Equal(t, Loss{2 * once.Sum, 4, 8}, twice)
			for i := range onceX {
				require.Equal(t, 2*onceX[i], twiceX[i])
			}
		}
	})
}

func TestLossMean(t *testing.T) {
	all := Loss{6, 3, 1.5}.Plus(Loss{2, 1, 0.5})
	require.Equal(t, Loss{8, 4, 2}, all)
	require.Equal(t, 4.0, all.Mean())
	require.Equal(t, 2.0, Loss{Sum: 8, Targets: 4}.Mean(), "the loss of a model that counts no weights")
	require.True(t, math.IsNaN(Loss{}.Mean()))
}

func TestCrossEntropyWorkspaceLen(t *testing.T) {
	c := CrossEntropy{Vocab: 100, Cols: 8}
	require.Equal(t, 128*105, c.WorkspaceLen(1000))
	require.Equal(t, 5*105, c.WorkspaceLen(5))
	c.Chunk = 3
	require.Equal(t, 3*105, c.WorkspaceLen(5))
	require.Zero(t, c.WorkspaceLen(0))
	require.Zero(t, c.WorkspaceLen(-1))
	require.Zero(t, CrossEntropy{}.WorkspaceLen(5))
	require.Zero(t, CrossEntropy{Vocab: 1, Cols: 1, Chunk: -1}.WorkspaceLen(5))
	require.Equal(t, math.MaxInt, CrossEntropy{Vocab: math.MaxInt, Cols: 1, Tile: math.MaxInt}.WorkspaceLen(5))
	require.Equal(t, math.MaxInt, CrossEntropy{Vocab: math.MaxInt, Cols: math.MaxInt}.WorkspaceLen(5))
	require.Equal(t, math.MaxInt, CrossEntropy{Vocab: math.MaxInt, Cols: 5, Tile: math.MaxInt - 1}.WorkspaceLen(5))
	require.Equal(t, 15, CrossEntropy{Vocab: 100, Cols: 8, Tile: 7}.Tiles())
	require.Equal(t, 1, CrossEntropy{Vocab: 64 << 10, Cols: 8}.Tiles())
	require.Equal(t, 65, CrossEntropy{Vocab: 64<<10 + 1, Cols: 8}.Tiles())
	require.Zero(t, CrossEntropy{}.Tiles())
	require.Equal(t, 3*(7+8+5), CrossEntropy{Vocab: 100, Cols: 8, Tile: 7}.WorkspaceLen(3))
	require.LessOrEqual(t, 4*CrossEntropy{Vocab: 256 << 10, Cols: 2304}.WorkspaceLen(1<<20), 2_000_000, "Gemma 2 2B")
	require.Equal(t, 128*(64<<10+5), CrossEntropy{Vocab: 64 << 10, Cols: 8}.WorkspaceLen(1000))
	require.Less(t, gemm.ScratchBytes, 1<<20, "CrossEntropyLoss states it")
	require.Less(t, max(gemm.SharedBytes, gemm.PairsBytes), 3<<20, "and this")
}

// Logits far apart leave no subnormal gradients, and the right ones.
//
//check:in tiers arm64 race
func TestCrossEntropyFlushesTinyGradients(t *testing.T) {
	const vocab = 300
	z, want := make([]float32, vocab), make([]float64, vocab)
	sum := 0.0
	for i := range z {
		z[i] = -float32(i) / 2
		want[i] = math.Exp(float64(z[i]))
		sum += want[i]
	}
	a := lossArgs{logitArgs: logitArgs{logits: z, rows: 1, vocab: vocab, scale: 1}, targets: []int32{3}, gradients: true, gradScale: 1e-3}
	loss := a.rowLoss(0, make([]float32, expBlock))
	require.InDelta(t, 1.5+math.Log(sum), loss, 1e-6)
	for i, g := range z {
		p := 1e-3 * want[i] / sum
		if i == 3 {
			p -= 1e-3
		}
		require.InDelta(t, p, g, 1e-9, "class %d", i)
		require.False(t, g != 0 && math.Abs(float64(g)) < 0x1p-126, "class %d is subnormal: %g", i, g)
	}
	require.Zero(t, z[vocab-1])
}
