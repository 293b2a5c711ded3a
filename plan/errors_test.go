package plan

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func isOne(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// TestErrorsSayWhatIsWrongAlone: the text of a sentinel is no part of a sentence.
func TestErrorsSayWhatIsWrongAlone(t *testing.T) {
	_, miss := Best(Task{Model: Model{Layers: []Layer{{Params: [][]int{{64, 64}}, Output: 4}}}, Device: oneMemory(), Batch: 1}.Fit(1))
	for _, c := range []struct {
		err, kind error
		want      string
	}{
		{miss, snug.ErrNoMemory, "plan: nothing fits in 1 B: the smallest plan takes"},
		{second(ModelNamed("gpt2", 1025)), snug.ErrShape, "plan: model \"gpt2\": a context of 1025 tokens"},
		{second(ReadModel(strings.NewReader("{"))), snug.ErrCorrupt, "plan: read a model: "},
		{second(DeviceNamed("x")), snug.ErrConfig, `plan: unknown device "x"`},
	} {
		t.Run(c.want, func(t *testing.T) {
			require.ErrorIs(t, c.err, c.kind)
			require.ErrorContains(t, c.err, c.want)
			require.NotContains(t, c.err.Error(), strings.TrimPrefix(c.kind.Error(), "snug: "))
		})
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "in-backward", InBackward.String())
	require.Equal(t, "folded", Folded.String())
	require.Equal(t, "Gradient(9)", Gradient(9).String())
}
