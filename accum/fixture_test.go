package accum

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

const vocabulary = 12

// rows returns count rows of tokens. A row of n tokens has n-1 targets, since
// each token predicts the next.
func rows(rng *rand.Rand, count, n int) [][]int {
	out := make([][]int, count)
	for i := range out {
		out[i] = make([]int, n)
		for j := range out[i] {
			out[i][j] = rng.IntN(vocabulary)
		}
	}
	return out
}

// bigramGradient returns the gradient of the mean cross-entropy of a table of
// logits [vocabulary][vocabulary], and the number of targets.
func bigramGradient(logits []float64, rows [][]int) (grad []float32, targets int) {
	sum := make([]float64, len(logits))
	for _, row := range rows {
		for i, token := range row[:len(row)-1] {
			line := logits[token*vocabulary:][:vocabulary]
			z := 0.0
			for _, l := range line {
				z += math.Exp(l)
			}
			for v, l := range line {
				sum[token*vocabulary+v] += math.Exp(l) / z
			}
			sum[token*vocabulary+row[i+1]]--
			targets++
		}
	}
	grad = make([]float32, len(sum))
	for i, s := range sum {
		grad[i] = float32(s / float64(targets))
	}
	return grad, targets
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// TestUnequalRows has four rows of 2 tokens and four of 16, 4 and 60 targets.
// As two micro-batches they give the gradient of the full batch; the mean of
// the two means, which is what dividing each by the number of micro-batches
// gives, is another vector.
func TestUnequalRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 16))
	short, long := rows(rng, 4, 2), rows(rng, 4, 16)
	logits := make([]float64, vocabulary*vocabulary)
	for i := range logits {
		logits[i] = rng.NormFloat64()
	}
	full, targets := bigramGradient(logits, append(append([][]int{}, short...), long...))
	require.Equal(t, 64, targets)

	w := one(t, len(full), Options{Schedule: Constant(2)})
	naive := make([]float32, len(full))
	for i, part := range [][][]int{short, long} {
		g, n := bigramGradient(logits, part)
		require.Equal(t, []int{4, 60}[i], n)
		micro(t, w, float64(n), g...)
		for j := range g {
			naive[j] += g[j] / 2
		}
	}
	require.Equal(t, 64.0, w.Weight())
	got := mean(t, w, "w")
	diff := make([]float32, len(full))
	for i := range full {
		diff[i] = got[i] - full[i]
	}
	norm := math.Sqrt(dot(full, full))
	require.Less(t, math.Sqrt(dot(diff, diff))/norm, 0x1p-22)
	require.InDelta(t, 1, dot(got, full)/norm/math.Sqrt(dot(got, got)), 0x1p-22)

	ratio, cosine := math.Sqrt(dot(naive, naive))/norm, dot(naive, full)/norm/math.Sqrt(dot(naive, naive))
	require.InDelta(t, 1.7675, ratio, 0.0005)
	require.InDelta(t, 0.5401, cosine, 0.0005)
}
