package vision_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/vision"
)

const cachedModel = "testdata/tune/gemma3"

// cacheOf opens a cache in a folder.
func cacheOf(t *testing.T, dir string, o vision.CacheOptions) (*vision.Cache, *offload.Store) {
	in, err := vision.OpenInput(cachedModel)
	require.NoError(t, err)
	s, err := offload.Open(dir, offload.Options{HostLimit: 64 << 10})
	require.NoError(t, err)
	c, err := in.NewCache(s, o)
	require.NoError(t, err)
	return c, s
}

// pictures returns an Encoder and what Fill asks for some images.
func pictures(t *testing.T) (e *vision.Encoder, image func(i int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error))) {
	e, err := vision.OpenEncoder(cachedModel, layers.Options{DType: snug.F32})
	require.NoError(t, err)
	return e, func(i int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error)) {
		l := vision.Layout{Shape: []int{1, 3, 16, 16}, Tokens: 4}
		return sha256.Sum256([]byte{byte(i)}), l, func() (vision.Pixels, error) {
			return vision.Pixels{Layout: l, Values: numbers(7000+i, 3*16*16)}, nil
		}
	}
}

// TestCache: what an encoder computed is found again, in the bits of its type, also when the store is opened anew.
func TestCache(t *testing.T) {
	ctx := context.Background()
	e, image := pictures(t)
	for name, c := range map[string]struct {
		o     vision.CacheOptions
		bytes int
		round func(x float32) float32
	}{
		"F32":    {vision.CacheOptions{DType: snug.F32}, 4, func(x float32) float32 { return x }},
		"BF16":   {vision.CacheOptions{DType: snug.BF16}, 2, func(x float32) float32 { return snug.ToBFloat16(x).Float32() }},
		"F16":    {vision.CacheOptions{DType: snug.F16}, 2, func(x float32) float32 { return half.F16ToFloat32(half.Float32ToF16(x)) }},
		"8 bits": {vision.CacheOptions{Bits: 8}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cache, store := cacheOf(t, dir, c.o)
			var done []int
			require.NoError(t, cache.Fill(ctx, e, 3, image, func(i int) error { done = append(done, i); return nil }))
			require.Equal(t, []int{0, 1, 2}, done)
			require.NoError(t, store.Close())
			cache, store = cacheOf(t, dir, c.o)
			for i := range 3 {
				sum, l, pixels := image(i)
				x, err := pixels()
				require.NoError(t, err)
				want, err := e.Encode(ctx, []vision.Pixels{x})
				require.NoError(t, err)
				require.True(t, cache.Has(sum, l))
				f, err := cache.Get(sum, l)
				require.NoError(t, err)
				got, exact := make([]float32, f.Values.Len()), want[0].Values.Float32s()
				half.Load(got, f.Values, 0)
				in, err := vision.OpenInput(cachedModel)
				require.NoError(t, err)
				n, err := in.FeatureBytes(l, c.o)
				require.NoError(t, err)
				if c.round == nil {
					require.Equal(t, int64(len(got)+4), n)
					for j, x := range exact {
						largest := float32(0)
						for _, y := range exact {
							largest = max(largest, float32(math.Abs(float64(y))))
						}
						require.InDelta(t, x, got[j], float64(largest)/250)
					}
					continue
				}
				require.Equal(t, int64(len(got)*c.bytes), n)
				for j, x := range exact {
					require.Equal(t, c.round(x), got[j])
				}
			}
			other, l, _ := image(3)
			require.False(t, cache.Has(other, l))
			_, err := cache.Get(other, l)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.NoError(t, store.Close())
			// Features of other weights are not these.
			o := c.o
			o.About[5] = 1
			cache, store = cacheOf(t, dir, o)
			sum, l, _ := image(0)
			require.False(t, cache.Has(sum, l))
			require.NoError(t, store.Close())
		})
	}
}

// TestCacheGoesOn: an interrupted Fill goes on where it was, and errors of its functions end it.
func TestCacheGoesOn(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	e, image := pictures(t)
	cache, store := cacheOf(t, dir, vision.CacheOptions{DType: snug.BF16})
	stop := errors.New("stop")
	require.ErrorIs(t, cache.Fill(ctx, e, 5, image, func(i int) error {
		if i == 2 {
			return stop
		}
		return nil
	}), stop)
	require.NoError(t, cache.Commit())
	require.NoError(t, store.Close())
	cache, store = cacheOf(t, dir, vision.CacheOptions{DType: snug.BF16})
	read := 0
	require.NoError(t, cache.Fill(ctx, e, 5, func(i int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error)) {
		sum, l, pixels := image(i)
		return sum, l, func() (vision.Pixels, error) { read++; return pixels() }
	}, nil))
	require.Equal(t, 2, read)
	bad := func(i int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error)) {
		sum, l, _ := image(i)
		return sum, l, func() (vision.Pixels, error) { return vision.Pixels{}, stop }
	}
	require.NoError(t, cache.Fill(ctx, e, 5, bad, nil)) // all are there
	require.ErrorIs(t, cache.Fill(ctx, e, 6, bad, nil), stop)
	require.NoError(t, store.Close())
}

// TestCacheRefused: zero values, and features of another model.
func TestCacheRefused(t *testing.T) {
	ctx := context.Background()
	e, image := pictures(t)
	in, err := vision.OpenInput(cachedModel)
	require.NoError(t, err)
	_, err = in.NewCache(nil, vision.CacheOptions{DType: snug.F32})
	require.ErrorIs(t, err, snug.ErrConfig)
	cache, store := cacheOf(t, t.TempDir(), vision.CacheOptions{Bits: 8})
	for _, o := range []vision.CacheOptions{{}, {DType: snug.F32, Bits: 4}, {Bits: -8}, {DType: snug.F8E4M3}} {
		_, err := in.NewCache(store, o)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = in.FeatureBytes(vision.Layout{Tokens: 4}, o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	_, err = (*vision.Input)(nil).NewCache(store, vision.CacheOptions{Bits: 8})
	require.ErrorIs(t, err, snug.ErrConfig)
	sum, l, _ := image(0)
	require.ErrorIs(t, cache.Put(sum, vision.Features{Layout: l}), snug.ErrShape)
	require.ErrorIs(t, cache.Put(sum, vision.Features{Layout: l, Values: snug.ViewOf(make([]float32, 7))}), snug.ErrShape)
	nan := make([]float32, 64)
	nan[9] = float32(math.NaN())
	require.ErrorIs(t, cache.Put(sum, vision.Features{Layout: l, Values: snug.ViewOf(nan)}), snug.ErrNonFinite)
	require.False(t, cache.Has(sum, l))
	require.ErrorIs(t, cache.Fill(ctx, nil, 1, image, nil), snug.ErrConfig)
	require.ErrorIs(t, cache.Fill(ctx, e, 1, nil, nil), snug.ErrConfig)
	require.ErrorIs(t, cache.Fill(ctx, e, 1, func(int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error)) {
		return sum, l, nil
	}, nil), snug.ErrConfig)
	require.Positive(t, in.ProjectorBytes(math.MaxInt, snug.F32))
	require.Zero(t, in.ProjectorBytes(-1, snug.F32))
	for _, none := range []*vision.Cache{nil, {}} {
		require.ErrorIs(t, none.Commit(), snug.ErrConfig)
		require.ErrorIs(t, none.Put(sum, vision.Features{}), snug.ErrConfig)
		require.ErrorIs(t, none.Fill(ctx, e, 1, image, nil), snug.ErrConfig)
		require.False(t, none.Has(sum, l))
		_, err := none.Get(sum, l)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.NoError(t, store.Close())
}
