package transformer

import (
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// TestPlanPublishedExperts plans published models of experts from their config.json alone: the parameters are as many
// as their authors count, and QLoRA takes what the matrices and their adapters do.
func TestPlanPublishedExperts(t *testing.T) {
	for _, want := range []struct {
		name       string
		parameters int64
		base       qlora.Type
		low, high  float64 // GB of QLoRA with a sequence of 2048 tokens
	}{
		{"qwen3-30b-a3b", 30_532_122_624, qlora.NF4, 30, 36},
		{"gpt-oss-20b", 20_914_757_184, qlora.MXFP4, 16, 20},
		{"mixtral-8x7b", 46_702_792_704, qlora.NF4, 29, 33},
	} {
		t.Run(want.name, func(t *testing.T) {
			for _, g := range goldenConfigs(t) {
				if g.Name != want.name {
					continue
				}
				begin := time.Now()
				c, err := parseConfig(g.Config)
				require.NoError(t, err)
				m, err := c.Plan(2048)
				require.NoError(t, err)
				require.Equal(t, want.parameters, m.Parameters(), want.name)
				d, err := plan.DeviceNamed("80GB")
				require.NoError(t, err)
				task := plan.Task{Model: m, Device: d, Batch: 1, Rank: 16, Base: want.base}
				p, err := task.Predict(plan.Run{Micro: 1, Window: 1, Compute: snug.BF16, Frozen: 4})
				require.NoError(t, err)
				total := float64(p.Peak[meter.OnDevice].Total()) / 1e9
				require.Greater(t, total, want.low, want.name)
				require.Less(t, total, want.high, want.name)
				require.Less(t, time.Since(begin), 20*time.Second, want.name)
				t.Logf("%s: %d parameters, %.1f GB of which weights %.1f GB, in %v", want.name, m.Parameters(), total, float64(p.Peak[meter.OnDevice][meter.Weights])/1e9, time.Since(begin))
			}
		})
	}
}
