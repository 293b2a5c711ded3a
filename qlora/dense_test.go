package qlora

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// turned returns the transposed matrix.
func turned(v []float32, rows, cols int) []float32 {
	t := make([]float32, len(v))
	for r := range rows {
		for c := range cols {
			t[c*rows+r] = v[r*cols+c]
		}
	}
	return t
}

// TestDense: a matrix in floats, as it is and turned, does what the same weight in few bits does, by
// itself, in a DoRA and merged, on every device.
//
//check:in ordered
//check:not checked
func TestDense(t *testing.T) {
	const rows, out, in, rank = 6, 700, 600, 3 // more than one tile
	for _, backend := range backends(t) {
		put := func(v []float32) snug.View { return on(t, backend.Dev, snug.F32, v) }
		random := func(seed uint64, n int) snug.View { return put(kerneltest.Normal(seed, n)) }
		zeros := func(n int) snug.View { return put(make([]float32, n)) }
		full := kerneltest.Normal(1, out*in)
		clear(full[3*in : 4*in])
		w, err := NewWeight(put(full), []int{out, in}, Options{})
		require.NoError(t, err)
		l, err := NewLinear(w, snug.F32, 0)
		require.NoError(t, err)
		whole := values(t, dequantized(t, w))
		plain, err := NewDense(put(whole), out, in, false)
		require.NoError(t, err)
		other, err := plain.Share(put(turned(whole, out, in)), out, in, true)
		require.NoError(t, err)
		require.EqualValues(t, 4*denseTile+4*out, plain.Bytes())
		require.Equal(t, plain.Bytes(), other.Bytes())
		a := &LoRA{In: in, Out: out, Rank: rank, Scale: 0.5, Dropout: 0.3, A: random(2, rank*in), B: zeros(out * rank), Magnitude: random(4, out)}
		near := func(want, got snug.View, name string, m Matrix) {
			t.Helper()
			x, y := values(t, want), values(t, got)
			largest := 0.0
			for _, v := range x {
				largest = max(largest, math.Abs(float64(v)))
			}
			require.InDeltaSlice(t, x, y, 1e-5*largest, "%s: %s of %T turned %t", backend.Name, name, m, m == other)
		}
		for _, m := range []Matrix{plain, other} {
			x, dy := random(5, rows*in), random(6, rows*out)
			y, dx, wantY, wantDX := random(7, rows*out), random(8, rows*in), random(7, rows*out), random(8, rows*in)
			require.NoError(t, errors.Join(l.Forward(wantY, x, 0.5), m.Forward(y, x, 0.5), l.Backward(wantDX, dy, 1), m.Backward(dx, dy, 1)))
			near(wantY, y, "y", m)
			near(wantDX, dx, "dx", m)
			norms, wantNorms := zeros(out), zeros(out)
			require.NoError(t, errors.Join(snug.Copy(a.B, make([]float32, out*rank)), l.Norms(wantNorms, nil), m.Norms(norms, nil)))
			near(wantNorms, norms, "norms", m)
			require.NoError(t, snug.Copy(a.B, kerneltest.Normal(3, out*rank)))
			clear := values(t, a.B)
			for i := range rank {
				clear[3*rank+i] = 0 // so that row 3 is of zeros
			}
			require.NoError(t, snug.Copy(a.B, clear))

			d, err := NewDoRA(m, a)
			require.NoError(t, err)
			want, err := NewDoRA(l, a)
			require.NoError(t, err)
			near(want.n, d.n, "n", m)
			near(want.c, d.c, "c", m)
			require.Zero(t, values(t, d.c)[3])
			pass := func(d *DoRA) (all []snug.View) {
				draw := Dropout{Draw: amp.Draw{Seed: 3}, Work: zeros(rows * in)}
				y, h, u, dx, du := zeros(rows*out), zeros(rows*out), zeros(rows*rank), zeros(rows*in), zeros(rows*rank)
				g := Grads{A: zeros(rank * in), B: zeros(out * rank), Magnitude: zeros(out)}
				require.NoError(t, d.Forward(y, h, u, x, draw))
				again, againU, same := zeros(rows*out), zeros(rows*rank), zeros(rows*out)
				require.NoError(t, errors.Join(d.Inner(again, againU, x, draw), d.Forward(same, same, zeros(rows*rank), x, draw)))
				sameBits(t, values(t, h), values(t, again))
				sameBits(t, values(t, u), values(t, againU))
				sameBits(t, values(t, y), values(t, same))
				require.NoError(t, d.Backward(dx, du, dy, h, u, x, g, draw))
				return []snug.View{y, dx, g.A, g.B, g.Magnitude}
			}
			have, wanted := pass(d), pass(want)
			for i, name := range []string{"y", "dx", "dA", "dB", "dm"} {
				near(wanted[i], have[i], name+" of a DoRA", m)
			}
			for _, magnitude := range []snug.View{a.Magnitude, {}} {
				b := *a
				b.Magnitude = magnitude
				merged, wantMerged := zeros(out*in), zeros(out*in)
				require.NoError(t, errors.Join(errorOf(m.(*Dense).Merge(merged, &b)), errorOf(Merge(wantMerged, w, &b, 0))))
				if m == other {
					merged = put(turned(values(t, merged), in, out))
				}
				near(wantMerged, merged, "a merged matrix", m)
			}
			if onCPU(backend) {
				kerneltest.NoAllocs(t, func() { _ = d.Update() })
			}
			require.NoError(t, errors.Join(d.Close(), want.Close()))
		}
		require.NoError(t, errors.Join(other.Close(), plain.Close(), l.Close(), w.Close()))
	}
}

