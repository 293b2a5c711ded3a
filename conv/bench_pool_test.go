package conv

import (
	"testing"

	"github.com/snug-ml/snug"
)

func BenchmarkPool(b *testing.B) {
	p := PoolShape{Batch: 8, Channels: 64, Dims: 2, Size: [3]int{112, 112}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}}
	for _, p.Layout = range []Layout{ChannelsFirst, ChannelsLast} {
		x, y, index := make([]float32, p.XLen()), make([]float32, p.YLen()), make([]byte, p.IndexLen())
		for i := range x {
			x[i] = float32(i * 7919 % 1009)
		}
		run := func(name string, f func() error) {
			b.Run(p.Layout.String()+"/"+name, func(b *testing.B) {
				b.SetBytes(4 * int64(len(x)))
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("max", func() error { return MaxPool(y, index, x, p) })
		run("max backward", func() error { return MaxPoolBackward(x, y, index, p, snug.Into{}) })
		run("mean", func() error { return AvgPool(y, x, p) })
		run("mean backward", func() error { return AvgPoolBackward(x, y, p, snug.Into{}) })
	}
}
