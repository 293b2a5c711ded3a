package qlora

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/safetensors"
)

// groupedFile has the tensors of a weight "a.weight", and its values by the definition.
type groupedFile struct {
	Groups
	in, out                int
	codes, zeros           [][]uint32 // [in][out] and [groups][out]
	scales                 []float32  // [groups][out], of float16
	index                  []int32    // of each input
	words, points, columns []uint32   // the tensors
	types                  [4]string
	shapes                 [4][]int
}

func makeGrouped(g Groups, in, out int, zeros, order bool) *groupedFile {
	f, rng := &groupedFile{Groups: g, in: in, out: out}, rand.New(rand.NewPCG(1, uint64(in)))
	size := g.Size
	if size == -1 {
		size = in
	}
	count, most := in/size, uint32(1)<<g.Bits
	f.codes, f.zeros, f.scales = make([][]uint32, in), make([][]uint32, count), make([]float32, count*out)
	for i := range f.codes {
		f.index, f.columns, f.codes[i] = append(f.index, int32(i/size)), append(f.columns, 0), make([]uint32, out)
		for o := range out {
			f.codes[i][o] = rng.Uint32N(most)
		}
	}
	if order {
		rng.Shuffle(in, func(i, j int) { f.index[i], f.index[j] = f.index[j], f.index[i] })
	}
	for i, at := range f.index {
		f.columns[i] = uint32(at)
	}
	for k := range f.zeros {
		f.zeros[k] = make([]uint32, out)
		for o := range out {
			f.zeros[k][o] = most / 2
			if zeros {
				f.zeros[k][o] = rng.Uint32N(most)
			}
			f.scales[k*out+o] = half.F16ToFloat32(half.Float32ToF16(0.01 + rng.Float32()))
		}
	}
	f.types, f.shapes[2], f.shapes[3] = [4]string{"I32", "I32", "F16", "I32"}, []int{count, out}, []int{in}
	f.pack()
	return f
}

// pack makes the tensors of codes and zero points.
func (f *groupedFile) pack() {
	per, count := 32/f.Bits, len(f.zeros)
	f.points, f.shapes[1] = make([]uint32, count*out32(f)), []int{count, out32(f)}
	place := func(o int) (word, bit int) { return o / per, f.Bits * (o % per) }
	if f.Layout == AWQ {
		place = func(o int) (word, bit int) {
			for k, at := range []int{0, 2, 4, 6, 1, 3, 5, 7} {
				if at == o%8 {
					return o / 8, 4 * k
				}
			}
			panic(o)
		}
	}
	less := uint32(0)
	if f.Layout == GPTQ {
		less = 1
	}
	for k := range count {
		for o := range f.out {
			word, bit := place(o)
			f.points[k*out32(f)+word] |= (f.zeros[k][o] - less) & (1<<f.Bits - 1) << bit
		}
	}
	if f.Layout == AWQ {
		f.words, f.shapes[0] = make([]uint32, f.in*f.out/8), []int{f.in, f.out / 8}
	} else {
		f.words, f.shapes[0] = make([]uint32, f.in/per*f.out), []int{f.in / per, f.out}
	}
	for i := range f.in {
		for o := range f.out {
			if word, bit := place(o); f.Layout == AWQ {
				f.words[i*f.out/8+word] |= f.codes[i][o] << bit
			} else {
				f.words[i/per*f.out+o] |= f.codes[i][o] << (f.Bits * (i % per))
			}
		}
	}
}

func out32(f *groupedFile) int { return f.out * f.Bits / 32 }

func (f *groupedFile) load(t testing.TB) (*Weight, error) {
	t.Helper()
	var list []safetensors.Tensor
	data := map[string][]byte{}
	for i, end := range []string{groupCodes, groupZeros, groupScales, groupColumns} {
		if f.types[i] == "" {
			continue
		}
		list = append(list, safetensors.Tensor{Name: "a." + end, DType: f.types[i], Shape: f.shapes[i]})
		b := []byte{}
		if i == 2 {
			for _, s := range f.scales {
				b = binary.LittleEndian.AppendUint16(b, uint16(half.Float32ToF16(s)))
			}
		} else {
			for _, v := range [][]uint32{f.words, f.points, nil, f.columns}[i] {
				b = binary.LittleEndian.AppendUint32(b, v)
			}
		}
		data["a."+end] = b
	}
	h, err := safetensors.New(list, nil)
	require.NoError(t, err)
	var file bytes.Buffer
	_, err = h.Write(&file, func(t *safetensors.Tensor, write func([]byte) error) error { return write(data[t.Name]) })
	require.NoError(t, err)
	w, err := NewWeights(bytes.NewReader(file.Bytes()), int64(file.Len()))
	require.NoError(t, err)
	require.NoError(t, w.SetGroups(f.Groups))
	require.Equal(t, []string{"a.weight"}, w.Names())
	return w.Load("a.weight", nil)
}

