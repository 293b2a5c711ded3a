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

// head64 is the definition of CrossEntropy in float64, with the bounds that
// the float32 arithmetic must keep.
type head64 struct {
	vocab, cols int
	x, w        []float64
	targets     []int32
}

// row returns the logits of row i, the largest error of a logit, and the log
// of the sum of their exponentials.
func (h *head64) row(i int) (z []float64, dz, lse float64) {
	peak := math.Inf(-1)
	for v := range h.vocab {
		var s, size float64
		for c := range h.cols {
			p := h.x[i*h.cols+c] * h.w[v*h.cols+c]
			s, size = s+p, size+math.Abs(p)
		}
		z, dz, peak = append(z, s), max(dz, float64(h.cols+1)*u*size), max(peak, s)
	}
	for _, v := range z {
		lse += math.Exp(v - peak)
	}
	return z, dz, peak + math.Log(lse)
}

// loss returns the sum of the losses and its bound: each logit's error counts
// twice, as the target and in the sum, whose own error is below 200u; and the
// loss of a row is rounded to float32.
func (h *head64) loss() (total, bound float64) {
	for i, t := range h.targets {
		if t < 0 {
			continue
		}
		z, dz, lse := h.row(i)
		loss := lse - z[t]
		total += loss
		bound += 2*dz + 200*u + u*(lse-z[t]) + 2*u*math.Abs(lse)
	}
	return total, bound
}

// gradients returns dx and dw and their bounds, before the rounding of dx.
// narrow is the relative error of rounding the logits' gradients.
func (h *head64) gradients(scale, narrow float64) (dx, dw, boundX, boundW []float64) {
	dx, dw = make([]float64, len(h.x)), make([]float64, len(h.w))
	boundX, boundW = make([]float64, len(h.x)), make([]float64, len(h.w))
	for i, t := range h.targets {
		if t < 0 {
			continue
		}
		z, dz, lse := h.row(i)
		for v := range z {
			p := math.Exp(z[v] - lse)
			g := scale * p
			// The relative error of p, then of the one-hot's subtraction.
			d := math.Abs(scale) * p * (2*dz + 200*u + 2*u*math.Abs(z[v]-lse))
			if v == int(t) {
				g -= scale
				d += u * math.Abs(scale)
			}
			d += narrow * math.Abs(g)
			for c := range h.cols {
				x, w := h.x[i*h.cols+c], h.w[v*h.cols+c]
				dx[i*h.cols+c] += g * w
				dw[v*h.cols+c] += g * x
				boundX[i*h.cols+c] += (d + float64(h.vocab+1)*u*math.Abs(g)) * math.Abs(w)
				boundW[v*h.cols+c] += (d + float64(2*len(h.targets)+2)*u*math.Abs(g)) * math.Abs(x)
			}
		}
	}
	return dx, dw, boundX, boundW
}

// narrowing is the relative error of the gradients of logits for x and w of dt.
func narrowing(p kerneltest.Backend, dt snug.DType) float64 {
	if dt == snug.BF16 && (onGPU(p) || gemm.HasPairs()) {
		return 0x1p-8
	}
	return 0
}

