package train

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/transformer"
)

// pagedRun is data-parallel training of adapters over quantized weights.
type pagedRun struct {
	ranks  int
	held   int64 // of the Pages; below 0 each rank holds all weights
	config *transformer.Config
	model  transformer.Options
	train  Options
	plan   func(remat.Costs) (remat.Plan, error)
	from   int                                                        // steps that were done
	steps  int                                                        // and that are done in the end
	micros func(rank, step int) int                                   // micro-batches
	check  func(p *accum.Pages, paged, parts int64) error             // after each step, with the bytes of all pages and of the rank's parts
	opened func(m *transformer.Model, tr *Trainer[transformer.Batch]) // before the first step
}

// pagedResult is what a rank has at the end.
type pagedResult struct {
	reports  []Report
	adapters map[string][]float32
	err      error
}

func (r pagedRun) run(t *testing.T) []pagedResult {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the test hangs"))
	defer cancel()
	reducers, err := accum.Local(ctx, r.ranks)
	require.NoError(t, err)
	results := make([]pagedResult, r.ranks)
	var wait sync.WaitGroup
	for rank, reducer := range reducers {
		wait.Go(func() { results[rank] = r.rank(rank, reducer) })
	}
	wait.Wait()
	return results
}

func (r pagedRun) rank(rank int, reducer accum.Reducer) (out pagedResult) {
	out.err = func() (err error) {
		mo, to := r.model, r.train
		to.Reducer = reducer
		var pages *accum.Pages
		if r.held >= 0 {
			if pages, err = accum.NewPages(reducer, accum.PagesOptions{Held: r.held}); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, pages.Close()) }()
			mo.Pages, to.Reducer = pages, pages
		}
		m, err := transformer.New(r.config, mo)
		if err != nil {
			return err
		}
		if r.plan != nil {
			costs, err := m.Costs(2, 6)
			if err != nil {
				return err
			}
			p, err := r.plan(costs)
			if err != nil {
				return err
			}
			if err := m.SetPlan(p); err != nil {
				return err
			}
		}
		tr, err := New(Model[transformer.Batch](m), to)
		if err != nil {
			return err
		}
		if r.opened != nil {
			r.opened(m, tr)
		}
		if tr.Step() != r.from {
			return fmt.Errorf("the run begins with step %d", tr.Step())
		}
		for tr.Step() < r.steps {
			var batches []transformer.Batch
			for i := range r.micros(rank, tr.Step()) {
				batches = append(batches, tokens(100*tr.Step()+10*rank+i))
			}
			report, err := tr.Train(context.Background(), batches)
			if err != nil {
				return err
			}
			out.reports = append(out.reports, report)
			if pages != nil && r.check != nil {
				parts := int64(0)
				for _, p := range m.Params() {
					_, part, err := pages.Part("weights/" + p.Name)
					if parts += int64(len(part)); err != nil && !strings.Contains(err.Error(), "never written") {
						return err
					}
				}
				if err := r.check(pages, m.Memory().Paged, parts); err != nil {
					return err
				}
			}
		}
		out.adapters = map[string][]float32{}
		for name, v := range m.Trainable() {
			if key, dt, n := m.Paged(name); key != "" {
				b, err := pages.Acquire(key, n*dt.Size())
				if err != nil {
					return err
				}
				v = device.As(snug.SliceView(b), dt)
				defer func() { err = errors.Join(err, pages.Release(key, false)) }()
			}
			values := make([]float32, v.Len())
			if err := convert(snug.ViewOf(values), v); err != nil {
				return err
			}
			out.adapters[name] = values
		}
		return tr.Close()
	}()
	return out
}

// newPagedRun returns a run of three steps, in which ranks have one to three micro-batches.
func newPagedRun(ranks int, held int64) pagedRun {
	return pagedRun{
		ranks: ranks, held: held, config: tinyConfig("llama", false), steps: 3,
		model:  transformer.Options{DType: snug.BF16, Base: qlora.NF4, Seed: 3, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Dropout: 0.1}},
		train:  Options{Schedule: Constant(1e-2), Clip: 1},
		micros: func(rank, step int) int { return 1 + (rank+step)%3 },
	}
}

