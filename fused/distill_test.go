package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// distill64 is the definition of Distill in float64.
type distill64 struct{ student, teacher head64 }

// row returns the divergence of row i without its weight, its bound, and the slopes of the student's logits for scale
// times the loss.
func (h *distill64) row(i int, scale float64) (kl, bound float64, s slope64) {
	z, dz, lse := h.student.row(i)
	y, dy, teacher := h.teacher.row(i)
	scale *= h.student.weight(i)
	s = slope64{factor: scale, dfactor: 3 * u * math.Abs(scale), less: make([]float64, len(z)), dless: make([]float64, len(z))}
	size := 0.0
	for v := range z {
		q := math.Exp(y[v] - teacher)
		kl += q * (y[v] - teacher - z[v] + lse)
		relative := 2*dy + 200*u + 2*u*math.Abs(y[v]-teacher)
		size += q * (dz + dy + (relative+300*u)*math.Abs(y[v]-z[v]))
		s.less[v] = scale * q
		s.dless[v] = math.Abs(s.less[v]) * (relative + 4*u)
	}
	return kl, 2*(dz+dy) + 400*u + size + 4*u*(math.Abs(lse)+math.Abs(teacher)), s
}

func (h *distill64) loss(rows int) (sum, bound float64) {
	for i := range rows {
		kl, d, _ := h.row(i, 1)
		w := h.student.weight(i)
		sum, bound = sum+w*kl, bound+w*d
	}
	return sum, bound
}

func (h *distill64) gradients(rows int, scale, narrow float64) grads64 {
	g := h.student.newGrads()
	for i := range rows {
		if h.student.weight(i) != 0 {
			z, dz, lse := h.student.row(i)
			_, _, s := h.row(i, scale)
			h.student.add(g, i, rows, z, dz, lse, s, narrow)
		}
	}
	return g
}

//check:in tiers arm64
func TestDistillGradientOfTheDefinition(t *testing.T) {
	rng := newRand(4)
	numbers := func(n int) []float64 { return float64s(normals(rng, snug.F32, n, 0, 1)) }
	for _, c := range []CrossEntropy{{}, {Cap: 1.5, Temperature: 2}} {
		c.Vocab, c.Cols, c.Weights = 5, 3, []float32{0.5, 2}
		h := &distill64{head64{CrossEntropy: c, x: numbers(6), w: numbers(15)}, head64{CrossEntropy: CrossEntropy{Vocab: 5, Cols: 2, Temperature: 2}, x: numbers(4), w: numbers(10)}}
		loss := func() float64 { s, _ := h.loss(2); return s }
		g := h.gradients(2, 3, 0)
		for _, p := range []struct{ at, grads []float64 }{{h.student.x, g.dx}, {h.student.w, g.dw}} {
			for i := range p.at {
				require.InDelta(t, 3*slope(loss, p.at, i), p.grads[i], 2e-7, c)
			}
		}
	}
}

