package fused

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/limits"
)

// BenchmarkLayers reports the share of the bandwidth of memory at which the
// layers read and write matrices of 16 Mi elements, of the fastest round. What
// is reread, such as rows and parameters, counts once.
func BenchmarkLayers(b *testing.B) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		benchmarkLayers(b, dt, 16<<10, 1024)
	}
}

func benchmarkLayers(b *testing.B, dt snug.DType, rows, cols int) {
	matrix := func(n int) snug.View {
		return kerneltest.PutFloats(b, kerneltest.Backend{}, dt, normals(newRand(1), dt, n, 0, 1)).View
	}
	f32 := func(n int) snug.View { return snug.SliceView(make([]float32, n)) }
	n := rows * cols
	x, y, z, dy, gamma := matrix(n), matrix(n), matrix(n), matrix(n), matrix(cols)
	mean, rstd := snug.SliceView(fill(rows, 0)), snug.SliceView(fill(rows, 1))
	dgamma, dbeta, ws := f32(cols), f32(cols), f32(LayerNormWorkspaceLen(rows, cols))
	ids, positions := tokens(newRand(2), rows, rows), tokens(newRand(3), rows, 2048)
	rotary, angles, table := RotaryOptions{Heads: cols / 64, Dim: 64}, f32(2048*64), f32(n)
	into, each := snug.Into{Beta: 1}, make([]int32, rows)
	for i := range each {
		each[i] = int32(i)
	}
	for _, layer := range []struct {
		name     string
		matrices float64 // read and written, each n elements of dt
		f32      float64 // the same of float32
		run      func() error
	}{
		{"Add", 3, 0, func() error { return Add(y, x, z) }},
		{"LayerNorm", 2, 0, func() error { return LayerNorm(y, mean, rstd, x, gamma, gamma, 1e-5) }},
		{"LayerNormBackward", 3, 0, func() error {
			return LayerNormBackward(y, dgamma, dbeta, dy, x, mean, rstd, gamma, GradsInto{}, ws)
		}},
		{"LayerNormBackward+=", 4, 0, func() error {
			return LayerNormBackward(y, dgamma, dbeta, dy, x, mean, rstd, gamma, GradsInto{Input: into}, ws)
		}},
		{"RMSNorm", 2, 0, func() error { return RMSNorm(y, rstd, x, gamma, 1e-5) }},
		{"RMSNormBackward", 3, 0, func() error {
			return RMSNormBackward(y, dgamma, dy, x, rstd, gamma, GradsInto{}, ws)
		}},
		{"BiasGELU", 2, 0, func() error { return BiasGELU(y, x, gamma) }},
		{"BiasGELUBackward", 3, 0, func() error { return BiasGELUBackward(y, dbeta, dy, x, gamma, snug.Into{}, ws) }},
		{"BiasGELUErf", 2, 0, func() error { return BiasGELUErf(y, x, gamma) }},
		{"BiasGELUErfBackward", 3, 0, func() error { return BiasGELUErfBackward(y, dbeta, dy, x, gamma, snug.Into{}, ws) }},
		{"BiasAdd", 2, 0, func() error { return BiasAdd(y, x, gamma) }},
		{"BiasAddBackward", 1, 0, func() error { return BiasAddBackward(dbeta, dy, snug.Into{}, ws) }},
		{"SwiGLU", 3, 0, func() error { return SwiGLU(y, x, z) }},
		{"SwiGLUBackward", 5, 0, func() error { return SwiGLUBackward(y, dy, dy, x, z) }},
		{"GeGLU", 3, 0, func() error { return GeGLU(y, x, z) }},
		{"GeGLUBackward", 5, 0, func() error { return GeGLUBackward(y, dy, dy, x, z) }},
		{"ClampedSwiGLU", 3, 0, func() error { return ClampedSwiGLU(y, x, z, 1.702, 7) }},
		{"ClampedSwiGLUBackward", 5, 0, func() error { return ClampedSwiGLUBackward(y, dy, dy, x, z, 1.702, 7) }},
		{"ReLU", 2, 0, func() error { return Activate(y, x, ReLU) }},
		{"ReLUBackward", 3, 0, func() error { return ActivateBackward(y, dy, x, ReLU) }},
		{"HardSwish", 2, 0, func() error { return Activate(y, x, HardSwish) }},
		{"HardSwishBackward", 3, 0, func() error { return ActivateBackward(y, dy, x, HardSwish) }},
		{"Sigmoid", 2, 0, func() error { return Activate(y, x, Sigmoid) }},
		{"Tanh", 2, 0, func() error { return Activate(y, x, Tanh) }},
		{"TanhBackward", 3, 0, func() error { return ActivateBackward(y, dy, x, Tanh) }},
		{"SiLU", 2, 0, func() error { return Activate(y, x, SiLU) }},
		{"SiLUBackward", 3, 0, func() error { return ActivateBackward(y, dy, x, SiLU) }},
		{"AddRows", 3, 0, func() error { return AddRows(y, x, rstd, each, 1, cols) }},
		{"AddRowsBackward", 3, 0, func() error { return AddRowsBackward(y, mean, dy, x, rstd, each, 1, cols) }},
		{"Rotary", 2, 0, func() error { return Rotary(y, angles, positions, rotary) }},
		{"Dropout", 2, 0, func() error { return Dropout(y, x, DropoutMask{P: 0.1}) }},
		{"Embedding", 2, 0, func() error { return Embedding(y, x, ids, snug.View{}, nil, cols) }},
		{"EmbeddingBackward", 1, 2, func() error { return EmbeddingBackward(table, dy, ids, cols, snug.Into{Beta: 1}) }},
	} {
		b.Run(fmt.Sprintf("%v/%s", dt, layer.name), func(b *testing.B) {
			best, peak := time.Hour, 0.0
			for b.Loop() {
				peak = max(peak, limits.Bandwidth(limits.Copy, 512<<20, runtime.GOMAXPROCS(0)))
				start := time.Now()
				if err := layer.run(); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			bytes := float64(n) * (layer.matrices*float64(dt.Size()) + layer.f32*4)
			b.ReportMetric(100*bytes/best.Seconds()/peak, "%copy")
		})
	}
}

// BenchmarkElementwise reports the time of an element of losses of 4 Mi elements, of the fastest round.
func BenchmarkElementwise(b *testing.B) {
	const n = 4 << 20
	x, targets, dx := random(n), fill(n, 1), make([]float32, n)
	for _, form := range []LossForm{MSE, L1, Huber, BCE, Focal} {
		b.Run(form.String(), func(b *testing.B) {
			best := time.Hour
			for b.Loop() {
				start := time.Now()
				if _, err := ElementwiseBackward(Elementwise{Form: form}, dx, x, targets, 1); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(best.Nanoseconds())/n, "ns/element")
		})
	}
}

// BenchmarkImageNorms reports the time of norms of images of 64 channels and 56×56 positions, of the fastest round.
func BenchmarkImageNorms(b *testing.B) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for _, last := range []bool{false, true} {
			s := Image{32, 64, 56 * 56, last}
			vec := func(n int) snug.View {
				return kerneltest.PutFloats(b, kerneltest.Backend{}, dt, normals(newRand(1), dt, n, 0, 1)).View
			}
			f32 := func(n int) snug.View { return snug.SliceView(fill(n, 1)) }
			x, y, dy, gamma, mean, rstd, m2, sums := vec(s.Len()), vec(s.Len()), vec(s.Len()), vec(64), f32(32*56*56), f32(32*56*56), f32(64), f32(128)
			ws := f32(max(GroupNormWorkspaceLen(s), BatchNormWorkspaceLen(s), ChannelNormWorkspaceLen(s)))
			stat := func(v snug.View, n int) snug.View { return span(v, 0, n) }
			for _, layer := range []struct {
				name string
				run  func() error
			}{
				{"BatchNorm", func() error {
					return errors.Join(BatchMoments(stat(mean, 64), m2, x, s, ws), BatchRstd(stat(rstd, 64), m2, 32*56*56, testEps),
						BatchNorm(y, x, stat(mean, 64), stat(rstd, 64), gamma, gamma, s))
				}},
				{"BatchNormBackward", func() error {
					return errors.Join(BatchNormSums(sums, m2, m2, dy, x, stat(mean, 64), stat(rstd, 64), s, snug.Into{}, ws),
						BatchNormBackward(y, dy, x, stat(mean, 64), stat(rstd, 64), sums, gamma, s, 32*56*56, snug.Into{}))
				}},
				{"GroupNorm", func() error {
					return GroupNorm(y, stat(mean, 32*32), stat(rstd, 32*32), x, gamma, gamma, s, 32, testEps, ws)
				}},
				{"GroupNormBackward", func() error {
					return GroupNormBackward(y, m2, m2, dy, x, stat(mean, 32*32), stat(rstd, 32*32), gamma, s, 32, GradsInto{}, ws)
				}},
				{"ChannelNorm", func() error { return ChannelNorm(y, mean, rstd, x, gamma, gamma, s, testEps) }},
				{"ChannelNormBackward", func() error {
					return ChannelNormBackward(y, m2, m2, dy, x, mean, rstd, gamma, s, GradsInto{}, ws)
				}},
			} {
				b.Run(fmt.Sprintf("%v/last=%v/%s", dt, last, layer.name), func(b *testing.B) {
					best := time.Hour
					for b.Loop() {
						start := time.Now()
						if err := layer.run(); err != nil {
							b.Fatal(err)
						}
						best = min(best, time.Since(start))
					}
					b.ReportMetric(best.Seconds()*1000, "ms-best")
				})
			}
		}
	}
}