func TestDenseErrors(t *testing.T) {
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	for want, c := range map[error]struct {
		w       snug.View
		out, in int
	}{snug.ErrShape: {v(7), 2, 4}, snug.ErrDType: {snug.SliceView(make([]uint8, 8)), 2, 4}} {
		_, err := NewDense(c.w, c.out, c.in, false)
		require.ErrorIs(t, err, want)
	}
	for _, dims := range [][2]int{{0, 4}, {4, 0}, {-1, -8}, {math.MaxInt, math.MaxInt}} {
		_, err := NewDense(v(0), dims[0], dims[1], true)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	d, err := NewDense(v(8), 2, 4, false)
	require.NoError(t, err)
	_, err = d.Share(v(8), 3, 4, false)
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorIs(t, d.Forward(v(2), v(5), 0), snug.ErrShape)
	require.ErrorIs(t, d.Backward(v(4), v(4), 0), snug.ErrShape)
	require.NoError(t, d.Forward(v(0), v(0), 0))
	require.ErrorIs(t, d.Norms(v(3), nil), snug.ErrShape)
	good := LoRA{In: 4, Out: 2, Rank: 1, Scale: 1, A: v(4), B: v(2), Magnitude: v(2)}
	require.NoError(t, errorOf(d.Merge(v(8), &good)))
	require.ErrorIs(t, errorOf(d.Merge(v(7), &good)), snug.ErrShape)
	require.ErrorIs(t, errorOf(d.Merge(snug.SliceView(make([]uint8, 8)), &good)), snug.ErrDType)
	require.ErrorIs(t, errorOf(d.Merge(v(8), nil)), snug.ErrConfig)
	wrong := LoRA{In: 2, Out: 4, Rank: 1, Scale: 1, A: v(2), B: v(4)}
	require.ErrorIs(t, errorOf(d.Merge(v(8), &wrong)), snug.ErrShape)
	_, err = NewDoRA(nil, &good)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, errors.Join(d.Close(), d.Close()))
	for name, bad := range map[string]*Dense{"nil": nil, "zero": {}, "closed": d} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, bad.Forward(v(2), v(4), 0), snug.ErrConfig, name)
			require.ErrorIs(t, bad.Backward(v(4), v(2), 0), snug.ErrConfig, name)
			require.ErrorIs(t, bad.Norms(v(2), nil), snug.ErrConfig, name)
			require.ErrorIs(t, errorOf(bad.Merge(v(8), &good)), snug.ErrConfig, name)
			_, err := bad.Share(v(8), 2, 4, false)
			require.ErrorIs(t, err, snug.ErrConfig, name)
			_, err = NewDoRA(bad, &good)
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.Zero(t, bad.Bytes(), name)
			require.NoError(t, bad.Close())
		})
	}
}
