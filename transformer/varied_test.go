package transformer

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/stretchr/testify/require"
)

// TestVariedModels compares the models that testdata/models.py vary DIR made, in the folder $SNUG_VARIED: logits, gradients, greedy texts,
// and the bytes and bits of every plan. It saves them in the folder saved there, for models.py check. A model that is refused is skipped.
func TestVariedModels(t *testing.T) {
	from := os.Getenv("SNUG_VARIED")
	if from == "" {
		t.Skip("SNUG_VARIED is not set")
	}
	paths, err := filepath.Glob(filepath.Join(from, "*", "greedy.json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) { variedModel(t, dir, filepath.Join(from, "saved", filepath.Base(dir))) })
	}
}

func variedModel(t *testing.T, dir, to string) {
	g := readModelFrom(t, dir)
	m, err := Open(dir, Options{DType: snug.F32})
	if errors.Is(err, snug.ErrConfig) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer m.Close()
	want := g.tensor(t, "logits")
	have := allLogits(t, m, g.batch())
	difference, largest := apart(have, want)
	require.Less(t, difference, 1e-4*largest, "logits")

	worst, grads, zero := 0.0, gradients(t, m, g.batch()), 0.0
	for _, grad := range grads {
		for _, v := range grad {
			zero += float64(v) * float64(v)
		}
	}
	zero = 1e-6 * math.Sqrt(zero) // of what is 0 but for rounding, such as the bias of keys
	for name, grad := range grads {
		want := g.gradient(t, name)
		sum, norm := 0.0, 0.0
		for i, w := range want {
			d := float64(grad[i]) - float64(w)
			sum, norm = sum+d*d, norm+float64(w)*float64(w)
		}
		require.LessOrEqual(t, math.Sqrt(sum), 1e-3*math.Sqrt(norm)+zero, name)
		if norm > zero*zero {
			worst = max(worst, math.Sqrt(sum/norm))
		}
	}
	t.Logf("logits %.1e of the largest, gradients %.1e of their norms", difference/largest, worst)

	greedy := g.greedy(t)
	for _, chunk := range []int{0, 1, 5} {
		gen := newGenerator(t, m, GenerateOptions{Context: len(greedy.Prompt) + len(greedy.Tokens), Chunk: chunk})
		require.NoError(t, gen.Prompt(t.Context(), greedy.Prompt))
		for range greedy.Tokens {
			_, err := gen.Next(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, greedy.Tokens, gen.Tokens()[len(greedy.Prompt):], "chunk %d", chunk)
	}
	require.NoError(t, m.Save(to, 30_000))
	logits := amp.Tensor{Name: "logits", Shape: []int{len(g.Tokens), m.config.Vocab}}
	require.NoError(t, amp.SaveWeights(filepath.Join(to, "logits.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
		yield(logits, snug.ViewOf(have))
	}, nil))
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		m, err := Open(dir, Options{DType: dt})
		require.NoError(t, err)
		c := m.Config()
		if c.Experts.Count == 0 { // which have any number of rows, and so few have more than twice the mean
			trainAsPlanned(t, dt.String(), m, &c, dt)
		}
		require.NoError(t, m.Close())
	}
}
