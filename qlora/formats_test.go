package qlora

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
)

const formatsFile = "testdata/formats/weights.safetensors"

// kindGolden is what testdata/formats/make.py says of a weight.
type kindGolden struct {
	Name, Type string
	Shape      []int
	F32, BF16  uint32
	Src        encoded
}

func readKinds(t *testing.T) (rows []kindGolden) {
	b, err := os.ReadFile("testdata/formats/weights.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &rows))
	return rows
}

// TestKindsOfFiles reads weights of published forms, whose values are those of transformers, bitsandbytes and torch,
// bit for bit, and writes them as they were.
func TestKindsOfFiles(t *testing.T) {
	w, err := OpenWeights(formatsFile)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	all := map[string]*Weight{}
	for _, g := range readKinds(t) {
		require.Contains(t, w.Names(), g.Name)
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			weight, err := w.Load(g.Name, backend.Dev)
			require.NoError(t, err)
			require.Equal(t, g.Type, weight.Type().String())
			require.Equal(t, g.Shape, weight.Shape())
			for dt, want := range map[snug.DType]uint32{snug.F32: g.F32, snug.BF16: g.BF16} {
				dst := kerneltest.PutFloats(t, backend, dt, make([]float32, weight.Len()))
				require.NoError(t, weight.Dequantize(dst.View))
				host, _, err := snug.MakeView(snug.CPU(), dt, weight.Len())
				require.NoError(t, err)
				require.NoError(t, snug.Copy(host, dst.View))
				require.Equal(t, want, crc32.ChecksumIEEE(device.Mem(&host).Bytes()), "%s as %v", g.Name, dt)
			}
			if onCPU(backend) {
				all[g.Name] = weight
			}
		})
	}
	require.Len(t, w.Names(), len(all))
	var file bytes.Buffer
	n, err := WriteWeights(&file, maps.All(all), nil)
	require.NoError(t, err)
	require.EqualValues(t, file.Len(), n)
	again, err := NewWeights(bytes.NewReader(file.Bytes()), n)
	require.NoError(t, err)
	for name, before := range all {
		after, err := again.Load(name, nil)
		require.NoError(t, err)
		require.Equal(t, before.Shape(), after.Shape())
		require.Equal(t, before.Bytes(), after.Bytes())
		sameBits(t, decoded(t, before), decoded(t, after))
	}
}

func decoded(t *testing.T, w *Weight) []float32 {
	x := make([]float32, w.Len())
	require.NoError(t, w.Dequantize(snug.ViewOf(x)))
	return x
}

// TestOctetsOnDevices: every device decodes whole weights and parts of them to the bits of the CPU, also where a scale ends
// within 16 bytes of the result.
func TestOctetsOnDevices(t *testing.T) {
	for _, backend := range backends(t)[1:] {
		for n, shape := range [][]int{{3, 5}, {130, 260}, {7, 1100}, {260, 129}, {300, 24}} {
			for _, o := range kinds[1:7] {
				w, src := make([]*Weight, 2), kerneltest.Normal(uint64(n), shape[0]*shape[1])
				for i, dev := range []*snug.Device{snug.CPU(), backend.Dev} {
					var err error
					w[i], err = NewWeight(on(t, dev, snug.F32, src), shape, o)
					require.NoError(t, err)
				}
				require.Equal(t, w[0].Bytes(), w[1].Bytes())
				in := shape[1]
				for _, rows := range [][2]int{{0, shape[0]}, {1, shape[0]}, {shape[0] - 1, shape[0]}} {
					for _, dt := range floatTypes {
						var got [2][]float32
						for i := range got {
							dst := on(t, w[i].Device(), dt, make([]float32, (rows[1]-rows[0])*in))
							require.NoError(t, w[i].dequantizeRange(dst, rows[0]*in))
							got[i] = values(t, dst)
						}
						sameBits(t, got[0], got[1])
					}
				}
				require.NoError(t, w[1].Close())
				require.ErrorIs(t, w[1].Dequantize(on(t, backend.Dev, snug.F32, src)), snug.ErrDevice)
			}
		}
		x := on(t, backend.Dev, snug.F32, make([]float32, 64))
		_, err := NewWeight(x, []int{2, 32}, Options{Type: INT8, Outliers: []int{1}})
		require.ErrorIs(t, err, snug.ErrDevice)
		empty, err := NewWeight(part(x, 0, 0), []int{0, 32}, Options{Type: FP8})
		require.NoError(t, err)
		require.NoError(t, empty.Dequantize(part(x, 0, 0)))
	}
}