// BenchmarkCrossEntropy reports the time of the three products alone as a share
// of that of CrossEntropyBackward.
func BenchmarkCrossEntropy(b *testing.B) {
	const rows, vocab, cols = 256, 16384, 512
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		matrix := func(n int) snug.View {
			return kerneltest.PutFloats(b, kerneltest.Backend{}, dt, normals(newRand(1), dt, n, 0, 0.1)).View
		}
		c := CrossEntropy{Vocab: vocab, Cols: cols}
		x, w, dx := matrix(rows*cols), matrix(vocab*cols), matrix(rows*cols)
		dw, ws := snug.SliceView(make([]float32, vocab*cols)), snug.SliceView(make([]float32, c.WorkspaceLen(rows)))
		ids := tokens(newRand(2), rows, vocab)
		b.Run(dt.String(), func(b *testing.B) {
			best, products := time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				if _, err := CrossEntropyBackward(c, dx, dw, x, w, ids, 1, snug.Into{Beta: 1}, ws); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
				start = time.Now()
				mx, mw := gemm.Matrix{Data: span(x, 0, 128*cols), Stride: cols}, gemm.Matrix{Data: w, Stride: cols}
				mz, mdw := gemm.Matrix{Data: span(ws, 0, 128*vocab), Stride: vocab}, gemm.Matrix{Data: dw, Stride: cols}
				for range rows / 128 {
					gemm.Mul(128, vocab, cols, 1, mx, transposed(mw), 0, mz)
					gemm.Mul(vocab, cols, 128, 1, transposed(mz), mx, 1, mdw)
					gemm.Mul(128, cols, vocab, 1, mz, mw, 0, gemm.Matrix{Data: span(dx, 0, 128*cols), Stride: cols})
				}
				products = min(products, time.Since(start))
			}
			b.ReportMetric(100*products.Seconds()/best.Seconds(), "%matmul")
		})
	}
}