// TestGrouped: elements are the definition's, in float32 and rounded once to 16 bits, as a whole and by products, in memory and in pages.
func TestGrouped(t *testing.T) {
	for _, c := range []struct {
		Groups
		in, out      int
		zeros, order bool
	}{
		{Groups{4, 32, GPTQ, false, false}, 96, 40, false, false}, {Groups{4, 64, GPTQ, false, false}, 192, 24, true, false}, {Groups{4, 48, GPTQ, false, false}, 96, 16, true, false}, {Groups{4, -1, GPTQ, false, false}, 96, 16, false, true},
		{Groups{4, 32, GPTQv2, false, false}, 64, 16, true, true}, {Groups{8, 32, GPTQ, false, false}, 64, 12, true, false}, {Groups{8, 32, GPTQv2, false, false}, 64, 12, false, true}, {Groups{2, 32, GPTQ, false, false}, 64, 16, false, false},
		{Groups{4, 32, AWQ, false, false}, 96, 40, true, false}, {Groups{4, 128, AWQ, false, false}, 256, 8, false, false}, {Groups{4, 8, AWQ, false, false}, 64, 8, false, false},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			f := makeGrouped(c.Groups, c.in, c.out, c.zeros, c.order)
			w, err := f.load(t)
			require.NoError(t, err)
			require.Equal(t, Grouped, w.Type())
			require.Equal(t, []int{c.out, c.in}, w.Shape())
			require.Equal(t, snug.F16, w.DType())
			want := make([]float32, c.in*c.out)
			for i, at := range f.index {
				for o := range c.out {
					want[o*c.in+i] = float32((float64(f.codes[i][o]) - float64(f.zeros[at][o])) * float64(f.scales[int(at)*c.out+o]))
				}
			}
			x, y, dx := kerneltest.Normal(1, 3*c.in), make([]float32, 3*c.out), make([]float32, 3*c.in)
			for paged := range 2 {
				if paged == 1 {
					require.NoError(t, w.Page(newLender(), "a"))
				}
				got := make([]float32, len(want))
				require.NoError(t, w.Dequantize(snug.ViewOf(got)))
				require.Equal(t, want, got)
				small := make([]snug.Float16, len(want))
				require.NoError(t, w.Dequantize(snug.ViewOf(small)))
				for i, v := range small {
					require.Equal(t, half.Float32ToF16(want[i]), v)
				}
				for _, rows := range []int{1, 3} {
					l, err := NewLinear(w, snug.F32, 0)
					require.NoError(t, err)
					require.NoError(t, l.Forward(snug.ViewOf(y[:rows*c.out]), snug.ViewOf(x[:rows*c.in]), 0))
					require.NoError(t, l.Backward(snug.ViewOf(dx[:rows*c.in]), snug.ViewOf(y[:rows*c.out]), 0))
					for r := range rows {
						for o := range c.out {
							sum := 0.0
							for i := range c.in {
								sum += float64(x[r*c.in+i]) * float64(want[o*c.in+i])
							}
							require.InDelta(t, sum, y[r*c.out+o], 1e-2*float64(c.in)/64)
						}
						for i := range c.in {
							sum, size := 0.0, 0.0
							for o := range c.out {
								p := float64(y[r*c.out+o]) * float64(want[o*c.in+i])
								sum, size = sum+p, max(size, p, -p)
							}
							require.InDelta(t, sum, dx[r*c.in+i], 1e-4*size)
						}
					}
					require.NoError(t, l.Close())
				}
			}
			require.NoError(t, w.Close())
		})
	}
}

