// Code generated from README.md by "UPDATE=1 go test -run TestReadmeProgramIsTheReadmes ."; DO NOT EDIT.

package snug_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

func (r *readme) program() error {
	steps, ctx, backward, gradients, step := r.steps, r.ctx, r.backward, r.gradients, r.step
	batches, chain, x, loss := r.batches, r.chain, r.x, r.loss
	weights, gradient, first, dir := r.weights, r.gradient, r.first, r.dir
	layer, out, dout, qkv, dqkv := r.layer, r.out, r.dout, r.qkv, r.dqkv
	hidden, table, dhidden, targets := r.hidden, r.table, r.dhidden, r.targets
	model, device, name := r.model, r.device, r.name

	// ---

	scaler, err := amp.NewScaler(amp.ScalerOptions{}) // 2^16, ×2 after 2000 good steps, ×½ on overflow
	if err != nil {
		return err
	}
	for range steps {
		if err := backward(scaler.Scale()); err != nil { // the gradient of the loss begins with the scale
			return err
		}
		stats, err := scaler.Unscale("adamw", gradients()) // one pass: unscale, check, norm
		if err != nil {
			return err
		}
		clip := amp.ClipCoef(stats.Norm, 1)
		if _, err := scaler.Step("adamw", nil, func() error { return step(clip) }); err != nil { // skipped on overflow
			return err
		}
		if err := scaler.Update(); err != nil { // the scale of the next step
			return err
		}
	}

	// ---

	window, err := accum.New([]accum.Param{{Name: "w", Len: 4}}, accum.Options{Schedule: accum.Constant(8)})
	if err != nil {
		return err
	}
	for _, b := range batches {
		if err := window.Begin(float64(b.targets)); err != nil { // the micro-batch's weight
			return err
		}
		if err := window.Add("w", snug.ViewOf(b.gradient)); err != nil { // f32, bf16 or f16
			return err
		}
		full, err := window.End()
		if err != nil {
			return err
		}
		if full {
			// ... step with window.Gradients(), the mean over all targets ...
			window.Reset()
		}
	}

	// ---

	costs, err := chain.MeasureCosts(ctx, x, loss, 5) // bytes and seconds of every stage
	if err != nil {
		return err
	}
	costs.Host = remat.Rates{Write: 12e9, Read: 12e9} // bytes a second, to host memory and back
	keep, predicted, err := remat.Planner{Tiers: remat.Tiers{Host: 8 << 30}}.Plan(costs, 1<<30)
	if err != nil {
		return err // says the smallest budget that works
	}
	dx, measured, err := chain.Run(ctx, keep, x, loss) // measured.Peak == predicted.Peak
	if err != nil {
		return err
	}

	// ---

	opt, err := quant8.NewAdamW(quant8.AdamWOptions{WeightDecay: 0.01}) // 2.03 bytes a parameter
	if err != nil {
		return err
	}
	if err := opt.Add("w", len(weights)); err != nil {
		return err
	}
	for range steps {
		opt.Advance(3e-4) // the next step and its learning rate
		if err := opt.Step("w", snug.ViewOf(weights), snug.ViewOf(gradient), 1); err != nil {
			return err
		}
	}

	// ---

	w, err := qlora.NewWeight(layer, []int{64, 64}, qlora.Options{}) // NF4 in blocks of 64
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Dequantize(snug.ViewOf(layer)); err != nil {
		return err
	}

	// ---

	c := attention.PackedQKV(attention.Options{Batch: 1, Heads: 2, SeqQ: 64, Dim: 32, Causal: true})
	lse := make([]float32, 2*64) // all that is kept for backward
	d := 2 * 32
	if err := attention.Forward(out, lse, qkv, qkv[d:], qkv[2*d:], c); err != nil {
		return err
	}
	ws := make([]float32, c.WorkspaceLen())
	err = attention.Backward(dqkv, dqkv[d:], dqkv[2*d:], dout, qkv, qkv[d:], qkv[2*d:], out, lse, c, ws)
	if err != nil {
		return err
	}

	// ---

	store, err := offload.Open(dir, offload.Options{HostLimit: 64 << 20}) // the rest goes to disk
	if err != nil {
		return err
	}
	defer store.Close()
	paged, err := quant8.NewAdamW(quant8.AdamWOptions{Storage: store}) // any state, paged
	if err != nil {
		return err
	}
	updater, err := offload.NewUpdater(store, paged, offload.UpdaterOptions{}) // weights and gradients too
	if err != nil {
		return err
	}
	if err := updater.Add("w", len(weights), first); err != nil {
		return err
	}
	from, err := updater.Resume() // the steps that the folder has: 0 in a new one
	if err != nil {
		return err
	}
	if err := updater.Bind("w", snug.ViewOf(weights)); err != nil { // float32 below, any type here
		return err
	}
	for range steps - from {
		if err := updater.Accumulate("w", 0, snug.ViewOf(gradient), 1); err != nil { // as they arrive
			return err
		}
		if err := updater.Step(1e-3, 1); err != nil {
			return err
		}
	}
	if err := updater.Commit(); err != nil { // a killed process goes on from here
		return err
	}

	// ---

	head := fused.CrossEntropy{Vocab: 512, Cols: 32, Chunk: 16}
	dw := make([]float32, 512*32)
	logits := make([]float32, head.WorkspaceLen(len(targets))) // 16 rows of logits at a time
	mean := 1 / float32(len(targets))
	result, err := fused.CrossEntropyBackward(head, dhidden, dw, hidden, table, targets, mean, snug.Into{}, logits)
	if err != nil {
		return err
	}
	fmt.Println(result.Sum / float64(result.Targets))

	// ---

	p, err := plan.Task{Model: model, Device: device, Batch: 32}.Fit(6 << 30)
	if err != nil {
		return err // says by how much it misses, and what is cheapest to change
	}
	for _, line := range p.Explain() {
		fmt.Println(line)
	}

	// ---

	dev, err := snug.Open(name) // "cuda:0", "metal:0" or "cpu"
	if err != nil {
		return err // says what was found and what is needed: a tag, a driver, a newer card
	}
	defer dev.Close()
	full, err := snug.Make[float32](dev, len(weights))
	if err != nil {
		return err
	}
	low, err := snug.Make[snug.BFloat16](dev, len(weights))
	if err != nil {
		return err
	}
	if err := full.CopyIn(weights); err != nil {
		return err
	}
	if err := amp.Cast(low, full); err != nil { // what takes a snug.Vector takes arrays too
		return err
	}

	if measured.Peak != predicted.Peak || len(dx) != len(x) {
		return fmt.Errorf("a peak of %d bytes, %d are predicted", measured.Peak, predicted.Peak)
	}
	return nil
}
