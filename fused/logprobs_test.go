package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// probs64 is the definition of LogProbs in float64.
type probs64 struct {
	head64 // whose targets are not used
	rows   int
	of     []int32 // targets
}

func (h *probs64) k() int { return len(h.of) / max(1, h.rows) }

// slope returns what the derivatives of row i give.
func (h *probs64) slope(i int, dlogp, dlse []float32, dz, lse float64) slope64 {
	s := slope64{less: make([]float64, h.Vocab), dless: make([]float64, h.Vocab), dlse: 4 * u * math.Abs(lse)}
	size := 0.0
	if len(dlse) > 0 {
		s.factor = float64(dlse[i])
		size = math.Abs(s.factor)
	}
	for j, t := range h.of[i*h.k():][:h.k()] {
		if t < 0 {
			continue
		}
		c := float64(dlogp[i*h.k()+j])
		s.factor -= c
		size += math.Abs(c)
		s.less[t] -= c
		s.dless[t] += float64(h.k()+3) * u * math.Abs(c)
	}
	s.dfactor = float64(h.k()+3) * u * size
	return s
}

// results returns logp and lse, and their bounds.
func (h *probs64) results() (logp, lse, boundP, boundL []float64) {
	for i := range h.rows {
		z, dz, l := h.row(i)
		lse, boundL = append(lse, l), append(boundL, dz+200*u+2*u*math.Abs(l))
		for _, t := range h.of[i*h.k():][:h.k()] {
			p, d := 0.0, 0.0
			if t >= 0 {
				p, d = z[t]-l, 2*dz+200*u+2*u*(math.Abs(z[t]-l)+math.Abs(z[t])+math.Abs(l))
			}
			logp, boundP = append(logp, p), append(boundP, d)
		}
	}
	return logp, lse, boundP, boundL
}

func (h *probs64) gradients(dlogp, dlse []float32, narrow float64) grads64 {
	g := h.newGrads()
	for i := range h.rows {
		z, dz, lse := h.row(i)
		h.add(g, i, h.rows, z, dz, lse, h.slope(i, dlogp, dlse, dz, lse), narrow)
	}
	return g
}

//check:in tiers arm64
func TestLogProbsGradientOfTheDefinition(t *testing.T) {
	rng := newRand(4)
	for _, c := range []CrossEntropy{{}, {Cap: 1.5, Temperature: 2}} {
		c.Vocab, c.Cols = 5, 3
		h := &probs64{head64: head64{CrossEntropy: c}, rows: 2, of: []int32{2, 4, 2, -1, -3, 0}}
		h.x, h.w = float64s(normals(rng, snug.F32, 6, 0, 1)), float64s(normals(rng, snug.F32, 15, 0, 1))
		dlogp, dlse := normals(rng, snug.F32, 6, 0, 1), normals(rng, snug.F32, 2, 0, 1)
		loss := func() (sum float64) {
			logp, lse, _, _ := h.results()
			for i, p := range logp {
				sum += float64(dlogp[i]) * p
			}
			for i, l := range lse {
				sum += float64(dlse[i]) * l
			}
			return sum
		}
		g := h.gradients(dlogp, dlse, 0)
		for _, p := range []struct{ at, grads []float64 }{{h.x, g.dx}, {h.w, g.dw}} {
			for i := range p.at {
				require.InDelta(t, slope(loss, p.at, i), p.grads[i], 2e-7, c)
			}
		}
	}
}

