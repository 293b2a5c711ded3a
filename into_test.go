package snug_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func TestIntoFactors(t *testing.T) {
	for _, c := range []struct {
		into        snug.Into
		alpha, beta float32
	}{
		{snug.Into{}, 1, 0},
		{snug.Into{Beta: 1}, 1, 1},
		{snug.Into{Alpha: 0.25, Beta: 0.75}, 0.25, 0.75},
	} {
		alpha, beta, err := c.into.Factors()
		require.NoError(t, err)
		require.Equal(t, []float32{c.alpha, c.beta}, []float32{alpha, beta})
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, into := range []snug.Into{{Alpha: float32(x)}, {Beta: float32(x)}} {
			_, _, err := into.Factors()
			require.ErrorIs(t, err, snug.ErrConfig)
		}
	}
}
