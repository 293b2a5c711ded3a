package half

import (
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	n := 4 * os.Getpagesize()
	f32, other := kerneltest.Alone[float32](t, n), kerneltest.Alone[float32](t, n)
	f16, bf16 := kerneltest.Alone[snug.Float16](t, n), kerneltest.Alone[snug.BFloat16](t, n)
	draws, rest := kerneltest.Alone[uint16](t, n), kerneltest.Alone[int16](t, n)
	for _, registry := range []*cpu.Registry[Kernels]{&Registry, &Streams} {
		for _, k := range registry.All() {
			for _, cut := range kerneltest.Cuts(n) {
				lo, hi := cut[0], cut[1]
				k.BF16ToF32(f32[lo:hi], bf16[lo:hi])
				k.F32ToBF16(bf16[lo:hi], f32[lo:hi])
				k.F16ToF32(f32[lo:hi], f16[lo:hi])
				k.F32ToF16(f16[lo:hi], f32[lo:hi])
				k.BF16ToF16(f16[lo:hi], bf16[lo:hi])
				k.F16ToBF16(bf16[lo:hi], f16[lo:hi])
				k.F32ToBF16Stochastic(bf16[lo:hi], f32[lo:hi], draws[lo:hi])
				k.F32ToF16Stochastic(f16[lo:hi], f32[lo:hi], draws[lo:hi])
				k.Limit(other[lo:hi], f32[lo:hi], 1)
			}
		}
	}
	e4m3, e5m2 := kerneltest.Alone[snug.Float8E4M3](t, n), kerneltest.Alone[snug.Float8E5M2](t, n)
	for _, k := range Registry8.All() {
		for _, cut := range kerneltest.Cuts(n) {
			lo, hi := cut[0], cut[1]
			k.E4M3ToF32(f32[lo:hi], e4m3[lo:hi])
			k.F32ToE4M3(e4m3[lo:hi], f32[lo:hi])
			k.E5M2ToF32(f32[lo:hi], e5m2[lo:hi])
			k.F32ToE5M2(e5m2[lo:hi], f32[lo:hi])
		}
	}
	for _, k := range SplitRegistry.All() {
		for _, cut := range kerneltest.Cuts(n) {
			lo, hi := cut[0], cut[1]
			k.Join(f32[lo:hi], bf16[lo:hi], rest[lo:hi])
			k.Split(bf16[lo:hi], rest[lo:hi], f32[lo:hi])
		}
	}
	rest24 := kerneltest.Alone[int8](t, n)
	for _, k := range Split24Registry.All() {
		for _, cut := range kerneltest.Cuts(n) {
			lo, hi := cut[0], cut[1]
			k.Join(f32[lo:hi], bf16[lo:hi], rest24[lo:hi])
			k.Split(bf16[lo:hi], rest24[lo:hi], f32[lo:hi])
			k.SplitStochastic(bf16[lo:hi], rest24[lo:hi], f32[lo:hi], draws[lo:hi])
		}
	}
}