//check:in tiers arm64
func TestLogProbsAgainstDefinition(t *testing.T) {
	into := snug.Into{Alpha: 0.5, Beta: 0.25}
	for i, size := range []struct {
		rows, vocab, cols, k, chunk, tile int
		limit, temperature                float32
		bias, noLse                       bool
	}{
		{0, 3, 2, 1, 0, 0, 0, 0, false, false}, {1, 1, 1, 1, 0, 0, 0, 0, true, false}, {5, 7, 1, 2, 2, 0, 0, 0, false, true},
		{5, 64, 7, 1, 8, 0, 2, 0, true, true}, {130, 11, 3, 3, 0, 4, 0, 0.5, false, false}, {3, 4099, 1, 1, 0, 0, 0, 0, false, true},
		{3, 4099, 7, 70, 2, 2050, 2, 3, true, false}, {7, 701, 3, 5, 3, 100, 3, 0, false, true}, {5, 3, 129, 0, 1, 0, 0, 0, false, false},
		{4, 5, 3, 1, 0, 2, 0, 0, false, true}, {130, 5, 64, 1, 129, 0, 30, 2, true, true},
	} {
		for j, dt := range floatTypes {
			if !kerneltest.Taken(i+j, len(floatTypes)) {
				continue
			}
			t.Run(fmt.Sprint(size, dt), func(t *testing.T) {
				kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
					rows, vocab, cols := size.rows, size.vocab, size.cols
					c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: size.chunk, Tile: size.tile, Cap: size.limit, Temperature: size.temperature}
					rng := newRand(5)
					x, w := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, vocab*cols, 0, 0.7)
					dw0, dbias0, bias := normals(rng, snug.F32, vocab*cols, 0, 1), normals(rng, snug.F32, vocab, 0, 1), normals(rng, dt, vocab, 0, 1)
					h := &probs64{head64{CrossEntropy: c, x: float64s(x), w: float64s(w)}, rows, targetsWithGaps(6, rows*size.k, vocab)}
					if size.bias {
						h.bias, c.Bias = float64s(bias), kerneltest.PutFloats(t, p, dt, bias).View
					}
					dlogp, dlse := normals(rng, snug.F32, rows*size.k, 0, 1), normals(rng, snug.F32, rows, 0, 1)
					put := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, x) }
					px, pw := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, w)
					logp, lse, ws := put(fill(len(h.of), untouched)), put(fill(rows, untouched)), put(fill(c.WorkspaceLen(rows), float32(math.NaN())))
					require.NoError(t, LogProbs(c, logp.View, lse.View, px.View, pw.View, h.of, ws.View))
					wantP, wantL, boundP, boundL := h.results()
					requireClose(t, "logp", wantP, boundP, logp.Get())
					requireClose(t, "lse", wantL, boundL, lse.Get())

					pdx, pdw, pdbias := kerneltest.PutFloats(t, p, dt, fill(rows*cols, float32(math.NaN()))), put(dw0), put(dbias0)
					pdlogp, pdlse := put(dlogp), put(dlse).View
					if size.noLse {
						dlse, pdlse = nil, snug.View{}
					}
					c.DBias = pdbias.View
					require.NoError(t, LogProbsBackward(c, pdx.View, pdw.View, pdlogp.View, pdlse, lse.View, px.View, pw.View, h.of, into, ws.View))
					requireGrads(t, h.gradients(dlogp, dlse, narrowing(p, dt)), dt, into, pdx.Get(), pdw.Get(), dw0, pdbias.Get(), dbias0)

					// dx in the place of x, w frozen.
					c.DBias = snug.View{}
					require.NoError(t, LogProbsBackward(c, px.View, snug.View{}, pdlogp.View, pdlse, lse.View, px.View, pw.View, h.of, into, ws.View))
					requireBits(t, "dx is x", pdx.Get(), px.Get())
				})
			})
		}
	}
}

// With the derivative of the loss, -1/rows for each row, the gradients are those of the cross-entropy.
func TestLogProbsAreTheCrossEntropy(t *testing.T) {
	const rows, vocab, cols = 37, 300, 16
	rng := newRand(3)
	x, w, targets := normals(rng, snug.F32, rows*cols, 0, 1), normals(rng, snug.F32, vocab*cols, 0, 1), targetsWithGaps(4, rows, vocab)
	for _, tile := range []int{0, 64} {
		c := CrossEntropy{Vocab: vocab, Cols: cols, Tile: tile}
		ws := make([]float32, c.WorkspaceLen(rows))
		wantX, wantW, dx, dw := make([]float32, rows*cols), make([]float32, vocab*cols), make([]float32, rows*cols), make([]float32, vocab*cols)
		loss, err := CrossEntropyBackward(c, wantX, wantW, x, w, targets, 0.25, snug.Into{}, ws)
		require.NoError(t, err)
		logp, lse := make([]float32, rows), make([]float32, rows)
		require.NoError(t, LogProbs(c, logp, lse, x, w, targets, ws))
		sum := 0.0
		for _, p := range logp {
			sum -= float64(p)
		}
		require.InEpsilon(t, loss.Sum, sum, 1e-6)
		require.NoError(t, LogProbsBackward(c, dx, dw, fill(rows, -0.25), nil, lse, x, w, targets, snug.Into{}, ws))
		require.InDeltaSlice(t, wantX, dx, 1e-5)
		require.InDeltaSlice(t, wantW, dw, 1e-5)
	}
}

// A row whose targets are ignored has no gradient, whatever its logits and derivatives are.
func TestLogProbsIgnored(t *testing.T) {
	nan := float32(math.NaN())
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(v ...float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, v) }
		for _, tile := range []int{0, 1} {
			c := CrossEntropy{Vocab: 3, Cols: 1, Tile: tile}
			x, w, ws := put(1, nan, 2), put(1, -1, 2), put(fill(c.WorkspaceLen(3), nan)...)
			logp, lse, dx := put(7, 7, 7), put(7, 7, 7), put(7, 7, 7)
			targets := []int32{0, -1, 2}
			require.NoError(t, LogProbs(c, logp.View, lse.View, x.View, w.View, targets, ws.View))
			require.Zero(t, logp.Get()[1])
			require.True(t, math.IsNaN(float64(lse.Get()[1])))
			require.NoError(t, LogProbsBackward(c, dx.View, snug.View{}, put(1, nan, 1).View, snug.View{}, lse.View, x.View, w.View, targets, snug.Into{}, ws.View))
			require.Zero(t, dx.Get()[1])
			require.NotZero(t, dx.Get()[0]*dx.Get()[2])
		}
	})
}

// The workspace of the largest heads.
func TestLogProbsMemory(t *testing.T) {
	c := CrossEntropy{Vocab: 131072, Cols: 4096}
	require.Less(t, 4*c.WorkspaceLen(65536), 16<<20)
	require.Less(t, 4*DistillWorkspaceLen(c, c, 65536), 16<<20)
}