// requireEqualRuns requires that all ranks of two runs have the same losses and adapters.
func requireEqualRuns(t *testing.T, want, got []pagedResult, name string) {
	t.Helper()
	for rank := range got {
		require.NoError(t, got[rank].err, "%s, rank %d", name, rank)
		reports := append([]Report(nil), got[rank].reports...)
		for i, r := range want[0].reports[len(want[0].reports)-len(reports):] {
			if r.Skipped != "" { // ranks name what they hold
				require.NotEmpty(t, reports[i].Skipped, "%s, rank %d", name, rank)
				r.Skipped, r.Norm, reports[i].Skipped = "", 0, ""
			} else {
				require.InEpsilon(t, r.Norm, reports[i].Norm, 1e-12, "%s, rank %d", name, rank) // a sum over the parts of the ranks
			}
			reports[i].Norm = r.Norm
			require.Equal(t, r, reports[i], "%s, rank %d", name, rank)
		}
		require.Equal(t, want[0].adapters, got[rank].adapters, "%s, rank %d", name, rank)
	}
}

// TestPages: ranks that divide frozen weights have the losses and adapters of ranks that each hold all of them, bit for
// bit, with any Held, as many micro-batches or not, and hold 1/ranks of the weights and a few pages.
func TestPages(t *testing.T) {
	for ranks := 1; ranks <= 4; ranks++ {
		for _, shard := range []plan.Sharding{plan.Replicate, plan.ShardState, plan.ShardGradients} {
			whole := newPagedRun(ranks, -1)
			whole.train.Shard = shard
			want := whole.run(t)
			requireEqualRuns(t, want, want, "whole")
			require.NotEqual(t, want[0].reports[0].Loss, want[0].reports[2].Loss)
			for _, held := range []int64{0, 1, 1 << 20} {
				if shard != plan.Replicate && held != 0 {
					continue
				}
				r := newPagedRun(ranks, held)
				r.train.Shard = shard
				r.check = func(p *accum.Pages, paged, parts int64) error {
					const matrices, largest = 2 * 7, 16*24/2 + 6 + 6 + 4 // 6 blocks; a page has up to 6 bytes more than its matrix
					most := paged/int64(ranks) + matrices*1024           // parts of a page begin at multiples of 1024 bytes
					room := largest + held
					switch {
					case ranks == 1:
						room = largest // while the model was made
					case held == 0:
						room = 3 * largest
					}
					if p.Bytes() < parts || parts > most || p.Peak() > parts+room {
						return fmt.Errorf("%d bytes held, at most %d, want parts of %d, up to %d, and %d", p.Bytes(), p.Peak(), parts, most, room)
					}
					return nil
				}
				got := r.run(t)
				requireEqualRuns(t, want, got, fmt.Sprintf("%d ranks, %v, Held %d", ranks, shard, held))
			}
		}
	}
}

// TestPagesPlans: plans that compute activations again gather pages again, and have the same bits.
func TestPagesPlans(t *testing.T) {
	want := newPagedRun(3, -1).run(t)
	for name, p := range map[string]func(remat.Costs) (remat.Plan, error){
		"keep all": remat.KeepAll, "recompute all": remat.RecomputeAll, "chen": remat.Chen,
		"planner": func(c remat.Costs) (remat.Plan, error) {
			keep, err := remat.KeepAll(c)
			if err != nil {
				return keep, err
			}
			full, err := keep.Simulate(c)
			if err != nil {
				return keep, err
			}
			best, _, err := remat.Planner{}.Plan(c, full.Peak*3/4)
			return best, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPagedRun(3, 0)
			r.plan = p
			requireEqualRuns(t, want, r.run(t), name)
		})
	}
}

// TestPagesResume: a run goes on from a checkpoint with the bits of a run that was not interrupted, with pages or without.
func TestPagesResume(t *testing.T) {
	for _, shard := range []plan.Sharding{plan.Replicate, plan.ShardState} {
		for _, c := range []struct{ before, after int64 }{{0, 0}, {-1, 0}, {0, -1}} {
			whole := newPagedRun(2, -1)
			whole.train.Shard = shard
			want := whole.run(t)
			first := newPagedRun(2, c.before)
			first.train.Shard, first.train.Dir, first.train.SaveEvery, first.steps = shard, t.TempDir(), 1, 2
			for _, r := range first.run(t) {
				require.NoError(t, r.err)
			}
			second := newPagedRun(2, c.after)
			second.train, second.from = first.train, 2
			requireEqualRuns(t, want, second.run(t), fmt.Sprintf("%v, %+v", shard, c))
		}
	}
}