// TestGroupedRefused: tensors that do not fit each other, and groups that there are not.
func TestGroupedRefused(t *testing.T) {
	for want, change := range map[string]func(f *groupedFile){
		`tensor "a.qzeros" is I32 [5 3], want I32 of [3 5]`:                     func(f *groupedFile) { f.shapes[1] = []int{5, 3} },
		`the file has no tensor "a.scales"`:                                     func(f *groupedFile) { f.types[2] = "" },
		`the file has no tensor "a.qzeros"`:                                     func(f *groupedFile) { f.types[1] = "" },
		`tensor "a.g_idx": element 5 is 3, and there are 3 groups`:              func(f *groupedFile) { f.columns[5] = 3 },
		`tensor "a.g_idx": element 0 is -1, and there are 3 groups`:             func(f *groupedFile) { f.columns[0] = ^uint32(0) },
		`tensor "a.scales": element 7 is NaN or infinite`:                       func(f *groupedFile) { f.scales[7] = 1e9 },
		`tensor "a.qweight" is F32 [12 40], want I32 of two dimensions`:         func(f *groupedFile) { f.types[0] = "F32" },
		"a weight of 40 outputs and 48 inputs, want a multiple of 4 and of 32":  func(f *groupedFile) { f.Bits, f.Size = 8, 16 },
		`tensor "a.scales" is F16 [3 40], want F16, BF16 or F32 of [1 40]`:      func(f *groupedFile) { f.Size = -1 },
		"a weight of 320 outputs and 12 inputs, want a multiple of 8 and of 32": func(f *groupedFile) { f.Layout, f.shapes[0] = AWQ, []int{12, 40} },
	} {
		t.Run(want, func(t *testing.T) {
			f := makeGrouped(Groups{4, 32, GPTQ, false, false}, 96, 40, true, false)
			change(f)
			_, err := f.load(t)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, want)
		})
	}
	f := makeGrouped(Groups{4, 32, GPTQ, false, false}, 96, 40, true, false)
	w, err := f.load(t)
	require.NoError(t, err)
	_, err = WriteWeights(&bytes.Buffer{}, func(yield func(string, *Weight) bool) { yield("a.weight", w) }, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = NewWeight([]float32{1}, []int{1, 1}, Options{Type: Grouped})
	require.ErrorContains(t, err, "Weights.Load reads groups of a file")
	var none *Weights
	for _, err := range []error{none.SetGroups(Groups{4, 32, GPTQ, false, false}), (&Weights{}).SetGroups(Groups{4, 32, GPTQ, false, false})} {
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	set := &Weights{set: &safetensors.Set{}}
	for want, g := range map[string]Groups{"layout 0": {4, 32, 0, false, false}, "layout 6": {4, 32, 6, false, false}, "codes of 2 bits": {2, 32, Packed, false, false}, "codes of 4 bits": {4, 32, Integers, false, false}, "codes of 3 bits": {3, 32, GPTQ, false, false}, "codes of 8 bits": {8, 32, AWQ, false, false}, "groups of 0 inputs": {4, 0, GPTQ, false, false}} {
		err := set.SetGroups(g)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, want)
	}
}

// BenchmarkGrouped has the products of BenchmarkForms by weights in groups of 128, beside NF4.
func BenchmarkGrouped(b *testing.B) {
	for _, s := range [][3]int{{512, 2048, 5632}, {8, 2048, 2048}, {1, 2048, 2048}} {
		rows, in, out := s[0], s[1], s[2]
		for _, name := range []string{"nf4", "gptq", "gptq order", "gptq 8 bits", "awq"} {
			var w *Weight
			var err error
			switch name {
			case "nf4":
				w, err = NewWeight(kerneltest.Normal(1, in*out), []int{out, in}, Options{})
			case "awq":
				w, err = makeGrouped(Groups{4, 128, AWQ, false, false}, in, out, true, false).load(b)
			case "gptq 8 bits":
				w, err = makeGrouped(Groups{8, 128, GPTQ, false, false}, in, out, false, false).load(b)
			default:
				w, err = makeGrouped(Groups{4, 128, GPTQ, false, false}, in, out, false, name != "gptq").load(b)
			}
			require.NoError(b, err)
			l, err := NewLinear(w, snug.BF16, 0)
			require.NoError(b, err)
			x, y := make([]snug.BFloat16, rows*in), make([]snug.BFloat16, rows*out)
			b.Run(fmt.Sprintf("forward/%dx%dx%d/%s", rows, in, out, name), func(b *testing.B) {
				for b.Loop() {
					_ = l.Forward(snug.ViewOf(y), snug.ViewOf(x), 0)
				}
			})
			b.Run(fmt.Sprintf("backward/%dx%dx%d/%s", rows, in, out, name), func(b *testing.B) {
				for b.Loop() {
					_ = l.Backward(snug.ViewOf(x), snug.ViewOf(y), 0)
				}
			})
		}
	}
}
