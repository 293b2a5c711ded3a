package hugot_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/knights-analytics/hugot"
	"github.com/knights-analytics/hugot/datasets"
	"github.com/knights-analytics/hugot/pipelines"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gomlx"
	snughugot "github.com/snug-ml/snug/integrations/hugot"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

var (
	left  = []string{"a cat sleeps", "rain falls today", "the train is late", "she reads a book"}
	right = []string{"the kitten naps", "it pours outside", "delays at the station", "he eats an apple"}
	score = []float32{1, 1, 1, 0}
)

// prepare writes a model and its pairs, and returns their configuration.
func prepare(t *testing.T, epochs int) hugot.TrainingConfig {
	dir := t.TempDir()
	seen := map[string]bool{}
	var words []string
	var lines strings.Builder
	for i := range left {
		fmt.Fprintf(&lines, "{\"sentence1\": %q, \"sentence2\": %q, \"score\": %g}\n", left[i], right[i], score[i])
		for _, w := range strings.Fields(left[i] + " " + right[i]) {
			if !seen[w] {
				seen[w] = true
				words = append(words, w)
			}
		}
	}
	writeModel(t, dir, words)
	pairs := filepath.Join(t.TempDir(), "pairs.jsonl")
	require.NoError(t, os.WriteFile(pairs, []byte(lines.String()), 0o644))
	dataset, err := datasets.NewSemanticSimilarityDataset(pairs, 1, nil)
	require.NoError(t, err)
	t.Cleanup(func() { dataset.Close() })
	return hugot.TrainingConfig{
		ModelPath: dir, OnnxFilename: "model.onnx", TrainDataset: dataset, Options: []hugot.TrainingOption{hugot.WithEpochs(epochs)},
		GOMLXTrainingOptions: &hugot.GOMLXTrainingOptions{Optimizer: optimizers.Adam().LearningRate(rate).Epsilon(eps).Done()},
	}
}

const (
	rate, eps = 0.003, 1e-7
	epochs    = 10
)

func begin(t *testing.T, config hugot.TrainingConfig) *hugot.TrainingSession {
	session, err := hugot.NewGoTrainingSession[*pipelines.FeatureExtractionPipeline](config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, session.Destroy()) })
	return session
}

// similarities returns the cosines that hugot computes with the model that a session saves.
func similarities(t *testing.T, session *hugot.TrainingSession) []float64 {
	dir := t.TempDir()
	require.NoError(t, session.Save(dir))
	s, err := hugot.NewGoSession()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Destroy()) }()
	pipeline, err := hugot.NewPipeline(s, hugot.FeatureExtractionConfig{ModelPath: dir, Name: "saved", OnnxFilename: "model.onnx"})
	require.NoError(t, err)
	a, err := pipeline.RunPipeline(left)
	require.NoError(t, err)
	b, err := pipeline.RunPipeline(right)
	require.NoError(t, err)
	cosines := make([]float64, len(left))
	for i := range cosines {
		var ab, aa, bb float64
		for j, x := range a.Embeddings[i] {
			y := b.Embeddings[i][j]
			ab, aa, bb = ab+float64(x*y), aa+float64(x*x), bb+float64(y*y)
		}
		cosines[i] = ab / math.Sqrt(aa*bb)
	}
	return cosines
}

// trained returns the cosines of a model that was trained for some steps, and the bytes of state.
func trained(t *testing.T, o gomlx.Options, steps int) ([]float64, int64) {
	config := prepare(t, epochs)
	session := begin(t, config)
	o.Optimizer, o.Schedule = quant8.Adam{Eps: eps}, func(int) float32 { return rate }
	trainer, err := snughugot.New(session, config, o)
	require.NoError(t, err)
	require.NoError(t, trainer.Run(context.Background(), config.TrainDataset, steps, 1, nil))
	bytes := trainer.Bytes()[meter.State]
	require.NoError(t, trainer.Close())
	return similarities(t, session), bytes
}

// TestAgainstHugot: Adam of 32 bits gives the model that hugot's own training gives, 8 bits one of the same use in a quarter of
// the state, and a run that ends and resumes the same bits.
func TestAgainstHugot(t *testing.T) {
	own := begin(t, prepare(t, epochs))
	require.NoError(t, own.Train())
	want := similarities(t, own)

	got, full := trained(t, gomlx.Options{StateBits: 32}, epochs*len(left))
	require.InDeltaSlice(t, want, got, 1e-4)

	dir := t.TempDir()
	eight, small := trained(t, gomlx.Options{StateBits: 8}, epochs*len(left))
	require.InDeltaSlice(t, score, eight, 0.2)
	require.Less(t, float64(small), 0.3*float64(full))
	t.Logf("%d bytes of state, %d with 32 bits", small, full)

	_, _ = trained(t, gomlx.Options{StateBits: 8, Checkpoints: gomlx.Checkpoints{Dir: dir, SaveEvery: 5}}, 15)
	resumed, _ := trained(t, gomlx.Options{StateBits: 8, Checkpoints: gomlx.Checkpoints{Dir: dir, SaveEvery: 5}}, epochs*len(left))
	require.Equal(t, eight, resumed)
}

func TestErrors(t *testing.T) {
	config := prepare(t, 1)
	_, err := snughugot.New(nil, config, gomlx.Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = snughugot.New(&hugot.TrainingSession{}, config, gomlx.Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	session := begin(t, config)
	_, err = snughugot.New(session, hugot.TrainingConfig{}, gomlx.Options{Optimizer: quant8.Adam{}})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, os.WriteFile(filepath.Join(config.ModelPath, "empty.jsonl"), nil, 0o644))
	empty, err := datasets.NewSemanticSimilarityDataset(filepath.Join(config.ModelPath, "empty.jsonl"), 1, nil)
	require.NoError(t, err)
	require.NoError(t, empty.SetTokenizationPipeline(session.GetPipeline()))
	config.TrainDataset = empty
	_, err = snughugot.New(session, config, gomlx.Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "no full batch")
}
