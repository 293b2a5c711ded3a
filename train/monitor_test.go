package train

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/svgtest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/transformer"
)

// tracedRun trains a model of package transformer with a history, and returns the monitor, and the measured peak where
// nothing but activations comes and goes.
func tracedRun(t testing.TB, m *meter.Monitor, o transformer.Options, to Options, planOf func(remat.Costs) (remat.Plan, error)) (measured int64) {
	o.Seed, o.Monitor, to.Monitor, to.Schedule = 3, m, m, Constant(1e-2)
	model, err := transformer.New(tinyConfig("llama", false), o)
	require.NoError(t, err)
	const sequences, length = 180, 12
	if planOf != nil {
		costs, err := model.Costs(sequences, length)
		require.NoError(t, err)
		p, err := planOf(costs)
		require.NoError(t, err)
		require.NoError(t, model.SetPlan(p))
	}
	tr, err := New(Model[transformer.Batch](model), to)
	require.NoError(t, err)
	peak := int64(0)
	for step := range 2 {
		b := transformer.Batch{Sequences: sequences, Draw: uint64(step)}
		for i := range sequences * length {
			b.Tokens, b.Labels = append(b.Tokens, int32(i*i%19)), append(b.Labels, int32((i*7+step)%19))
		}
		_, err := tr.Train(context.Background(), []transformer.Batch{b})
		require.NoError(t, err)
		peak = max(peak, model.Memory().Peak)
	}
	held, all := model.Memory(), tr.Bytes()
	measured = held.Weights + held.Workspace + peak + all.Total()
	require.NoError(t, tr.Close())
	require.NoError(t, model.Close())
	return measured
}

// TestPeakOfARun: who holds what at the peak adds up to the measured bytes, to the byte, however a model trains, and with
// a record that is shorter than a step.
func TestPeakOfARun(t *testing.T) {
	recompute := func(c remat.Costs) (remat.Plan, error) { return remat.Revolve(c, 2) }
	onDisk := func(c remat.Costs) (remat.Plan, error) {
		c.Disk = remat.Rates{Write: 1e12, Read: 1e12}
		return remat.HRevolve(c, 0, len(c.Stages), remat.Disk)
	}
	lora := &qlora.AdapterOptions{Rank: 2, Alpha: 4}
	for _, c := range []struct {
		name  string
		model transformer.Options
		train Options
		plan  func(remat.Costs) (remat.Plan, error)
		pages string   // what lies in pages
		by    []string // holders at the peak
	}{
		{name: "everything kept", model: transformer.Options{DType: snug.F32}, by: []string{"layers.0.attention", "layers.1.mlp", "layers.0", "lm_head", "embed_tokens", "of all layers"}},
		{name: "remat plan", model: transformer.Options{DType: snug.F32}, plan: recompute, by: []string{"layers.0"}},
		{name: "tiles, bf16", model: transformer.Options{DType: snug.BF16, Tiles: 2}, plan: recompute},
		{name: "adapters over nf4", model: transformer.Options{DType: snug.BF16, Base: qlora.NF4, Adapter: lora}},
		{name: "in the backward pass", model: transformer.Options{DType: snug.F32}, train: Options{Gradients: plan.InBackward}},
		{name: "folded", model: transformer.Options{DType: snug.BF16}, train: Options{Gradients: plan.Folded, StateBits: 8}},
		{name: "state in pages", model: transformer.Options{DType: snug.F32}, pages: "state"},
		{name: "base in pages", model: transformer.Options{DType: snug.BF16, Base: qlora.NF4, Adapter: lora}, pages: "weights"},
		{name: "checkpoints on disk", model: transformer.Options{DType: snug.F32}, plan: onDisk, pages: "checkpoints"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, events := range []int{64, 1 << 14} {
				m, err := meter.New(meter.Options{History: events})
				require.NoError(t, err)
				if c.pages != "" {
					s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 1 << 20})
					require.NoError(t, err)
					pages := m.Pages(s, meter.OnDevice, meter.State, func() int64 { return s.Stats().HostBytes })
					switch c.pages {
					case "state":
						c.train.Storage, c.train.Chunk = pages, 256
					case "weights":
						c.model.Pages = pages
					case "checkpoints":
						c.model.Checkpoints = pages
					}
					defer func() { require.NoError(t, s.Close()) }()
				}
				measured := tracedRun(t, m, c.model, c.train, c.plan)
				p, err := m.PeakHolders(meter.OnDevice)
				require.NoError(t, err)
				sum, names := int64(0), map[string]bool{}
				for _, h := range p.Holders {
					sum += h.Bytes
					names[h.Name] = true
					require.Positive(t, h.Bytes, "%s: %+v", c.name, h)
				}
				require.Equal(t, m.Peak(meter.OnDevice), sum, c.name)
				require.Equal(t, sum, p.Bytes)
				switch {
				case c.pages == "" && c.train.Gradients == plan.SumF32:
					require.Equal(t, measured, sum, c.name)
				case c.train.Gradients != plan.SumF32: // the room for gradients grows until the last layer
					require.LessOrEqual(t, sum, measured, c.name)
					require.Greater(t, float64(sum), 0.9*float64(measured), c.name)
				default:
					require.True(t, strings.Contains(fmt.Sprint(p.Holders), "pages") || c.pages == "checkpoints", "%s: %v", c.name, p.Holders)
				}
				for _, name := range c.by {
					require.True(t, names[name], "%s: %v lacks %s", c.name, p.Holders, name)
				}
				require.NotEqual(t, meter.Idle, p.Phase, c.name)
				require.NotEmpty(t, p.Stage, c.name)
				now, _ := m.Held()
				for component := range meter.Components {
					if component != meter.State || c.pages == "" { // a store keeps pages
						require.Zero(t, now[meter.OnDevice][component], "%s: %v after Close", c.name, component)
					}
				}
				var picture, trace bytes.Buffer
				require.NoError(t, m.WritePeakSVG(&picture, meter.OnDevice, c.name))
				svgtest.TextsFit(t, picture.Bytes())
				require.Contains(t, picture.String(), fmt.Sprintf(">%d<", sum))
				require.NoError(t, m.WriteTrace(&trace))
				require.NoError(t, m.Close())
			}
		})
	}
}

// BenchmarkHistory measures steps in alternation, with a monitor that has a history and one that has none.
func BenchmarkHistory(b *testing.B) {
	var took [2]time.Duration
	var steps [2]func()
	for i, events := range []int{0, 1 << 16} {
		m, err := meter.New(meter.Options{History: events})
		require.NoError(b, err)
		c := tinyConfig("llama", false)
		c.Dim, c.Hidden, c.Layers, c.Vocab, c.Windows = 64, 172, 8, 512, make([]int, 8)
		model, err := transformer.New(c, transformer.Options{Seed: 3, Monitor: m})
		require.NoError(b, err)
		tr, err := New(Model[transformer.Batch](model), Options{Monitor: m})
		require.NoError(b, err)
		var batch transformer.Batch
		for i := range 32 {
			batch.Tokens, batch.Labels = append(batch.Tokens, int32(i)), append(batch.Labels, int32(i+1))
		}
		steps[i] = func() {
			_, err := tr.Train(context.Background(), []transformer.Batch{batch})
			require.NoError(b, err)
		}
		steps[i]()
	}
	n := 0
	for b.Loop() {
		n++
		for i := range steps {
			begin := time.Now()
			steps[i]()
			took[i] += time.Since(begin)
		}
	}
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "with/without")
	b.ReportMetric(float64(took[0].Microseconds())/float64(n), "µs/step-without")
}