// TestInt8IsBitsandbytes: the codes and scales are those of bitsandbytes.
//
//check:in tiers arm64 arm64-go
func TestInt8IsBitsandbytes(t *testing.T) {
	for _, g := range readKinds(t) {
		if g.Type != "int8" {
			continue
		}
		src := on(t, snug.CPU(), snug.F16, g.Src.floats(t, snug.F16))
		w, err := NewWeight(src, g.Shape, Options{Type: INT8})
		require.NoError(t, err)
		x := decoded(t, w)
		v := snug.ViewOf(x)
		require.Equal(t, g.F32, crc32.ChecksumIEEE(device.Mem(&v).Bytes()))
	}
}

// kinds are options of all types that are not bitsandbytes' 4 bits.
var kinds = []Options{
	{Type: MXFP4}, {Type: FP8}, {Type: FP8, Scales: ByRow}, {Type: FP8, Scales: ByTensor}, {Type: FP8E5M2}, {Type: FP8E5M2, Scales: ByRow},
	{Type: INT8}, {Type: INT8, Outliers: []int{0, 3, 159}},
}

// TestKindsNearest compares every element with the nearest number of its form, and the size of weights with what they
// say.
func TestKindsNearest(t *testing.T) {
	const out, in = 150, 160
	x := kerneltest.Normal(1, out*in)
	for i := range 40 {
		x[i] = 0
	}
	x[200], x[201] = 30, -1e-30
	for _, dt := range floatTypes {
		src := on(t, snug.CPU(), dt, x)
		x := values(t, src)
		for _, o := range kinds {
			w, err := NewWeight(src, []int{out, in}, o)
			require.NoError(t, err)
			require.Equal(t, dt, w.DType())
			y := decoded(t, w)
			for i, v := range x {
				row, col := i/in, i%in
				if slices.Contains(o.Outliers, col) {
					want := v
					if dt == snug.F32 {
						want = snug.ToBFloat16(v).Float32()
					}
					require.Equal(t, want, y[i], "%+v: outlier %d", o, i)
					continue
				}
				most := 0.0 // of the elements that share the scale
				shares := func(r, c int) bool {
					switch {
					case o.Type == MXFP4:
						return r == row && c/32 == col/32
					case o.Type == INT8 || o.Scales == ByRow:
						return r == row
					case o.Scales == ByTensor:
						return true
					}
					return r/128 == row/128 && c/128 == col/128
				}
				if i%37 == 0 || i < 300 {
					for r := range out {
						for c := range in {
							if shares(r, c) && !slices.Contains(o.Outliers, c) {
								most = max(most, math.Abs(float64(x[r*in+c])))
							}
						}
					}
					away := math.Abs(float64(v) - float64(y[i]))
					require.LessOrEqual(t, away, furthest(o.Type, math.Abs(float64(v)), most)*1.0001+1e-40, "%+v: element %d is %g, %g", o, i, v, y[i])
				}
			}
			size := map[Type]int64{MXFP4: out*in/2 + out*in/32 + 4*3, FP8: out*in + 4*4, FP8E5M2: out*in + 4*4, INT8: out*in + 4*out + 2*out*int64(len(o.Outliers))}[o.Type]
			if o.Scales == ByRow {
				size = out*in + 4*out
			} else if o.Scales == ByTensor {
				size = out*in + 4
			}
			require.Equal(t, size, w.Bytes(), "%+v", o)
		}
	}
}

// furthest returns how far the nearest number may be from x where the largest magnitude is most.
func furthest(t Type, x, most float64) float64 {
	half := func(unit, digits float64) float64 { // of the gap at x, of a float with the smallest normal unit·2^digits
		_, e := math.Frexp(max(x, unit*math.Pow(2, digits)))
		return math.Pow(2, float64(e)-1-digits) / 2
	}
	switch t {
	case MXFP4:
		_, e := math.Frexp(most)
		unit := math.Pow(2, float64(e-3))
		if x > 6*unit {
			return x - 6*unit
		}
		return half(unit/2, 1)
	case FP8:
		x /= most / 448
		return half(0x1p-9, 3) * most / 448
	case FP8E5M2:
		x /= most / 57344
		return half(0x1p-16, 2) * most / 57344
	}
	return most / 127 / 2
}

// TestMXFP4Ties: of two values as near the one with an even last bit is taken.
func TestMXFP4Ties(t *testing.T) {
	x := make([]float32, 32)
	copy(x, []float32{4, 0.25, -0.25, 0.75, -0.75, 1.25, -1.25, 1.75, -1.75, 2.5, -2.5, 3.5, -3.5, 5, -5, 7, -7, 0.2500001, float32(math.Copysign(0, -1))})
	w, err := NewWeight(x, []int{32}, Options{Type: MXFP4})
	require.NoError(t, err)
	got := decoded(t, w)
	require.Equal(t, []float32{4, 0, 0, 1, -1, 1, -1, 2, -2, 2, -2, 4, -4, 4, -4, 6, -6, 0.5, 0, 0}, got[:20])
	require.True(t, math.Signbit(float64(got[2])) && math.Signbit(float64(got[18])))
	require.False(t, math.Signbit(float64(got[1])) || math.Signbit(float64(got[19])))
}

