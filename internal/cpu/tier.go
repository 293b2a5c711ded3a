// Package cpu decides which instruction sets kernels may use and runs their
// parallel loops.
package cpu

import (
	"fmt"
	"os"
	"runtime"

	"github.com/klauspost/cpuid/v2"
)

// Tier is a set of instructions that a kernel is written for. A later tier
// includes the earlier ones of the same architecture, with one exception: Cooper Lake has
// AVX512BF16 without AVX512VBMI.
type Tier int

// The tiers. Go is the readable implementation that every other must match.
const (
	Go         Tier = iota // no assembly
	AVX2                   // AVX2, FMA and F16C
	AVX512                 // AVX-512 F, BW, DQ, VL
	AVX512VBMI             // and the byte permutations: Ice Lake, Zen 4 and later
	AVX512BF16             // and the BF16 dot product
	AMX                    // and the BF16 tile products
	NEON                   // arm64
	numTiers
)

var tierNames = [numTiers]string{"go", "avx2", "avx512", "avx512vbmi", "avx512bf16", "amx", "neon"}

// String returns the name that SNUG_CPU takes.
func (t Tier) String() string {
	if !t.Known() {
		return fmt.Sprintf("Tier(%d)", int(t))
	}
	return tierNames[t]
}

// Known reports whether t is one of the tiers above.
func (t Tier) Known() bool { return t >= 0 && t < numTiers }

// Has reports whether this machine executes tier t.
func (t Tier) Has() bool {
	switch t {
	case Go:
		return true
	case AVX2:
		return cpuid.CPU.Supports(cpuid.AVX2, cpuid.FMA3, cpuid.F16C)
	case AVX512:
		return AVX2.Has() && cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
	case AVX512VBMI:
		return AVX512.Has() && cpuid.CPU.Supports(cpuid.AVX512VBMI)
	case AVX512BF16:
		return AVX512.Has() && cpuid.CPU.Supports(cpuid.AVX512BF16)
	case AMX:
		return AVX512BF16.Has() && cpuid.CPU.Supports(cpuid.AMXTILE, cpuid.AMXBF16) && tilesAllowed()
	case NEON:
		return runtime.GOARCH == "arm64" // Go needs them itself there
	}
	return false
}

// Limit returns the highest tier that kernels may use: all, or what the
// environment variable SNUG_CPU names. The error says that the name is unknown
// or that the machine lacks the tier.
func Limit() (Tier, error) { return parseLimit(os.Getenv("SNUG_CPU")) }

func parseLimit(name string) (Tier, error) {
	if name == "" {
		return numTiers - 1, nil
	}
	for t := range numTiers {
		if t.String() != name {
			continue
		}
		if !t.Has() {
			return Go, fmt.Errorf("SNUG_CPU=%s: this machine lacks the instructions", name)
		}
		return t, nil
	}
	return Go, fmt.Errorf("SNUG_CPU=%s: want one of %v", name, tierNames)
}
