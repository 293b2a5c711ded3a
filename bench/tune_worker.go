package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// tuneWorker is the process of a job. It ends with a line of JSON.
func tuneWorker(ctx context.Context, text string, stdout, stderr io.Writer) int {
	r, err := tuneInProcess(ctx, text)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func tuneInProcess(ctx context.Context, text string) (r tuneReport, err error) {
	var j tuneJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return r, err
	}
	m, err := tuneModelNamed(j.Model)
	if err != nil {
		return r, err
	}
	if j.Method == "" {
		return r, m.write(j.Dir)
	}
	t := &tuning{tuneJob: j, model: &m}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.open(); err != nil {
		return r, err
	}
	return t.run(ctx)
}

// write makes the folder of a model: config.json and shards of weights in bfloat16.
func (m *tuneModel) write(dir string) (err error) {
	model, err := transformer.New(m.config(), transformer.Options{DType: snug.BF16, Seed: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	return model.Save(dir, 1<<30)
}

// tuning is a job in this process.
type tuning struct {
	tuneJob
	model   *tuneModel
	process plan.Process // before there is a model

	task    plan.Task
	planned plan.Run
	opened  *transformer.Model
	trainer *train.Trainer[transformer.Batch]
	store   *offload.Store
}

// collect is the growth of the heap, in percent, before the next collection. Buffers are reused, so
// there is little to collect.
const collect = 25

// pagesHeld is the memory for pages of state, in bytes.
const pagesHeld = 64 << 20

// describe says what the run is to package plan.
func (t *tuning) describe() error {
	m, err := t.model.config().Plan(t.Tokens)
	if err != nil {
		return err
	}
	const rate, fast = 1e11, 1e10 // of a few cores, to compare plans
	t.task = plan.Task{
		Model: m, Batch: 1, Compute: []snug.DType{snug.BF16}, Masters: []amp.MasterForm{amp.NoMaster}, Process: &t.process,
		Device: plan.Device{Name: "this machine", Unified: true, Memory: 1 << 60, F32: rate, F16: rate, Bandwidth: fast,
			HostF32: rate, HostBandwidth: fast, Link: fast, DiskRate: fast / 10},
	}
	r := plan.Run{Micro: 1, Window: 1, Compute: snug.BF16, Masters: amp.NoMaster, Tiled: true, StateBits: 32}
	switch t.Method {
	case tuneFull:
		r.StateBits, r.Gradients = 8, plan.InBackward
		if t.Pages != "" {
			t.task.Device.Disk, r.StateOn, r.Cache = 1<<60, meter.OnDisk, pagesHeld
		}
	case tuneQLoRA:
		t.task.Rank, r.Frozen = t.Rank, 4
	default:
		t.task.Rank, r.Frozen = t.Rank, 16
	}
	t.task.StateBits, t.task.Gradients, t.planned = []int{r.StateBits}, []plan.Gradient{r.Gradients}, r
	if r.Frozen != 0 {
		t.task.Frozen = []int{r.Frozen}
	}
	return nil
}

// fit finds the fastest plan whose process stays within the limit.
func (t *tuning) fit() error {
	p, err := plan.Best(t.task.Fit(t.Limit))
	t.planned = p.Run
	return err
}

// longest returns the largest number of tokens, a multiple of step, that is predicted to fit the limit
// of the job. It is 0 when not even one step fits.
func (j tuneJob) longest(m *tuneModel, step int) (tokens int, err error) {
	fits := func(n int) (bool, error) {
		t := &tuning{tuneJob: j, model: m}
		t.Tokens = n
		err := t.describe()
		if err == nil {
			err = t.fit()
		}
		if errors.Is(err, snug.ErrNoMemory) {
			return false, nil
		}
		return err == nil, err
	}
	least, most := 0, 1
	for ; most < 1<<12; most *= 2 {
		ok, err := fits(most * step)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		least = most
	}
	for most-least > 1 {
		middle := (least + most) / 2
		ok, err := fits(middle * step)
		if err != nil {
			return 0, err
		}
		if ok {
			least = middle
		} else {
			most = middle
		}
	}
	return least * step, nil
}

// open makes the model and what trains it.
func (t *tuning) open() (err error) {
	debug.SetGCPercent(collect)
	t.process = plan.ThisProcess()
	if err := t.describe(); err != nil {
		return err
	}
	if t.Limit > 0 {
		if err := t.fit(); err != nil {
			return err
		}
	}
	o := transformer.Options{DType: snug.BF16, Seed: 1}
	if t.Method == tuneQLoRA {
		o.Base = qlora.NF4
	}
	if t.Method != tuneFull {
		o.Adapter = &qlora.AdapterOptions{Rank: t.Rank, Alpha: 2 * float32(t.Rank)}
	}
	if t.opened, err = transformer.Open(t.Dir, o); err != nil {
		return err
	}
	if t.Limit == 0 {
		costs, err := t.opened.Costs(1, t.Tokens)
		if err != nil {
			return err
		}
		if err := t.plan(costs); err != nil {
			return err
		}
	}
	if err := t.opened.SetPlan(t.planned.Remat); err != nil {
		return err
	}
	return t.makeTrainer()
}

// plan chooses what is computed again: every half of a layer, or as little as keeps the process within
// the bytes that the job allows.
func (t *tuning) plan(costs remat.Costs) (err error) {
	for budget := t.Within - t.process.Base; budget > 0; {
		t.planned.Remat, _, err = remat.Planner{}.Plan(costs, budget)
		if errors.Is(err, snug.ErrNoMemory) {
			break
		}
		if err != nil {
			return err
		}
		resident, err := t.task.Resident(t.planned)
		if err != nil {
			return err
		}
		if resident <= t.Within {
			return nil
		}
		budget -= max(resident-t.Within, t.Within/128)
	}
	t.planned.Remat, err = remat.Revolve(costs, len(costs.Stages))
	return err
}

func (t *tuning) makeTrainer() (err error) {
	r, rate := t.planned, float32(2e-4)
	if t.Method == tuneFull {
		rate = 1e-5
	}
	o := train.Options{
		Optimizer: quant8.AdamW{WeightDecay: 0.01}, StateBits: r.StateBits, Masters: r.Masters, Schedule: train.Constant(rate), Seed: 1,
		Gradients: r.Gradients,
	}
	if t.Pages != "" {
		if t.store, err = offload.Open(t.Pages, offload.Options{HostLimit: pagesHeld}); err != nil {
			return err
		}
		o.Storage = t.store
	}
	t.trainer, err = train.New(train.Model[transformer.Batch](t.opened), o)
	return err
}

func (t *tuning) run(ctx context.Context) (r tuneReport, err error) {
	r.Base = t.process.Base
	r.Loaded, _ = meter.Resident()
	if r.Predicted, err = t.task.Resident(t.planned); err != nil {
		return r, err
	}
	for step := range t.Warm + t.Steps {
		batch := t.model.batch(t.Tokens, step)
		start := time.Now()
		report, err := t.trainer.Train(ctx, []transformer.Batch{batch})
		if err != nil {
			return r, err
		}
		if step >= t.Warm {
			r.Seconds = append(r.Seconds, time.Since(start).Seconds())
		}
		r.Loss, r.Counted = cmp.Or(r.Loss, report.Loss), max(r.Counted, t.counted())
	}
	_, r.Peak = meter.Resident()
	return r, nil
}

// counted returns the bytes that the model and the trainer hold in memory.
func (t *tuning) counted() int64 {
	m, b := t.opened.Memory(), t.trainer.Bytes()
	if t.store != nil {
		b[meter.State] = t.store.Stats().HostPeak
	}
	b[meter.Weights], b[meter.Activations], b[meter.Workspace] = m.Weights, m.Peak, m.Workspace
	return b.Total()
}

// batch returns the tokens of the peer's batch, which are random. The last one has no label.
func (m *tuneModel) batch(tokens, step int) (b transformer.Batch) {
	state := uint32(step + 1)
	for range tokens {
		state = state*1664525 + 1013904223
		b.Tokens = append(b.Tokens, int32(state>>8)%int32(m.vocab))
	}
	b.Labels = append(append(b.Labels, b.Tokens[1:]...), -1)
	return b
}

func (t *tuning) close() (err error) {
	if t.trainer != nil {
		err = t.trainer.Close()
	}
	if t.opened != nil {
		err = errors.Join(err, t.opened.Close())
	}
	if t.store != nil {
		err = errors.Join(err, t.store.Close())
	}
	return err
}
