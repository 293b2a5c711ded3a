package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// head64 is the definition of the layer of CrossEntropy in float64, with the bounds that
// the float32 arithmetic must keep.
type head64 struct {
	CrossEntropy
	x, w, bias []float64 // bias: nil for none
	targets    []int32
}

func (h *head64) weight(i int) float64 {
	if h.Weights == nil {
		return 1
	}
	return float64(h.Weights[i])
}

// over returns 1/Temperature.
func (h *head64) over() float64 {
	if h.Temperature == 0 {
		return 1
	}
	return 1 / float64(h.Temperature)
}

// row returns the logits of row i, the largest error of a logit, and the log
// of the sum of their exponentials.
func (h *head64) row(i int) (z []float64, dz, lse float64) {
	peak, limit := math.Inf(-1), float64(h.Cap)
	for v := range h.Vocab {
		var s, size float64
		for c := range h.Cols {
			p := h.x[i*h.Cols+c] * h.w[v*h.Cols+c]
			s, size = s+p, size+math.Abs(p)
		}
		if h.bias != nil {
			s, size = s+h.bias[v], size+2*math.Abs(h.bias[v])
		}
		d := float64(h.Cols+3) * u * size
		if limit != 0 {
			s = limit * math.Tanh(s/limit)
			d += 8 * u * limit
		}
		s, d = s*h.over(), (d+3*u*math.Abs(s))*h.over()
		z, dz, peak = append(z, s), max(dz, d), max(peak, s)
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
	smooth := float64(h.Smoothing)
	for i, t := range h.targets {
		if t < 0 {
			continue
		}
		z, dz, lse := h.row(i)
		aim, size := (1-smooth)*z[t], math.Abs(z[t])
		for _, x := range z {
			aim += smooth / float64(h.Vocab) * x
			size += smooth / float64(h.Vocab) * math.Abs(x)
		}
		square := float64(h.ZLoss) * lse * lse
		total += h.weight(i) * (lse - aim + square)
		tiles := float64(h.Tiles())
		bound += h.weight(i) * (2*dz + 200*u + 2*u*(lse-aim) + 2*u*math.Abs(lse) + 2*u*square +
			2*float64(h.ZLoss)*math.Abs(lse)*(dz+200*u) + smooth*(tiles+2)*u*size)
	}
	return total, bound
}

// slope64 is the definition of the gradients of a row's logits: factor·p[v] − less[v]. The error of factor is
// dfactor, of less[v] dless[v]; the exponent of p is off by dlse.
type slope64 struct {
	factor, dfactor, dlse float64
	less, dless           []float64
}

// slope returns what the loss of row i, times scale, gives.
func (h *head64) slope(i int, scale, lse, dz float64) slope64 {
	scale *= h.weight(i)
	smooth, squares := float64(h.Smoothing), 2*float64(h.ZLoss)*lse
	s := slope64{factor: scale * (1 + squares), less: make([]float64, h.Vocab), dless: make([]float64, h.Vocab)}
	s.dfactor = math.Abs(scale) * (2*float64(h.ZLoss)*(dz+200*u+2*u*math.Abs(lse)) + 4*u*(1+math.Abs(squares)))
	for v := range s.less {
		s.less[v] = scale * smooth / float64(h.Vocab)
		if v == int(h.targets[i]) {
			s.less[v] += scale * (1 - smooth)
		}
		s.dless[v] = 4 * u * math.Abs(s.less[v])
		if smooth == 0 {
			s.dless[v] /= 2
		}
	}
	return s
}

// grads64 are gradients and their bounds, before the rounding of dx.
type grads64 struct{ dx, dw, dbias, boundX, boundW, boundBias []float64 }

func (h *head64) newGrads() grads64 {
	x, w, b := func() []float64 { return make([]float64, len(h.x)) }, func() []float64 { return make([]float64, len(h.w)) },
		func() []float64 { return make([]float64, h.Vocab) }
	return grads64{x(), w(), b(), x(), w(), b()}
}

// add adds what the gradients s of the logits of row i give. narrow is the relative error of rounding them.
func (h *head64) add(g grads64, i, rows int, z []float64, dz, lse float64, s slope64, narrow float64) {
	limit := float64(h.Cap)
	for v := range z {
		p := math.Exp(z[v] - lse)
		grad := h.over() * (s.factor*p - s.less[v])
		// The relative error of p, of its factor, and of the subtraction.
		d := math.Abs(s.factor)*p*(2*dz+s.dlse+200*u+2*u*math.Abs(z[v]-lse)) + s.dfactor*p + s.dless[v] + 2*u*math.Abs(s.less[v])
		d *= h.over()
		if limit != 0 {
			tanh := z[v] / h.over() / limit
			d = d*(1-tanh*tanh) + math.Abs(grad)*(2*math.Abs(tanh)*(dz/h.over()/limit+4*u)+4*u)
			grad *= 1 - tanh*tanh
		}
		d += narrow*math.Abs(grad) + 2*u*math.Abs(grad)
		g.dbias[v] += grad
		g.boundBias[v] += d + float64(2*rows+2)*u*math.Abs(grad)
		for c := range h.Cols {
			x, w := h.x[i*h.Cols+c], h.w[v*h.Cols+c]
			g.dx[i*h.Cols+c] += grad * w
			g.dw[v*h.Cols+c] += grad * x
			g.boundX[i*h.Cols+c] += (d + float64(h.Vocab+1)*u*math.Abs(grad)) * math.Abs(w)
			g.boundW[v*h.Cols+c] += (d + float64(2*rows+2)*u*math.Abs(grad)) * math.Abs(x)
		}
	}
}

// gradients returns the gradients of scale times the loss.
func (h *head64) gradients(scale, narrow float64) grads64 {
	g := h.newGrads()
	for i, t := range h.targets {
		if t >= 0 {
			z, dz, lse := h.row(i)
			h.add(g, i, len(h.targets), z, dz, lse, h.slope(i, scale, lse, dz), narrow)
		}
	}
	return g
}

// requireGrads checks what a call computed: dx of a type, dw and dbias into what was there.
func requireGrads(t *testing.T, g grads64, dt snug.DType, into snug.Into, dx, dw, dw0, dbias, dbias0 []float32) {
	t.Helper()
	for i, d := range g.boundX {
		g.boundX[i] = d + roundoff(dt, math.Abs(g.dx[i])+d)
	}
	requireClose(t, "dx", g.dx, g.boundX, dx)
	for _, p := range []struct {
		name        string
		want, bound []float64
		old, got    []float32
	}{{"dw", g.dw, g.boundW, dw0, dw}, {"dbias", g.dbias, g.boundBias, dbias0, dbias}} {
		for i, d := range p.bound {
			p.bound[i] = intoBound(into, p.old[i], p.want[i], d) + u*math.Abs(float64(p.old[i]))
			p.want[i] = into64(into, p.old[i], p.want[i])
		}
		requireClose(t, p.name, p.want, p.bound, p.got)
	}
}

// narrowing is the relative error of the gradients of logits for x and w of dt.
func narrowing(p kerneltest.Backend, dt snug.DType) float64 {
	if dt == snug.BF16 && (onGPU(p) || gemm.HasPairs()) {
		return 0x1p-8
	}
	return 0
}

// Without dx the gradients of the layer are the same.
func TestWithoutInputGradient(t *testing.T) {
	const rows, vocab, cols = 7, 30, 5
	rng := newRand(3)
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
			put := func(n int) snug.View { return kerneltest.PutFloats(t, p, dt, normals(rng, dt, n, 0, 1)).View }
			x, w, targets := put(rows*cols), put(vocab*cols), tokens(rng, rows, vocab)
			logp, lse := kerneltest.Put(t, p, fill(rows, 1)).View, kerneltest.Put(t, p, fill(rows, 1)).View
			for _, c := range []CrossEntropy{{Vocab: vocab, Cols: cols}, {Vocab: vocab, Cols: cols, Tile: 8, Chunk: 3}} {
				teacher := CrossEntropy{Vocab: vocab, Cols: cols}
				ws := kerneltest.Put(t, p, make([]float32, DistillWorkspaceLen(c, teacher, rows))).View
				for name, run := range map[string]func(dx, dw snug.View) error{
					"CrossEntropyBackward": func(dx, dw snug.View) error {
						_, err := CrossEntropyBackward(c, dx, dw, x, w, targets, 1, snug.Into{}, ws)
						return err
					},
					"LogProbsBackward": func(dx, dw snug.View) error {
						return LogProbsBackward(c, dx, dw, logp, snug.View{}, lse, x, w, targets, snug.Into{}, ws)
					},
					"DistillBackward": func(dx, dw snug.View) error {
						_, err := DistillBackward(c, teacher, dx, dw, x, w, x, w, 1, snug.Into{}, ws)
						return err
					},
				} {
					t.Run(name, func(t *testing.T) {
						dx, want, have := put(rows*cols), kerneltest.Put(t, p, fill(vocab*cols, 42)), kerneltest.Put(t, p, fill(vocab*cols, 42))
						require.NoError(t, run(dx, want.View))
						require.NoError(t, run(snug.View{}, have.View))
						requireBits(t, name, want.Get(), have.Get())
					})
				}
			}
		})
	}
}

// TestDeviceChunk: 64 MiB of logits or an eighth of the bytes of dw, in multiples of 128 rows.
func TestDeviceChunk(t *testing.T) {
	for _, c := range []struct {
		vocab, cols, tile, want int
	}{
		{1, 1, 0, 2048}, {1024, 128, 0, 2048}, {16384, 512, 0, 1024}, {32000, 2048, 0, 512}, {50257, 768, 0, 256},
		{128256, 4096, 0, 2048}, // in tiles of 1 Ki classes
		{128256, 2048, 128256, 256}, {128256, 4096, 128256, 512}, {128256, 64, 128256, 128}, {1 << 30, 1 << 20, 1 << 30, 2048},
		{0, 4, 0, 0},
	} {
		require.Equal(t, c.want, CrossEntropy{Vocab: c.vocab, Cols: c.cols, Tile: c.tile}.DeviceChunk(), "%+v", c)
	}
}