//check:in tiers arm64
func TestDistillAgainstDefinition(t *testing.T) {
	const scale = 0.125
	into := snug.Into{Alpha: 0.5, Beta: 0.25}
	for n, size := range []struct {
		rows, vocab, cols, teacherCols, chunk, tile int
		limit, temperature                          float32
		weighted, bias                              bool
	}{
		{0, 3, 2, 1, 0, 0, 0, 0, false, false}, {1, 1, 1, 1, 0, 0, 0, 0, true, true}, {5, 7, 1, 2, 2, 0, 0, 0, false, false},
		{5, 64, 7, 3, 8, 0, 2, 0, true, true}, {130, 11, 3, 5, 0, 4, 0, 2, false, false}, {3, 4099, 1, 7, 0, 0, 0, 0, false, true},
		{3, 4099, 7, 3, 2, 2050, 2, 3, true, true}, {7, 701, 3, 64, 3, 100, 0, 0.5, true, false}, {5, 3, 129, 1, 1, 0, 0, 1, false, false},
	} {
		for i, dt := range floatTypes {
			if !kerneltest.Taken(n+i, len(floatTypes)) {
				continue
			}
			t.Run(fmt.Sprint(size, dt), func(t *testing.T) {
				kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
					rows, vocab, cols := size.rows, size.vocab, size.cols
					other := floatTypes[(i+size.cols)%3]
					student := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: size.chunk, Tile: size.tile, Cap: size.limit, Temperature: size.temperature}
					teacher := CrossEntropy{Vocab: vocab, Cols: size.teacherCols, Temperature: size.temperature, Cap: 2 * size.limit}
					if size.weighted {
						student.Weights = someWeights(rows)
					}
					rng := newRand(5)
					x, w := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, vocab*cols, 0, 0.7)
					tx, tw := normals(rng, other, rows*size.teacherCols, 0, 1), normals(rng, other, vocab*size.teacherCols, 0, 0.7)
					h := &distill64{head64{CrossEntropy: student, x: float64s(x), w: float64s(w)}, head64{CrossEntropy: teacher, x: float64s(tx), w: float64s(tw)}}
					dw0, dbias0 := normals(rng, snug.F32, vocab*cols, 0, 1), normals(rng, snug.F32, vocab, 0, 1)
					if size.bias {
						bias, tbias := normals(rng, dt, vocab, 0, 1), normals(rng, other, vocab, 0, 1)
						h.student.bias, h.teacher.bias = float64s(bias), float64s(tbias)
						student.Bias, teacher.Bias = kerneltest.PutFloats(t, p, dt, bias).View, kerneltest.PutFloats(t, p, other, tbias).View
					}
					px, pw := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, w)
					ptx, ptw := kerneltest.PutFloats(t, p, other, tx), kerneltest.PutFloats(t, p, other, tw)
					ws := kerneltest.Put(t, p, fill(DistillWorkspaceLen(student, teacher, rows), float32(math.NaN())))
					loss, err := Distill(student, teacher, px.View, pw.View, ptx.View, ptw.View, ws.View)
					require.NoError(t, err)
					want, bound := h.loss(rows)
					require.InDelta(t, want, loss.Sum, bound)
					if !size.weighted {
						require.Equal(t, Loss{loss.Sum, rows, float64(rows)}, loss)
					}

					pdx, pdw, pdbias := kerneltest.PutFloats(t, p, dt, fill(rows*cols, float32(math.NaN()))), kerneltest.Put(t, p, dw0), kerneltest.Put(t, p, dbias0)
					student.DBias = pdbias.View
					same, err := DistillBackward(student, teacher, pdx.View, pdw.View, px.View, pw.View, ptx.View, ptw.View, scale, into, ws.View)
					require.NoError(t, err)
					require.Equal(t, loss, same)
					requireGrads(t, h.gradients(rows, scale, narrowing(p, dt)), dt, into, pdx.Get(), pdw.Get(), dw0, pdbias.Get(), dbias0)

					// dx in the place of x, w frozen.
					student.DBias = snug.View{}
					_, err = DistillBackward(student, teacher, px.View, snug.View{}, px.View, pw.View, ptx.View, ptw.View, scale, into, ws.View)
					require.NoError(t, err)
					requireBits(t, "dx is x", pdx.Get(), px.Get())
				})
			})
		}
	}
}

// A model does not diverge from itself, and classes that the teacher excludes do not count.
func TestDistillEnds(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(v ...float32) snug.View { return kerneltest.Put(t, p, v).View }
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		for _, tile := range []int{0, 2} {
			c, teacher := CrossEntropy{Vocab: 3, Cols: 1, Tile: tile}, CrossEntropy{Vocab: 3, Cols: 1}
			x, w, ws := put(1, 2), put(1, -1, 2), put(fill(DistillWorkspaceLen(c, teacher, 2), nan)...)
			dx := kerneltest.Put(t, p, []float32{7, 7})
			loss, err := DistillBackward(c, teacher, dx.View, snug.View{}, x, w, x, w, 1, snug.Into{}, ws)
			require.NoError(t, err)
			require.InDelta(t, 0, loss.Sum, 1e-6)
			require.GreaterOrEqual(t, loss.Sum, 0.0)
			require.InDeltaSlice(t, []float32{0, 0}, dx.Get(), 1e-6)

			teacher.Bias = put(0, -inf, 0)
			loss, err = DistillBackward(c, teacher, dx.View, snug.View{}, x, w, x, w, 1, snug.Into{}, ws)
			require.NoError(t, err)
			want := 0.0
			for _, x := range []float64{1, 2} { // −log of the probability of the other two
				want += math.Log1p(math.Exp(-x) / (math.Exp(x) + math.Exp(2*x)))
			}
			require.InDelta(t, want, loss.Sum, 1e-6)
			require.False(t, math.IsNaN(float64(dx.Get()[0]+dx.Get()[1])))

			c.Weights = []float32{0, 1}
			loss, err = DistillBackward(c, teacher, dx.View, snug.View{}, put(nan, 2), w, x, w, 1, snug.Into{}, ws)
			require.NoError(t, err)
			require.Zero(t, dx.Get()[0])
			require.Equal(t, 1, loss.Targets)
			require.False(t, math.IsNaN(loss.Sum))
			loss, err = Distill(c, teacher, put(1, nan), w, x, w, ws)
			require.NoError(t, err)
			require.True(t, math.IsNaN(loss.Sum))
			loss, err = Distill(c, teacher, x, w, put(1, nan), w, ws)
			require.NoError(t, err)
			require.True(t, math.IsNaN(loss.Sum))
		}
	})
}