// TestKindsMultiply: products are those by the decoded matrix, for every number of rows, in pages too, with one worker
// and without allocations.
func TestKindsMultiply(t *testing.T) {
	const out, in = 70, 160
	for _, o := range kinds {
		w, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, o)
		require.NoError(t, err)
		paged, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, o)
		require.NoError(t, err)
		require.NoError(t, paged.Page(newLender(), "w"))
		dense := decoded(t, w)
		sameBits(t, dense, decoded(t, paged))
		for _, dt := range floatTypes {
			l, err := NewLinear(w, dt, 7*in)
			require.NoError(t, err)
			p, err := l.Share(paged)
			require.NoError(t, err)
			for _, rows := range []int{1, 3, 8, 9, 40} {
				for _, back := range []bool{false, true} {
					from, to := in, out
					do, doPaged := l.Forward, p.Forward
					at := func(k, j int) float64 { return float64(dense[j*in+k]) }
					if back {
						from, to, do, doPaged = out, in, l.Backward, p.Backward
						at = func(k, j int) float64 { return float64(dense[k*in+j]) }
					}
					x := on(t, snug.CPU(), dt, kerneltest.Normal(2, rows*from))
					xs := values(t, x)
					want, bound := matrix(rows, to, from, func(i, k int) float64 { return float64(xs[i*from+k]) }, at)
					y, z := make([]float32, rows*to), make([]float32, rows*to)
					require.NoError(t, do(snug.ViewOf(y), x, 0))
					near(t, want, bound, y, 1e-5+roundings[dt], fmt.Sprintf("%+v, %v, %d rows, back %v", o, dt, rows, back))
					require.NoError(t, doPaged(snug.ViewOf(z), x, 0))
					sameBits(t, y, z)
					if rows > 1 {
						kerneltest.NoAllocs(t, func() { _ = do(snug.ViewOf(y), x, 0) })
					}
				}
			}
		}
	}
}