func TestCrossEntropyGradientOfTheDefinition(t *testing.T) {
	rng := newRand(4)
	h := &head64{vocab: 5, cols: 3, targets: []int32{2, -1, 4}}
	h.x, h.w = float64s(normals(rng, snug.F32, 9, 0, 1)), float64s(normals(rng, snug.F32, 15, 0, 1))
	loss := func() float64 { s, _ := h.loss(); return s }
	dx, dw, _, _ := h.gradients(2, 0)
	for i := range dx {
		require.InDelta(t, 2*slope(loss, h.x, i), dx[i], 1e-8)
	}
	for i := range dw {
		require.InDelta(t, 2*slope(loss, h.w, i), dw[i], 1e-8)
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

func TestCrossEntropyAgainstDefinition(t *testing.T) {
	const scale = 0.125
	into := snug.Into{Alpha: 0.5, Beta: 0.25}
	for _, size := range []struct{ rows, vocab, cols, chunk int }{
		{0, 3, 2, 0}, {1, 1, 1, 1}, {5, 7, 1, 2}, {5, 64, 7, 8}, {130, 11, 3, 0}, {130, 5, 64, 129}, {7, 701, 3, 3}, {5, 3, 129, 1}, {3, 4099, 1, 0},
	} {
		for _, dt := range floatTypes {
			t.Run(fmt.Sprint(size, dt), func(t *testing.T) {
				kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
					rows, vocab, cols := size.rows, size.vocab, size.cols
					c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: size.chunk}
					rng := newRand(5)
					x, w := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, vocab*cols, 0, 0.7)
					dw0 := normals(rng, snug.F32, vocab*cols, 0, 1)
					h := &head64{vocab, cols, float64s(x), float64s(w), targetsWithGaps(6, rows, vocab)}
					px, pw := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, w)
					pdx, pdw := kerneltest.PutFloats(t, p, dt, fill(rows*cols, float32(math.NaN()))), kerneltest.Put(t, p, dw0)
					ws := kerneltest.Put(t, p, fill(c.WorkspaceLen(rows), float32(math.NaN())))

					loss, err := CrossEntropyLoss(c, px.View, pw.View, h.targets, ws.View)
					require.NoError(t, err)
					want, bound := h.loss()
					require.InDelta(t, want, loss.Sum, bound)
					n := 0
					for _, target := range h.targets {
						if target >= 0 {
							n++
						}
					}
					require.Equal(t, n, loss.Targets)

					same, err := CrossEntropyBackward(c, pdx.View, pdw.View, px.View, pw.View, h.targets, scale, into, ws.View)
					require.NoError(t, err)
					require.Equal(t, loss, same)
					dx, dw, boundX, boundW := h.gradients(scale, narrowing(p, dt))
					for i, d := range boundX {
						boundX[i] = d + roundoff(dt, math.Abs(dx[i])+d)
					}
					requireClose(t, "dx", dx, boundX, pdx.Get())
					for i, d := range boundW {
						boundW[i] = intoBound(into, dw0[i], dw[i], d) + u*math.Abs(float64(dw0[i]))
						dw[i] = into64(into, dw0[i], dw[i])
					}
					requireClose(t, "dw", dw, boundW, pdw.Get())

					// dx in the place of x, w frozen.
					_, err = CrossEntropyBackward(c, px.View, snug.View{}, px.View, pw.View, h.targets, scale, into, ws.View)
					require.NoError(t, err)
					requireBits(t, "dx is x", pdx.Get(), px.Get())
				})
			})
		}
	}
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
		w, ws := put(1, -1, 2), put(make([]float32, c.WorkspaceLen(3))...)
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
			for _, l := range ws.Get()[2*rows:] {
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
	h := &head64{vocab, cols, float64s(x), float64s(w), targetsWithGaps(8, rows, vocab)}
	_, wantW, _, boundW := h.gradients(scale, 0)
	var first Loss
	var firstDx []float32
	for chunk := 0; chunk <= rows+1; chunk++ {
		c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: chunk}
		dx, dw, ws := make([]float32, rows*cols), make([]float32, vocab*cols), make([]float32, c.WorkspaceLen(rows))
		loss, err := CrossEntropyBackward(c, dx, dw, x, w, h.targets, scale, snug.Into{}, ws)
		require.NoError(t, err)
		if chunk == 0 {
			first, firstDx = loss, dx
		}
		require.Equal(t, first, loss, "chunk %d", chunk)
		requireBits(t, "dx", firstDx, dx)
		requireClose(t, "dw", wantW, boundW, dw)
	}
}

func TestCrossEntropyWorkspaceLen(t *testing.T) {
	c := CrossEntropy{Vocab: 100, Cols: 8}
	require.Equal(t, 128*101, c.WorkspaceLen(1000))
	require.Equal(t, 5*101, c.WorkspaceLen(5))
	c.Chunk = 3
	require.Equal(t, 3*101, c.WorkspaceLen(5))
	require.Zero(t, c.WorkspaceLen(0))
	require.Zero(t, c.WorkspaceLen(-1))
	require.Zero(t, CrossEntropy{}.WorkspaceLen(5))
	require.Zero(t, CrossEntropy{Vocab: 1, Cols: 1, Chunk: -1}.WorkspaceLen(5))
	require.Equal(t, math.MaxInt, CrossEntropy{Vocab: math.MaxInt, Cols: 1}.WorkspaceLen(5))
	require.Less(t, gemm.ScratchBytes, 1<<20, "CrossEntropyLoss states it")
	require.Less(t, max(gemm.SharedBytes, gemm.PairsBytes), 3<<20, "and this")
}

// Logits far apart leave no subnormal gradients, and the right ones.
func TestCrossEntropyFlushesTinyGradients(t *testing.T) {
	const vocab = 300
	z, want := make([]float32, vocab), make([]float64, vocab)
	sum := 0.0
	for i := range z {
		z[i] = -float32(i) / 2
		want[i] = math.Exp(float64(z[i]))
		sum += want[i]
	}
	a := softmaxArgs{vocab: vocab, gradients: true, gradScale: 1e-3}
	loss := a.row(z, 3)
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
