package ggml

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// guards are the elements after a result that nobody may write.
const guards = 70

// random returns blocks of random bytes whose scales are usual ones, or with extremes also subnormal, largest, negative and 0.
func random(f Format, n int, extremes bool) []byte {
	rng := rand.New(rand.NewPCG(uint64(f), uint64(n)))
	b := make([]byte, n*f.Bytes())
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	all := []uint16{0x1234, 0x9a5b, 0x2001, 0x1c00, 0, 0x8000, 1, 0x8001, 0x3ff, 0x7bff, 0xfbff, 0x3c00}
	if !extremes {
		all = all[:4]
	}
	for i := range n {
		for _, at := range layouts[f].scales {
			s := all[rng.IntN(len(all))]
			b[i*f.Bytes()+at], b[i*f.Bytes()+at+1] = byte(s), byte(s>>8)
		}
		if layouts[f].power {
			b[i*f.Bytes()] = byte(120 + rng.IntN(10))
			if extremes {
				b[i*f.Bytes()] = byte(i * 17 % 253)
			}
		}
	}
	return b
}

// TestDecode: all tiers have the bits of the loops in Go, at any address, and write nothing else.
//
//check:in tiers
func TestDecode(t *testing.T) {
	for f := range Formats {
		for _, n := range []int{0, 1, 2, 3, 7, 50} {
			for off := range 3 {
				blocks := append(make([]byte, off), random(f, n, true)...)[off:]
				want := make([]float32, n*f.Elements())
				inGo[f](want, blocks)
				for tier, k := range Registry.All() {
					got := slices.Repeat([]float32{77}, off+len(want)+guards)
					k.Decode[f](got[off:off+len(want)], blocks)
					require.Equal(t, kerneltest.Bits(want), kerneltest.Bits(got[off:off+len(want)]), "%v: format %d, %d blocks", tier, f, n)
					for _, v := range append(got[:off:off], got[off+len(want):]...) {
						require.EqualValues(t, 77, v)
					}
				}
			}
		}
	}
}

// TestDecodeWhole: what is no whole block, of elements or of bytes, is left.
func TestDecodeWhole(t *testing.T) {
	for f := range Formats {
		blocks := random(f, 3, false)
		for _, k := range Registry.All() {
			x := slices.Repeat([]float32{77}, 3*f.Elements())
			k.Decode[f](x[:2*f.Elements()-1], blocks)
			require.NotEqualValues(t, 77, x[f.Elements()-1])
			k.Decode[f](x[f.Elements():], blocks[:f.Bytes()-1])
			for _, v := range x[f.Elements():] {
				require.EqualValues(t, 77, v)
			}
		}
	}
}

// TestProducts compares products with sums in float64, at any address, for all numbers of rows; nothing else is written.
//
//check:in tiers
func TestProducts(t *testing.T) {
	for f := range Formats {
		for _, n := range []int{0, 1, 2, 3, 9, 40} {
			size := n * f.Elements()
			blocks, w, stride := random(f, n, false), make([]float32, size), size+3
			inGo[f](w, blocks)
			for rows := 1; rows <= 8; rows++ {
				x, a := kerneltest.Normal(1, rows*stride+1)[1:], kerneltest.Normal(2, rows)
				x = x[:len(x)-3] // the last row has no rest
				for tier, k := range Registry.All() {
					if k.Dot[f] == nil {
						require.Nil(t, k.Axpy[f])
						continue
					}
					what := fmt.Sprintf("%v: format %d, %d rows of %d blocks", tier, f, rows, n)
					y := slices.Repeat([]float32{77}, rows+guards)
					k.Dot[f](y[:rows], x, stride, blocks)
					for r := range rows { // a row has the same bits beside any others
						alone := []float32{77}
						k.Dot[f](alone, x[r*stride:], stride, blocks)
						require.Equal(t, alone, y[r:r+1], what)
					}
					sums := slices.Clone(x)
					k.Axpy[f](sums, stride, a, blocks)
					for r := range rows {
						want, bound := 0.0, 0.0
						for i, v := range w {
							at := r*stride + i
							scale := math.Abs(float64(v)) + most(w, i)
							want += float64(v) * float64(x[at])
							bound += math.Abs(float64(x[at])) * scale
							require.InDelta(t, float64(x[at])+float64(a[r])*float64(v), float64(sums[at]),
								3*0x1p-24*(math.Abs(float64(x[at]))+math.Abs(float64(a[r]))*scale), what)
							sums[at] = x[at]
						}
						require.InDelta(t, want, float64(y[r]), float64(size/8+12)*0x1p-24*bound, what)
					}
					require.Equal(t, x, sums)
					for _, v := range y[rows:] {
						require.EqualValues(t, 77, v)
					}
				}
			}
		}
	}
}

// most returns the largest magnitude beside an element.
func most(w []float32, i int) float64 {
	top := 0.0
	for _, v := range w[i/16*16:][:16] {
		top = max(top, math.Abs(float64(v)))
	}
	return top
}

// TestNotFinite: all scales count, and the first block is named.
func TestNotFinite(t *testing.T) {
	for f := range Formats {
		blocks := random(f, 9, true)
		require.Equal(t, -1, f.NotFinite(blocks))
		for _, bad := range []int{8, 3, 0} {
			if layouts[f].power {
				blocks[bad*f.Bytes()] = 255
				require.Equal(t, bad, f.NotFinite(blocks))
				continue
			}
			for _, at := range layouts[f].scales {
				for _, scale := range []uint16{0x7c00, 0xfc00, 0x7e01, 0x7c01} {
					b := slices.Clone(blocks)
					b[bad*f.Bytes()+at], b[bad*f.Bytes()+at+1] = byte(scale), byte(scale>>8)
					require.Equal(t, bad, f.NotFinite(b))
				}
			}
		}
	}
	require.Equal(t, -1, Q4K.NotFinite(nil))
}

func TestOf(t *testing.T) {
	for f := range Formats {
		got, known := Of(layouts[f].number)
		require.True(t, known)
		require.Equal(t, f, got)
	}
	for _, number := range []uint32{0, 1, 9, 15, 16, 30, 99} {
		_, known := Of(number)
		require.False(t, known)
	}
}

// BenchmarkKernels counts elements as bytes, of blocks in the second cache.
func BenchmarkKernels(b *testing.B) {
	for f := range Formats {
		n := 1 << 14
		blocks, x, y := random(f, n/f.Elements(), false), kerneltest.Normal(1, 4*n), make([]float32, 4)
		for tier, k := range Registry.All() {
			run := func(name string, do func()) {
				b.Run(fmt.Sprintf("%s/%d/%v", name, f, tier), func(b *testing.B) {
					b.SetBytes(int64(n))
					for b.Loop() {
						do()
					}
				})
			}
			run("decode", func() { k.Decode[f](x[:n], blocks) })
			for _, rows := range []int{1, 2, 4} {
				if k.Dot[f] != nil {
					run(fmt.Sprintf("dot%d", rows), func() { k.Dot[f](y[:rows], x, n, blocks) })
					run(fmt.Sprintf("axpy%d", rows), func() { k.Axpy[f](x, n, y[:rows], blocks) })
				}
			}
		}
	}
}
