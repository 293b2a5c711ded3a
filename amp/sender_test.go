package amp

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// lateSender copies vectors when it is waited for.
type lateSender struct {
	dst, src    []snug.View
	waits       int
	fails, lost error // of Send and Wait
}

func (s *lateSender) Send(dst, src snug.View) error {
	if s.fails != nil {
		return s.fails
	}
	own, _, err := snug.MakeView(snug.CPU(), src.DType(), src.Len())
	if err == nil {
		err = snug.Copy(own, src)
	}
	s.dst, s.src = append(s.dst, dst), append(s.src, own)
	return err
}

func (s *lateSender) Wait() error {
	s.waits++
	for i, dst := range s.dst {
		if err := snug.Copy(dst, s.src[i]); err != nil {
			return err
		}
	}
	s.dst, s.src = nil, nil
	return s.lost
}

// TestMasterSender: with a Sender the parameter has the same bits when Update returns, and nothing is under way, also after
// an error or a panic. An error of the Sender leaves the parameter half updated.
//
//check:in race
func TestMasterSender(t *testing.T) {
	eachDevice(t, func(t *testing.T, p kerneltest.Backend) {
		for _, form := range forms {
			const n = 25
			made := func(s Sender) (*Master, *kerneltest.Floats) {
				m := newMaster(t, MasterOptions{Form: form, Chunk: 10, Sender: s, Seed: 3})
				param := kerneltest.PutFloats(t, p, snug.BF16, make([]float32, n))
				require.NoError(t, m.AddFrom("w", param.View, fillWith(kerneltest.Uniform(5, n))))
				return m, param
			}
			step := func(_ int, w snug.View) error {
				for i := range w.Float32s() {
					w.Float32s()[i] *= 0.7
				}
				return nil
			}
			plain, want := made(nil)
			s := &lateSender{}
			m, got := made(s)
			require.Zero(t, s.waits)
			for i := range 3 {
				require.NoError(t, plain.Update("w", want.View, step))
				require.NoError(t, m.Update("w", got.View, step))
				require.Equal(t, i+1, s.waits, form)
				require.Equal(t, want.Get(), got.Get(), form)
			}
			// Of three chunks the second fails.
			for _, fail := range []func() error{func() error { return errBroken }, func() error { panic(errBroken) }} {
				m, got := made(s)
				require.ErrorIs(t, kerneltest.Recovered(func() error {
					return m.Update("w", got.View, func(lo int, w snug.View) error {
						if lo > 0 {
							return fail()
						}
						return step(lo, w)
					})
				}), errBroken)
				require.Empty(t, s.dst, form)
				require.ErrorContains(t, m.Update("w", got.View, step), "half-way")
			}
			for _, s := range []*lateSender{{fails: errBroken}, {lost: errBroken}} {
				m, got := made(s)
				require.ErrorIs(t, m.Update("w", got.View, step), errBroken)
				require.Equal(t, 1, s.waits, form)
				require.ErrorContains(t, m.Update("w", got.View, step), "half-way")
			}
		}
	})
}
