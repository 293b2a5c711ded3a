package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// What NaN, infinities and equal logits give, on every backend.
func TestRouteOfNonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name                string
		logits              []float32
		bias                []float32
		experts             []int32
		softmax, normalized [2]float32 // weights
		sigmoid, shares     [2]float32
	}{
		{"NaN", []float32{1, nan, 0, 2}, nil, []int32{1, 3}, [2]float32{nan, nan}, [2]float32{nan, nan}, [2]float32{nan, 0.880797}, [2]float32{nan, nan}},
		{"all NaN", []float32{nan, nan, nan, nan}, nil, []int32{0, 1}, [2]float32{nan, nan}, [2]float32{nan, nan}, [2]float32{nan, nan}, [2]float32{nan, nan}},
		{"infinity", []float32{1, 0, inf, 0}, nil, []int32{2, 0}, [2]float32{nan, nan}, [2]float32{nan, nan}, [2]float32{1, 0.731059}, [2]float32{0.577681, 0.422319}},
		{"one left", []float32{-inf, -inf, -inf, 3}, nil, []int32{3, 0}, [2]float32{1, 0}, [2]float32{1, 0}, [2]float32{0.952574, 0}, [2]float32{1, 0}},
		{"none left", []float32{-inf, -inf, -inf, -inf}, nil, []int32{0, 1}, [2]float32{nan, nan}, [2]float32{nan, nan}, [2]float32{0, 0}, [2]float32{nan, nan}},
		{"equal", []float32{0, float32(math.Copysign(0, -1)), 0, 0}, nil, []int32{0, 1}, [2]float32{0.25, 0.25}, [2]float32{0.5, 0.5}, [2]float32{0.5, 0.5}, [2]float32{0.5, 0.5}},
		{"bias", []float32{0, 0, 0, 0}, []float32{0, 1, 0, 2}, []int32{3, 1}, [2]float32{0.25, 0.25}, [2]float32{0.5, 0.5}, [2]float32{0.5, 0.5}, [2]float32{0.5, 0.5}},
		{"far below", []float32{-200, -201, -300, -300}, nil, []int32{0, 1}, [2]float32{0.731059, 0.268941}, [2]float32{0.731059, 0.268941}, [2]float32{0, 0}, [2]float32{0.731059, 0.268941}},
	} {
		kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
			for _, k := range []struct {
				r    Router
				want [2]float32
			}{{Router{}, c.softmax}, {Router{Normalize: true}, c.normalized}, {Router{Sigmoid: true}, c.sigmoid}, {Router{Sigmoid: true, Normalize: true}, c.shares}} {
				k.r.Experts, k.r.Chosen = 4, 2
				experts, weights, logits := make([]int32, 2), kerneltest.Put(t, p, fill(2, untouched)), kerneltest.Put(t, p, c.logits)
				require.NoError(t, Route(k.r, experts, weights.View, logits.View, c.bias))
				require.Equal(t, c.experts, experts, c.name)
				for i, x := range weights.Get() {
					if k.want[i] != k.want[i] {
						require.True(t, x != x, "%s: %v: %v", c.name, k.r, x)
						continue
					}
					require.InDelta(t, k.want[i], x, 1e-6, "%s: %v", c.name, k.r)
				}
			}
		})
	}
}

// The bits of all backends are the same.
//
//check:in tiers arm64 late
func TestRouteBits(t *testing.T) {
	const rows = 37
	for _, r := range routers {
		logits, dweights, aux := normals(newRand(8), snug.F32, rows*r.Experts, 0, 5), random(rows*r.Chosen), random(r.Experts)
		var wantE []int32
		var want, wantD []float32
		for i, p := range kerneltest.Backends(t) {
			put := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, x) }
			experts, weights, dlogits := make([]int32, rows*r.Chosen), put(fill(rows*r.Chosen, 0)), put(fill(rows*r.Experts, 0))
			require.NoError(t, Route(r, experts, weights.View, put(logits).View, quarters(newRand(1), r.Experts)))
			require.NoError(t, RouteBackward(r, dlogits.View, put(dweights).View, put(logits).View, experts, aux))
			if i == 0 {
				wantE, want, wantD = experts, weights.Get(), dlogits.Get()
			}
			require.Equal(t, wantE, experts)
			requireBits(t, "weights", want, weights.Get())
			requireSameNumbers(t, wantD, dlogits.Get())
		}
	}
}