// TestPagesErrors: a rank without a micro-batch, rows that choose experts, and other weights on a rank are errors on all
// ranks, and no rank waits for ever.
func TestPagesErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pagedRun)
		says   string
	}{
		"no micro-batch":    {func(r *pagedRun) { r.micros = func(rank, step int) int { return (1 - rank%2) * 2 } }, "rank 1 has no micro-batch"},
		"experts":           {expertsRun, "rank 0 acquires page"},
		"experts, one page": {func(r *pagedRun) { expertsRun(r); r.held = 1 }, "rank 0 acquires page"},
		"experts, all kept": {func(r *pagedRun) { expertsRun(r); r.held = 1 << 30 }, "rank 0 acquires page"},
	} {
		for _, shard := range []plan.Sharding{plan.Replicate, plan.ShardState} {
			r := newPagedRun(2, 0)
			r.train.Shard = shard
			c.change(&r)
			for rank, result := range r.run(t) {
				require.ErrorIs(t, result.err, snug.ErrConfig, "%s, rank %d", name, rank)
				require.ErrorContains(t, result.err, c.says, "%s, rank %d", name, rank)
			}
		}
	}
	// Another seed on a rank makes other weights.
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the test hangs"))
	defer cancel()
	reducers, err := accum.Local(ctx, 3)
	require.NoError(t, err)
	var wait sync.WaitGroup
	errs := make([]error, 3)
	for rank, reducer := range reducers {
		wait.Go(func() {
			errs[rank] = func() error {
				pages, err := accum.NewPages(reducer, accum.PagesOptions{})
				if err != nil {
					return err
				}
				m, err := transformer.New(tinyConfig("llama", false), transformer.Options{Base: qlora.NF4, Seed: uint64(rank / 2), Pages: pages})
				if err != nil {
					return err
				}
				_, err = m.Evaluate(ctx, tokens(0))
				return err
			}()
		})
	}
	wait.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, `page "weights/model.layers.0.self_attn.q_proj.weight": rank 2 has written other bytes than rank 0`)
	}
}

// expertsRun makes a run of a model whose rows choose their experts.
func expertsRun(r *pagedRun) {
	r.config.Family, r.config.QKVBias = transformer.Custom, false
	r.config.Experts = transformer.Experts{Count: 9, Chosen: 2, Hidden: 24, Normalize: true}
	r.micros = func(int, int) int { return 1 }
}

// seeing is a model that looks at the Window.
type seeing struct {
	*toy
	sees func(w Window, batch []int)
}

func (s seeing) Backprop(ctx context.Context, b []int, scale float32, w Window) (fused.Loss, error) {
	s.sees(w, b)
	return s.toy.Backprop(ctx, b, scale, w)
}

// TestPagesPasses: all ranks make as many passes, and gradients of passes that another rank needs do not count, also if they
// are not finite.
func TestPagesPasses(t *testing.T) {
	for _, shard := range []plan.Sharding{plan.Replicate, plan.ShardState, plan.ShardGradients} {
		micros := [][][]int{{{1, 2}, {3}, {4, 5}}, {{6}}, {{7}, {8, 9}}}
		models, passes := toys(t, 3, snug.F32), make([][][]int, 3)
		reducers, err := accum.Local(t.Context(), 3)
		require.NoError(t, err)
		errs := make([]error, 3)
		var wait sync.WaitGroup
		for rank, r := range reducers {
			wait.Go(func() {
				errs[rank] = func() error {
					pages, err := accum.NewPages(r, accum.PagesOptions{})
					if err != nil {
						return err
					}
					m := seeing{models[rank], func(w Window, b []int) {
						passes[rank] = append(passes[rank], b)
						models[rank].poison = nil
						first, last := len(passes[rank]) == 1, len(passes[rank]) == 3
						if rank > 0 && (shard == plan.ShardGradients && last || shard != plan.ShardGradients && first) {
							models[rank].poison = map[int]string{b[0]: "w"}
						}
					}}
					tr, err := New[[]int](m, Options{Ranks: Ranks{Reducer: pages, Shard: shard, Bucket: 100}})
					if err != nil {
						return err
					}
					_, err = tr.Train(context.Background(), micros[rank])
					return errors.Join(err, tr.Close(), pages.Close())
				}()
			})
		}
		wait.Wait()
		require.NoError(t, errors.Join(errs...))
		if shard == plan.ShardGradients {
			require.Equal(t, [][][]int{micros[0], {{6}, {6}, {6}}, {{7}, {8, 9}, {7}}}, passes)
		} else {
			require.Equal(t, [][][]int{micros[0], {{6}, {6}, {6}}, {{7}, {7}, {8, 9}}}, passes)
		}
		want := toys(t, 3, snug.F32)
		errs = onRanks(t, want, func(int) Options { return Options{Ranks: Ranks{Shard: shard, Bucket: 100}} }, func(rank int, tr *Trainer[[]int]) error {
			_, err := tr.Train(context.Background(), micros[rank])
			return err
		})
		require.NoError(t, errors.Join(errs...))
		for rank := range models {
			require.Equal(t, want[rank].bits(), models[rank].bits())
		}
	}
}
