package conv

import (
	"fmt"
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// layer returns a layer of a network, with the padding that keeps sizes.
func layer(batch, in, out, groups, size, kernel, stride int) Shape {
	return Shape{Batch: batch, In: in, Out: out, Groups: groups, Dims: 2, Size: [3]int{size, size}, Kernel: [3]int{kernel, kernel},
		Stride: [3]int{stride, stride}, PadBefore: [3]int{kernel / 2, kernel / 2}, PadAfter: [3]int{kernel / 2, kernel / 2}}
}

// layers are those of ResNet-18 and -50, MobileNet and a network for video.
var layers = []struct {
	name string
	s    Shape
}{
	{"7x7 s2 3-64 224", layer(8, 3, 64, 1, 224, 7, 2)},
	{"3x3 64 56", layer(8, 64, 64, 1, 56, 3, 1)},
	{"3x3 128 28", layer(8, 128, 128, 1, 28, 3, 1)},
	{"3x3 256 14", layer(8, 256, 256, 1, 14, 3, 1)},
	{"3x3 512 7", layer(8, 512, 512, 1, 7, 3, 1)},
	{"3x3 s2 64-128 56", layer(8, 64, 128, 1, 56, 3, 2)},
	{"1x1 s2 64-128 56", layer(8, 64, 128, 1, 56, 1, 2)},
	{"1x1 64-256 56", layer(8, 64, 256, 1, 56, 1, 1)},
	{"1x1 256-64 56", layer(8, 256, 64, 1, 56, 1, 1)},
	{"1x1 512-128 28", layer(8, 512, 128, 1, 28, 1, 1)},
	{"1x1 2048-512 7", layer(8, 2048, 512, 1, 7, 1, 1)},
	{"depthwise 3x3 144 56", layer(8, 144, 144, 144, 56, 3, 1)},
	{"depthwise 3x3 384 14", layer(8, 384, 384, 384, 14, 3, 1)},
	{"depthwise 3x3 s2 144 56", layer(8, 144, 144, 144, 56, 3, 2)},
	{"3d 3x3x3 64 16x28", Shape{Batch: 1, In: 64, Out: 64, Dims: 3, Size: [3]int{16, 28, 28}, Kernel: [3]int{3, 3, 3}}.Same()},
	{"3d 3x3x3 3-64 16x112", Shape{Batch: 1, In: 3, Out: 64, Dims: 3, Size: [3]int{16, 112, 112}, Kernel: [3]int{3, 3, 3}}.Same()},
}

// The rates are of multiply-adds, 2 operations each; those with zeros of the padding count.
func BenchmarkLayers(b *testing.B) {
	for _, l := range layers {
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			for _, layout := range []Layout{ChannelsFirst, ChannelsLast} {
				l.s.Layout = layout
				if os.Getenv("SNUG_SLOW") == "" && (dt != snug.F32 || layout != ChannelsFirst) {
					continue
				}
				benchmark(b, fmt.Sprintf("%s/%v/%v", l.name, dt, layout), l.s, dt)
			}
		}
	}
}

func benchmark(b *testing.B, name string, s Shape, dt snug.DType) {
	put := func(n int, seed uint64) snug.View {
		return kerneltest.PutFloats(b, kerneltest.Backend{}, dt, kerneltest.Uniform(seed, n)).View
	}
	x, w, y := put(s.XLen(), 1), put(s.WLen(), 2), put(s.YLen(), 3)
	floats := func(n int) []float32 { return make([]float32, n) }
	dw, ws := floats(s.WLen()), floats(s.WorkspaceLen())
	flops := 2 * float64(s.YLen()) * float64(s.WLen()/s.Out)
	for _, f := range []struct {
		name string
		call func() error
	}{
		{"forward", func() error { return forward(y, x, w, snug.View{}, s) }},
		{"input", func() error { return backwardInput(x, y, w, s, snug.Into{}) }},
		{"weight", func() error {
			return backwardWeight(snug.ViewOf(dw), snug.View{}, x, y, s, snug.Into{}, snug.ViewOf(ws))
		}},
	} {
		b.Run(name+"/"+f.name, func(b *testing.B) {
			for b.Loop() {
				if err := f.call(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
