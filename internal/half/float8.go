package half

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Kernels8 are the conversions of one tier between float32 and the types of 8 bits.
type Kernels8 struct {
	E4M3ToF32 func(dst []float32, src []snug.Float8E4M3)
	F32ToE4M3 func(dst []snug.Float8E4M3, src []float32)
	E5M2ToF32 func(dst []float32, src []snug.Float8E5M2)
	F32ToE5M2 func(dst []snug.Float8E5M2, src []float32)
}

// Registry8 holds these conversions of every tier.
var Registry8 cpu.Registry[Kernels8]

func init() { Registry8.Add(cpu.Go, Kernels8{e4m3ToF32, f32ToE4M3, e5m2ToF32, f32ToE5M2}) }

func e4m3ToF32(dst []float32, src []snug.Float8E4M3) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = x.Float32()
	}
}

func f32ToE4M3(dst []snug.Float8E4M3, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = snug.ToFloat8E4M3(x)
	}
}

func e5m2ToF32(dst []float32, src []snug.Float8E5M2) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = x.Float32()
	}
}

func f32ToE5M2(dst []snug.Float8E5M2, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = snug.ToFloat8E5M2(x)
	}
}
