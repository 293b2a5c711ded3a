package fused

import (
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
	into := snug.Into{Beta: 1}
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
