package machine

// Limits are what a multiprocessor holds at a time.
type Limits struct{ Warps, Blocks, Shared int }

const (
	registersOfSM  = 1 << 16
	partitions     = 4   // of a multiprocessor, each with a quarter of its registers
	registerGrain  = 256 // registers are given to a warp in so many
	sharedGrain    = 128
	threadsPerWarp = 32
)

// LimitsOf are the multiprocessors of some capabilities, as the CUDA programming guide has them.
var LimitsOf = map[string]Limits{
	"80":  {Warps: 64, Blocks: 32, Shared: 164 << 10},
	"86":  {Warps: 48, Blocks: 16, Shared: 100 << 10},
	"90":  {Warps: 64, Blocks: 32, Shared: 228 << 10},
	"90a": {Warps: 64, Blocks: 32, Shared: 228 << 10},
	"100": {Warps: 64, Blocks: 32, Shared: 228 << 10},
	"120": {Warps: 48, Blocks: 24, Shared: 100 << 10},
}

// Occupancy returns the blocks and warps of a kernel that a multiprocessor holds at a time, if
// nothing but its warps, blocks, registers and shared memory limits them. shared is what a block has
// without the Reserved bytes, which it takes on every capability from 8.0 on.
func (l Limits) Occupancy(threads, registers, shared int) (blocks, warps int) {
	if threads < 1 {
		return 0, 0
	}
	up := func(n, grain int) int { return (n + grain - 1) / grain * grain }
	each := up(threads, threadsPerWarp) / threadsPerWarp
	fit := l.Warps
	if registers > 0 {
		fit = min(fit, partitions*(registersOfSM/partitions/up(threadsPerWarp*registers, registerGrain)))
	}
	blocks = min(l.Blocks, fit/each, l.Shared/up(shared+Reserved, sharedGrain))
	return blocks, blocks * each
}
