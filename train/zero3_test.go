package train

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/transformer"
)

// zero3 is a way to train all weights of a model.
type zero3 struct {
	family string
	tied   bool
	dt     snug.DType
	change func(*pagedRun) // nil for nothing
}

// run returns a run whose matrices have parts on each of up to four ranks, and where the ranks divide the weights or not.
func (z zero3) run(ranks int, divide bool) pagedRun {
	r := newPagedRun(ranks, 0)
	r.config = tinyConfig(z.family, z.tied)
	if r.config.Dim, r.config.Hidden, r.config.Vocab = 48, 64, 61; z.family == "gpt2" {
		r.config.HeadDim = 12
	}
	r.model = transformer.Options{DType: z.dt, Seed: 3, PageFloats: divide}
	r.train.Shard = plan.ShardWeights
	if z.change != nil {
		z.change(&r)
	}
	if !divide {
		r.held, r.train.Shard = -1, plan.ShardGradients
		if r.model.Adapter != nil { // ranks that divide frozen weights alone add gradients once in a step
			r.train.Shard = plan.ShardState
		}
	}
	return r
}

// TestZero3: ranks that divide weights that train have the losses and weights of ranks that each hold all of them, bit for
// bit. A rank holds 1/ranks of the matrices, and a few whole ones.
func TestZero3(t *testing.T) {
	for name, z := range map[string]zero3{
		"llama, f32":             {"llama", false, snug.F32, nil},
		"llama, tied, bf16":      {"llama", true, snug.BF16, nil},
		"gpt2, f16":              {"gpt2", true, snug.F16, func(r *pagedRun) { r.train.Scaler = &amp.ScalerOptions{Init: 256} }},
		"gpt2, overflows":        {"gpt2", true, snug.F16, nil},
		"qwen3, split masters":   {"qwen3", false, snug.BF16, func(r *pagedRun) { r.train.Masters = amp.SplitMaster }},
		"llama, no masters":      {"llama", false, snug.BF16, func(r *pagedRun) { r.train.Masters = amp.NoMaster }},
		"llama, 8 bits":          {"llama", true, snug.F32, func(r *pagedRun) { r.train.StateBits, r.held = 8, 1<<20 }},
		"llama, Lion, none held": {"llama", false, snug.F32, func(r *pagedRun) { r.train.Optimizer, r.held = quant8.Lion{}, 1 }},
		"gpt2, recompute":        {"gpt2", false, snug.BF16, func(r *pagedRun) { r.plan = remat.RecomputeAll }},
		"llama, small buckets":   {"llama", false, snug.F32, func(r *pagedRun) { r.train.Bucket = 100 }},
		"llama, frozen tables": {"llama", false, snug.F32, func(r *pagedRun) {
			r.model.Train = func(name string) bool { return name != "model.embed_tokens.weight" && name != "lm_head.weight" }
		}},
		"llama, adapters over floats": {"llama", false, snug.BF16, func(r *pagedRun) {
			r.model.Adapter = &qlora.AdapterOptions{Rank: 2, Alpha: 4, Init: "pissa"}
		}},
		"llama, adapters over NF4": {"llama", false, snug.BF16, func(r *pagedRun) {
			r.model.Base, r.model.Adapter = qlora.NF4, &qlora.AdapterOptions{Rank: 2, Alpha: 4, ModulesToSave: []string{"lm_head"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for ranks := 1; ranks <= 4; ranks++ {
				want := z.run(ranks, false).run(t)
				r := z.run(ranks, true)
				r.check = func(p *accum.Pages, paged, parts int64) error {
					const matrices = 2*7 + 2
					largest := int64(64 * 61 * 4)
					if most := paged/int64(ranks) + matrices*1024; parts > most || p.Peak() > most+3*largest+r.held {
						return fmt.Errorf("parts of %d bytes of %d, and %d bytes held", parts, paged, p.Peak())
					}
					return nil
				}
				requireEqualRuns(t, want, r.run(t), fmt.Sprintf("%d ranks", ranks))
			}
		})
	}
}

// TestZero3Resume: a run goes on from a checkpoint with the bits of a run that was not interrupted, whether the ranks divided
// the weights before or divide them after, and the checkpoints have the same bytes.
func TestZero3Resume(t *testing.T) {
	for _, masters := range []amp.MasterForm{amp.FullMaster, amp.SplitMaster, amp.NoMaster} {
		z := zero3{"llama", true, snug.BF16, func(r *pagedRun) { r.train.Masters = masters }}
		want := z.run(3, false).run(t)
		var parts [2]map[string][]byte
		for i, before := range []bool{false, true} {
			dir := t.TempDir()
			for _, after := range []bool{false, true} {
				first := z.run(3, before)
				first.train.Dir, first.train.SaveEvery, first.steps = filepath.Join(dir, fmt.Sprint(after)), 1, 2
				for _, r := range first.run(t) {
					require.NoError(t, r.err)
				}
				parts[i] = partsIn(t, first.train.Dir)
				second := z.run(3, after)
				second.train.Dir, second.train.SaveEvery, second.from = first.train.Dir, 1, 2
				requireEqualRuns(t, want, second.run(t), fmt.Sprintf("%v, divided %t, then %t", masters, before, after))
			}
		}
		require.Equal(t, parts[0], parts[1], masters)
	}
	// Another number of ranks goes on with the same losses up to rounding.
	z := zero3{"gpt2", true, snug.F32, nil}
	want := z.run(2, false).run(t)
	dir := t.TempDir()
	first := z.run(4, true)
	first.train.Dir, first.train.SaveEvery, first.steps = dir, 1, 2
	first.micros = func(rank, step int) int { return 1 }
	for _, r := range first.run(t) {
		require.NoError(t, r.err)
	}
	second := z.run(2, true)
	second.train.Dir, second.train.SaveEvery, second.from = dir, 1, 2
	for rank, r := range second.run(t) {
		require.NoError(t, r.err, rank)
		require.Equal(t, 3, r.reports[0].Step)
		require.InDelta(t, want[0].reports[2].Loss, r.reports[0].Loss, 1) // other micro-batches before
	}
}

// TestZero3Errors: a model in pages wants ShardWeights with its Pages, and each rank a micro-batch; on all ranks.
func TestZero3Errors(t *testing.T) {
	z := zero3{"llama", true, snug.F32, nil}
	for says, change := range map[string]func(*pagedRun){
		"is in pages, which wants ShardWeights":           func(r *pagedRun) { r.train.Shard = plan.ShardGradients },
		"parameter \"model.embed_tokens.weight\" is in p": func(r *pagedRun) { r.train.Shard = plan.Replicate },
		"rank 1 has no micro-batch of a weight above 0":   func(r *pagedRun) { r.micros = func(rank, step int) int { return 1 - rank%2 } },
		"Shard does not go with the optimizer lamb":       func(r *pagedRun) { r.train.Optimizer = quant8.LAMB{} },
		"ranks do not go with InBackward":                 func(r *pagedRun) { r.train.Gradients = plan.InBackward },
	} {
		t.Run(says, func(t *testing.T) {
			r := z.run(3, true)
			change(&r)
			for rank, result := range r.run(t) {
				require.ErrorIs(t, result.err, snug.ErrConfig, rank)
				require.ErrorContains(t, result.err, says, rank)
			}
		})
	}
	// Without ranks too.
	alone, err := accum.Local(t.Context(), 1)
	require.NoError(t, err)
	pages, err := accum.NewPages(alone[0], accum.PagesOptions{})
	require.NoError(t, err)
	m, err := transformer.New(tinyConfig("llama", true), transformer.Options{Pages: pages, PageFloats: true})
	require.NoError(t, err)
	_, err = New(Model[transformer.Batch](m), Options{})
	require.ErrorContains(t, err, "wants ShardWeights")
	_, err = New(Model[transformer.Batch](m), Options{Optimizer: quant8.MeZO{}})
	require.ErrorContains(t, err, "wants ShardWeights")
	require.NoError(t, pages.Close())
}

// TestZero3SaveFails: when rank 0 cannot write a checkpoint, all ranks get an error, and the run goes on.
func TestZero3SaveFails(t *testing.T) {
	z := zero3{"llama", true, snug.BF16, func(r *pagedRun) { r.train.Masters = amp.SplitMaster }}
	r := z.run(3, true)
	r.train.Dir = t.TempDir()
	r.opened = func(m *transformer.Model, tr *Trainer[transformer.Batch]) {
		canceled, cancel := context.WithCancel(context.Background())
		cancel() // writing then fails in the first part
		_, err := tr.Train(t.Context(), []transformer.Batch{tokens(1)})
		require.NoError(t, err)
		require.Error(t, tr.Save(canceled))
	}
	r.from, r.micros = 1, func(rank, step int) int { return 1 }
	for rank, result := range r.run(t) {
		require.NoError(t, result.err, rank)
		require.Len(t, result.reports, 2)
	}
}