// BenchmarkRoute reports the time of a row, and as a share of the product that makes its logits from rows of 2048 elements.
func BenchmarkRoute(b *testing.B) {
	const rows, cols = 1024, 2048
	for _, r := range []Router{{Experts: 8, Chosen: 2, Normalize: true}, {Experts: 128, Chosen: 8, Normalize: true},
		{Experts: 128, Chosen: 8}, {Experts: 256, Chosen: 8, Sigmoid: true, Normalize: true}} {
		n := rows * r.Experts
		logits, dlogits, weights := snug.SliceView(random(n)), snug.SliceView(random(n)), snug.SliceView(make([]float32, rows*r.Chosen))
		x, w, experts := snug.SliceView(random(rows*cols)), snug.SliceView(random(r.Experts*cols)), make([]int32, rows*r.Chosen)
		var bias []float32
		if r.Sigmoid {
			bias = make([]float32, r.Experts)
		}
		b.Run(fmt.Sprintf("%d of %d, sigmoid %v, normalize %v", r.Chosen, r.Experts, r.Sigmoid, r.Normalize), func(b *testing.B) {
			forward, backward, product := time.Hour, time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				if err := Route(r, experts, weights, logits, bias); err != nil {
					b.Fatal(err)
				}
				forward = min(forward, time.Since(start))
				start = time.Now()
				if err := RouteBackward(r, dlogits, weights, logits, experts, nil); err != nil {
					b.Fatal(err)
				}
				backward = min(backward, time.Since(start))
				start = time.Now()
				gemm.Mul(rows, r.Experts, cols, 1, gemm.Matrix{Data: x, Stride: cols}, transposed(gemm.Matrix{Data: w, Stride: cols}), 0,
					gemm.Matrix{Data: logits, Stride: r.Experts})
				product = min(product, time.Since(start))
			}
			b.ReportMetric(float64(forward.Nanoseconds())/rows, "ns/row")
			b.ReportMetric(float64(backward.Nanoseconds())/rows, "ns/row-backward")
			b.ReportMetric(100*float64(forward)/float64(product), "%product")
		})
	}
}