// requireSameNumbers is requireBits for numbers whose zeros may differ in sign.
func requireSameNumbers(t *testing.T, want, got []float32) {
	require.Len(t, got, len(want))
	for i, x := range want {
		require.True(t, x == got[i], "element %d is %v, want %v", i, got[i], x)
	}
}

func TestRouteErrors(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, name := range []string{"Route", "RouteBackward", "AddScores"} {
		for _, r := range []Router{{}, {Experts: 4}, {Chosen: 1}, {Experts: -4, Chosen: 1}, {Experts: 4, Chosen: 5}, {Experts: 4, Chosen: -1},
			{Experts: 4, Chosen: 2, Scale: nan}, {Experts: 4, Chosen: 2, Scale: inf}} {
			c := newCall()
			c.router = r
			requireRefused(t, name, c, snug.ErrConfig, name, " is ")
		}
		c := newCall()
		c.router.Experts = 5
		requireRefused(t, name, c, snug.ErrShape, name)
	}
	for _, name := range []string{"Route", "RouteBackward"} {
		c := newCall()
		c.perExpert = []float32{0, 0, nan, 0}
		requireRefused(t, name, c, snug.ErrConfig, "[2] is NaN")
		c.perExpert = make([]float32, 3)
		requireRefused(t, name, c, snug.ErrShape, "3 elements")
		c = newCall()
		c.experts = c.experts[:5]
		requireRefused(t, name, c, snug.ErrShape, "experts has 5 elements")
	}
	for _, e := range []int32{-1, 4, math.MaxInt32} {
		c := newCall()
		c.experts[3] = e
		requireRefused(t, "RouteBackward", c, snug.ErrShape, "experts[3] is")
	}
	for _, bad := range []float32{0, -1, nan, inf, 1e10, 1e-10} {
		require.ErrorIs(t, ClampedSwiGLU([]float32{1}, []float32{1}, []float32{1}, bad, 1), snug.ErrConfig)
		require.ErrorIs(t, ClampedSwiGLU([]float32{1}, []float32{1}, []float32{1}, 1, bad), snug.ErrConfig)
		require.ErrorIs(t, ClampedSwiGLUBackward([]float32{1}, []float32{1}, []float32{1}, []float32{1}, []float32{1}, 1, bad), snug.ErrConfig)
	}
	require.Zero(t, Router{}.WorkspaceLen(3))
	require.Zero(t, Router{Experts: 3}.WorkspaceLen(-1))
}

// Without memory for the experts or the bias there is an error, and no leak.
func TestRouteNoMemory(t *testing.T) {
	dev, err := snug.Open("scarce:0")
	require.NoError(t, err)
	scarceDevice.left = 2
	logits, weights := arrayOf(t, dev, []float32{1, 2}), arrayOf(t, dev, []float32{0})
	before, _, err := dev.Memory()
	require.NoError(t, err)
	r, experts, bias := Router{Experts: 2, Chosen: 1}, []int32{7}, []float32{0, 0}
	for left := range 2 {
		leave(t, dev, left)
		require.ErrorIs(t, Route(r, experts, weights, logits, bias), snug.ErrNoMemory)
		leave(t, dev, left)
		require.ErrorIs(t, RouteBackward(r, logits, weights, logits, []int32{0}, bias), snug.ErrNoMemory)
	}
	leave(t, dev, 0)
	require.ErrorIs(t, AddRows(logits, weights, snug.Array[float32]{}, []int32{1}, 1, 1), snug.ErrNoMemory)
	require.Equal(t, []int32{7}, experts)
	leave(t, dev, 2)
	require.NoError(t, Route(r, experts, weights, logits, bias))
	require.Equal(t, []int32{1}, experts)
	require.NoError(t, dev.Sync())
	after, _, err := dev.Memory()
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, dev.Close())
}
