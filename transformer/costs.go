package transformer

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat"
)

// Costs returns the costs of the chain, for the planners of package remat, for batches of so many sequences of so many
// tokens each. Sizes are the bytes that Backprop holds: outputs, saved sets, and the largest transient bytes of a
// forward and of a backward step. The transient bytes of a stage with experts depend on the largest group: the rows
// that choose the same expert. Costs assumes twice the mean; a batch with a larger group takes more. Stages have the names that a
// Monitor shows, such as "layers.3.mlp", by which [remat.Only] selects them. Times are 10⁹ multiply-adds: they compare stages, and do not depend on the machine.
//
// The error wraps [snug.ErrConfig] for a batch without tokens or of more than 2^31-1 tokens.
func (m *Model) Costs(sequences, tokens int) (remat.Costs, error) {
	const most = math.MaxInt32
	if sequences < 1 || tokens < 1 || sequences > most/tokens || int64(sequences*tokens) > math.MaxInt64/128/int64(max(1, m.widest())) {
		return remat.Costs{}, fmt.Errorf("transformer: Costs: %d sequences of %d tokens, want 1 to 2^31-1 tokens: %w", sequences, tokens, snug.ErrConfig)
	}
	var costs remat.Costs
	for i, s := range m.stages {
		cost := s.cost(sequences, tokens)
		cost.Name = m.config.stageName(i)
		costs.Stages = append(costs.Stages, cost)
	}
	return costs, nil
}