func TestKindErrors(t *testing.T) {
	x := kerneltest.Normal(1, 64*33)
	bad := slices.Clone(x)
	bad[77] = float32(math.Inf(1))
	for name, c := range map[string]struct {
		x     []float32
		shape []int
		o     Options
		kind  error
	}{
		"infinite":             {bad, []int{33, 64}, Options{Type: FP8}, snug.ErrNonFinite},
		"infinite in MX":       {bad, []int{33, 64}, Options{Type: MXFP4}, snug.ErrNonFinite},
		"three dimensions":     {x, []int{3, 11, 64}, Options{Type: INT8}, snug.ErrShape},
		"rows of MX":           {x, []int{64, 33}, Options{Type: MXFP4}, snug.ErrShape},
		"MX without dimension": {x[:1], []int{}, Options{Type: MXFP4}, snug.ErrShape},
		"block of FP8":         {x, []int{33, 64}, Options{Type: FP8, Block: 64}, snug.ErrConfig},
		"single of MX":         {x, []int{33, 64}, Options{Type: MXFP4, Single: true}, snug.ErrConfig},
		"scales of INT8":       {x, []int{33, 64}, Options{Type: INT8, Scales: ByTensor}, snug.ErrConfig},
		"unknown scales":       {x, []int{33, 64}, Options{Type: FP8, Scales: 3}, snug.ErrConfig},
		"outliers of FP8":      {x, []int{33, 64}, Options{Type: FP8, Outliers: []int{1}}, snug.ErrConfig},
		"outlier beyond":       {x, []int{33, 64}, Options{Type: INT8, Outliers: []int{64}}, snug.ErrConfig},
		"outlier twice":        {x, []int{33, 64}, Options{Type: INT8, Outliers: []int{4, 4}}, snug.ErrConfig},
		"unknown type":         {x, []int{33, 64}, Options{Type: INT8 + 1}, snug.ErrConfig},
	} {
		_, err := NewWeight(c.x, c.shape, c.o)
		require.ErrorIs(t, err, c.kind, name)
	}
	for _, o := range kinds {
		w, err := NewWeight([]float32{}, []int{0, 64}, o)
		if len(o.Outliers) > 0 {
			require.ErrorIs(t, err, snug.ErrConfig)
			continue
		}
		require.NoError(t, err, "%+v", o)
		require.NoError(t, w.Dequantize(snug.ViewOf([]float32{})))
	}
	var zero Type
	require.Equal(t, "invalid", zero.String())
	for _, name := range []string{"nf4", "fp4", "mxfp4", "fp8", "fp8e5m2", "int8"} {
		k, err := ParseType(name)
		require.NoError(t, err)
		require.Equal(t, name, k.String())
	}
	_, err := ParseType("")
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestKindsDamaged changes the file's tensors so that they cannot be weights.
func TestKindsDamaged(t *testing.T) {
	file, err := os.ReadFile(formatsFile)
	require.NoError(t, err)
	size := binary.LittleEndian.Uint64(file)
	header := map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}{}
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(file[8:8+size], &raw))
	delete(raw, "__metadata__")
	for name, text := range raw {
		h := header[name]
		require.NoError(t, json.Unmarshal(text, &h))
		header[name] = h
	}
	for _, c := range []struct {
		weight, tensor string
		at             int
		put            []byte
		want           string
	}{
		{"block.weight", "block.weight", 5, []byte{0x7f}, "element 5 is NaN"},
		{"tensor.weight", "tensor.weight", 9, []byte{0xfc}, "element 9 is NaN or infinite"},
		{"block.weight", "block.weight_scale_inv", 4, []byte{0, 0, 0x80, 0x7f}, "scale 1 is +Inf"},
		{"block.weight", "block.weight_scale_inv", 4, []byte{0, 0, 0x50, 0x7f}, "products with 448 are finite"},
		{"experts.gate_up_proj", "experts.gate_up_proj_scales", 3, []byte{255}, "scales[3] is 255"},
		{"wide.weight", "wide.weight_format", 0, []byte{1}, "want 0, which is the order of rows"},
	} {
		t.Run(c.want, func(t *testing.T) {
			damaged := slices.Clone(file)
			copy(damaged[8+int(size)+header[c.tensor].Offsets[0]+c.at:], c.put)
			w, err := NewWeights(bytes.NewReader(damaged), int64(len(damaged)))
			require.NoError(t, err)
			_, err = w.Load(c.weight, nil)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, c.want)
		})
	}
	for _, c := range []struct {
		weight, tensor, from, to string
		want                     string
	}{
		{"row.weight", "row.weight_scale", `"BF16"`, `"U16" `, "its type is U16"},
		{"row.weight", "row.weight_scale", `[24,1]`, `[1,24]`, "scales of shape [1 24]"},
		{"experts.gate_up_proj", "experts.gate_up_proj_blocks", `[2,6,3,16]`, `[2,6,6,8] `, "want [..., in/32, 16]"},
	} {
		t.Run(c.from, func(t *testing.T) {
			text := string(file[8 : 8+size])
			at := bytes.Index([]byte(text), []byte(`"`+c.tensor+`"`))
			require.Positive(t, at)
			changed := text[:at] + string(bytes.Replace([]byte(text[at:]), []byte(c.from), []byte(c.to), 1))
			require.NotEqual(t, text, changed)
			require.Len(t, changed, len(text))
			damaged := slices.Concat(file[:8], []byte(changed), file[8+size:])
			w, err := NewWeights(bytes.NewReader(damaged), int64(len(damaged)))
			require.NoError(t, err)
			_, err = w.Load(c.weight, nil)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// BenchmarkForms has the products by weights of all types, with activations in bfloat16.
func BenchmarkForms(b *testing.B) {
	for _, s := range [][3]int{{512, 2048, 5632}, {8, 2048, 2048}, {1, 2048, 2048}} {
		rows, in, out := s[0], s[1], s[2]
		for _, o := range []Options{{}, {Type: MXFP4}, {Type: FP8}, {Type: FP8, Scales: ByRow}, {Type: FP8E5M2}, {Type: INT8}} {
			src, _, err := snug.MakeView(snug.CPU(), snug.BF16, out*in)
			require.NoError(b, err)
			require.NoError(b, amp.Cast(src, kerneltest.Normal(1, out*in)))
			w, err := NewWeight(src, []int{out, in}, o)
			require.NoError(b, err)
			l, err := NewLinear(w, snug.BF16, 0)
			require.NoError(b, err)
			x, y := make([]snug.BFloat16, rows*in), make([]snug.BFloat16, rows*out)
			require.NoError(b, amp.Cast(x, kerneltest.Normal(2, len(x))))
			for name, do := range map[string]func() error{
				"forward":  func() error { return l.Forward(snug.ViewOf(y), snug.ViewOf(x), 0) },
				"backward": func() error { return l.Backward(snug.ViewOf(x), snug.ViewOf(y), 0) },
			} {
				b.Run(fmt.Sprintf("%s/%dx%dx%d/%v%d", name, rows, in, out, w.Type(), o.Scales), func(b *testing.B) {
					for b.Loop() {
						_ = do()
					}
				})
			}
		}
	}
}
