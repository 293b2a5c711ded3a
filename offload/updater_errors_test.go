package offload

import (
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
)

func TestUpdaterErrors(t *testing.T) {
	s := memStore(t, Options{})
	nan := float32(math.NaN())
	require.ErrorIs(t, second(NewUpdater(s, nil, UpdaterOptions{})), snug.ErrConfig)
	stepper := &heldStepper{}
	require.ErrorIs(t, second(NewUpdater(s, stepper, UpdaterOptions{PageLen: -1})), snug.ErrConfig)
	u, err := NewUpdater(s, stepper, UpdaterOptions{PageLen: 4})
	require.NoError(t, err)

	broken := errors.New("fill failed")
	require.ErrorIs(t, u.Add("w", 8, func(int, []float32) error { return broken }), broken)
	stepper.fail = broken
	require.ErrorIs(t, u.Add("w", 8, nil), broken)
	stepper.fail = nil
	require.Empty(t, s.Keys(), "nothing is left of a parameter that was not added")
	require.ErrorIs(t, u.Add("w", -1, nil), snug.ErrShape)
	require.NoError(t, u.Add("w", 8, nil))
	require.ErrorIs(t, u.Add("w", 8, nil), snug.ErrConfig)

	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"unknown gradient":  {u.Accumulate("x", 0, snug.ViewOf([]float32{1}), 1), snug.ErrConfig},
		"weight":            {u.Accumulate("w", 0, snug.ViewOf([]float32{1}), nan), snug.ErrConfig},
		"gradient too long": {u.Accumulate("w", 1, snug.ViewOf(make([]float32, 8)), 1), snug.ErrShape},
		"gradient type":     {u.Accumulate("w", 0, snug.SliceView([]int32{1}), 1), snug.ErrDType},
		"unknown binding":   {u.Bind("x", snug.View{}), snug.ErrConfig},
		"bound length":      {u.Bind("w", snug.ViewOf(make([]float32, 7))), snug.ErrShape},
		"bound type":        {u.Bind("w", snug.SliceView(make([]int32, 8))), snug.ErrDType},
		"unknown weights":   {second(u.Weights("x")), snug.ErrConfig},
		"rate":              {u.Step(-1, 1), snug.ErrConfig},
		"rate NaN":          {u.Step(nan, 1), snug.ErrConfig},
		"scale":             {u.Step(1, nan), snug.ErrConfig},
	} {
		require.ErrorIs(t, test.err, test.want, name)
	}
	require.Zero(t, u.Steps())
	norm, err := u.Norm()
	require.NoError(t, err)
	require.Zero(t, norm)
}

// TestUpdaterFails checks that what failed in the background is reported, and that
// nothing goes on from half of an update.
func TestUpdaterFails(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		dir := filestest.New()
		s, err := open(dir, Options{HostLimit: 6 * 4 * updPage})
		require.NoError(t, err)
		backend := kerneltest.Backend{Name: "slice"}
		u := newPaged(t, s, UpdaterOptions{Delayed: delayed}, backend)
		u.accumulate(t, backend, 1, 1)
		require.NoError(t, u.Commit())
		dir.FailChange(1, true, syscall.ENOSPC)
		err = u.Step(0.01, 1)
		if delayed {
			require.NoError(t, err)
			err = u.Wait()
		}
		require.ErrorIs(t, err, syscall.ENOSPC)
		for _, err := range []error{u.Step(0.01, 1), u.Commit(), u.Accumulate("a", 0, snug.View{}, 1), u.Bind("a", snug.View{}), second(u.Norm()), u.Drop(), u.Add("e", 1, nil)} {
			require.ErrorIs(t, err, syscall.ENOSPC)
		}
		require.NoError(t, s.Close())
	}
}
