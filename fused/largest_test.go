package fused_test

import (
	"runtime/debug"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/meter"
)

// BenchmarkLargestHead computes log-probabilities and gradients of 65,536 rows and 131,072 classes, whose logits would take
// 34 GB. It reports the workspace and, on Linux, by how much the resident memory of the process exceeded its operands.
func BenchmarkLargestHead(b *testing.B) {
	const rows, vocab, cols = 64 << 10, 128 << 10, 64
	c := fused.CrossEntropy{Vocab: vocab, Cols: cols}
	numbers := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(i*7919%2003-1001) / 4000
		}
		return v
	}
	x, w, dx, dw, logp, lse := numbers(rows*cols), numbers(vocab*cols), numbers(rows*cols), numbers(vocab*cols), numbers(rows), numbers(rows)
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i * 7919 % vocab)
	}
	debug.FreeOSMemory()
	before, _ := meter.Resident()
	ws := make([]float32, c.WorkspaceLen(rows))
	for b.Loop() {
		if err := fused.LogProbs(c, logp, lse, x, w, ids, ws); err != nil {
			b.Fatal(err)
		}
		if err := fused.LogProbsBackward(c, dx, dw, logp, nil, lse, x, w, ids, snug.Into{}, ws); err != nil {
			b.Fatal(err)
		}
	}
	_, peak := meter.Resident()
	b.ReportMetric(4*float64(len(ws))/1e6, "workspace-MB")
	b.ReportMetric(float64(peak-before)/1e6, "more-MB")
}
