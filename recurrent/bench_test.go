package recurrent

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// BenchmarkDelta measures the gated delta rule with the heads of Qwen3.5 0.8B.
func BenchmarkDelta(b *testing.B) {
	for _, rows := range []int{1, 2048} {
		d := Delta{Batch: Batch{Rows: rows}, KeyHeads: 16, Heads: 16, KeyDim: 128, Dim: 128, Normalize: true}
		n := rows * 16 * 128
		x := kerneltest.Normal(1, 4*n)
		g, beta := make([]float32, rows*16), kerneltest.Uniform(2, rows*16)
		for i := range g {
			g[i] = -0.1 * max(beta[i], -beta[i])
		}
		q, k, v, dout := x[:n], x[n:2*n], x[2*n:3*n], x[3*n:]
		out, dq, dk, dv, dg, dbeta := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, len(g)), make([]float32, len(g))
		states, state := make([]float32, d.StatesLen()), snug.ViewOf(make([]float32, d.StateLen()))
		if rows == 1 {
			d.Initial, d.Final = state, state
		}
		b.Run(fmt.Sprintf("forward %d", rows), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, DeltaForward(out, q, k, v, g, beta, states, d))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rows), "µs/row")
		})
		b.Run(fmt.Sprintf("backward %d", rows), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, DeltaBackward(dq, dk, dv, dg, dbeta, dout, q, k, v, g, beta, states, d))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rows), "µs/row")
		})
	}
}

// BenchmarkSSD measures the state space with the heads of Falcon-H1 0.5B.
func BenchmarkSSD(b *testing.B) {
	for _, rows := range []int{1, 2048} {
		d := SSD{Batch: Batch{Rows: rows}, Groups: 1, Heads: 24, StateDim: 128, Dim: 64}
		n, m := rows*24*64, rows*128
		x := kerneltest.Normal(1, 2*n+2*m+24*rows+72)
		dy, dx, db, dc, ddt := x[n:2*n], make([]float32, n), make([]float32, m), make([]float32, m), make([]float32, rows*24)
		bs, cs, dt, a := x[2*n:][:m], x[2*n+m:][:m], x[2*n+2*m:][:24*rows], x[2*n+2*m+24*rows:]
		y, states, ws, state := make([]float32, n), make([]float32, d.StatesLen()), make([]float32, d.WorkspaceLen()), snug.ViewOf(make([]float32, d.StateLen()))
		if rows == 1 {
			d.Initial, d.Final = state, state
		}
		b.Run(fmt.Sprintf("forward %d", rows), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, SSDForward(y, x[:n], bs, cs, dt, a[:24], a[24:48], a[48:], states, d))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rows), "µs/row")
		})
		g := SSDGrads{X: snug.ViewOf(dx), B: snug.ViewOf(db), C: snug.ViewOf(dc), Dt: snug.ViewOf(ddt)}
		b.Run(fmt.Sprintf("backward %d", rows), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, SSDBackward(g, dy, x[:n], bs, cs, dt, a[:24], a[24:48], a[48:], states, ws, d))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rows), "µs/row")
		})
	}
}

// BenchmarkConv measures the convolution of Qwen3.5 0.8B and the short convolution of LFM2 350M.
func BenchmarkConv(b *testing.B) {
	for name, c := range map[string]Conv{"silu": {Channels: 6144, Taps: 4, SiLU: true}, "gates": {Channels: 1024, Taps: 3, Gates: true}} {
		c.Rows = 2048
		x, w := kerneltest.Normal(1, c.Rows*c.width()), kerneltest.Normal(2, c.Channels*c.Taps)
		y, dx, dw := kerneltest.Normal(3, c.Rows*c.Channels), make([]float32, len(x)), make([]float32, len(w))
		b.Run(name+" forward", func(b *testing.B) {
			b.SetBytes(4 * int64(len(x)+len(y)))
			for b.Loop() {
				require.NoError(b, ConvForward(y, x, w, nil, c))
			}
		})
		b.Run(name+" backward", func(b *testing.B) {
			b.SetBytes(4 * int64(len(x)+len(y)+len(dx)))
			for b.Loop() {
				require.NoError(b, ConvBackward(dx, dw, nil, y, x, w, nil, c, snug.Into{}))
			}
		})
	}
}
