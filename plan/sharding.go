package plan

import "fmt"

// Sharding is what the ranks of data-parallel training divide among themselves, as ZeRO does (Rajbhandari et al. 2020,
// arXiv:1910.02054). Each rank updates its part of every parameter, and then sends it to the others.
type Sharding int

const (
	// Replicate divides nothing: each rank holds all gradients, master weights and state.
	Replicate Sharding = iota
	// ShardState divides the optimizer's state and the master weights, as ZeRO-1 does.
	ShardState
	// ShardGradients divides the gradients too, as ZeRO-2 does: a rank holds its part of them, and two buckets; three
	// with a tied embedding. The ranks add the gradients of each micro-batch, where otherwise they add those of a step.
	ShardGradients
)

var shardingNames = [...]string{"replicate", "state", "gradients"}

// String returns "replicate", "state" or "gradients".
func (s Sharding) String() string {
	if s < 0 || int(s) >= len(shardingNames) {
		return fmt.Sprintf("Sharding(%d)", int(s))
	}
	return shardingNames[s]
}
