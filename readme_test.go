package snug_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// The code between the marks below is the README's. It compiles here, runs in
// TestReadmeCode, and TestReadmeShowsThisCode compares the text.

func readmeAmp(window *accum.Window, backward, step func(scale float32) error) error {
	//readme:
	scaler, err := amp.NewScaler(amp.ScalerOptions{}) // 2^16, ×2 after 2000 good steps, ×½ on overflow
	if err != nil {
		return err
	}
	dloss := scaler.Scale() // times the gradient of the loss: what backward starts with
	if err := backward(dloss); err != nil {
		return err
	}
	stats, err := scaler.Unscale("adamw", window.Gradients()) // one pass: unscale, check, norm
	if err != nil {
		return err
	}
	stepped, err := scaler.Step("adamw", nil, func() error { return step(amp.ClipCoef(stats.Norm, 1)) })
	//end
	if err != nil || !stepped {
		return err
	}
	return scaler.Update()
}

func readmeAccum(batches []batch) error {
	//readme:
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
	//end
	return nil
}

type batch struct {
	targets  int
	gradient []float32
}

func readmeRemat(ctx context.Context, chain *remat.Chain[[]float32, []float32], x []float32, loss func([]float32) ([]float32, error)) error {
	//readme:
	costs, err := chain.MeasureCosts(ctx, x, loss, 5) // bytes and seconds of every stage
	if err != nil {
		return err
	}
	costs.Host = remat.Rates{Write: 12e9, Read: 12e9} // bytes a second, to host memory and back
	plan, predicted, err := remat.Planner{Tiers: remat.Tiers{Host: 8 << 30}}.Plan(costs, 1<<30)
	if err != nil {
		return err // says the smallest budget that works
	}
	dx, measured, err := chain.Run(ctx, plan, x, loss) // measured.Peak == predicted.Peak
	//end
	if err != nil || len(dx) != len(x) {
		return err
	}
	if measured.Peak != predicted.Peak {
		return fmt.Errorf("a peak of %d bytes, %d are predicted", measured.Peak, predicted.Peak)
	}
	return nil
}

func bytesOf(x []float32) int64 { return 4 * int64(len(x)) }

func readmeQuant8(weights, gradient []float32) error {
	//readme:
	opt, err := quant8.NewAdamW(quant8.AdamWOptions{LR: 3e-4, WeightDecay: 0.01}) // 2.03 bytes a parameter
	if err != nil {
		return err
	}
	if err := opt.Add("w", len(weights)); err != nil {
		return err
	}
	opt.Advance(3e-4) // the next step and its learning rate
	err = opt.Step("w", snug.ViewOf(weights), snug.ViewOf(gradient), 1)
	//end
	return err
}

func readmeQlora(layer []snug.BFloat16) error {
	//readme:
	w, err := qlora.NewWeight(layer, []int{64, 64}, qlora.Options{}) // NF4 in blocks of 64
	if err != nil {
		return err
	}
	defer w.Close()
	err = w.Dequantize(snug.ViewOf(layer))
	//end
	return err
}

func readmeAttention(out, dout, qkv, dqkv []snug.BFloat16) error {
	//readme:
	c := attention.PackedQKV(attention.Config{Batch: 1, Heads: 2, SeqQ: 64, Dim: 32, Causal: true})
	lse := make([]float32, 2*64) // all that is kept for backward
	d := 2 * 32
	err := attention.Forward(out, lse, qkv, qkv[d:], qkv[2*d:], c)
	if err != nil {
		return err
	}
	ws := make([]float32, c.WorkspaceLen())
	err = attention.Backward(dqkv, dqkv[d:], dqkv[2*d:], dout, qkv, qkv[d:], qkv[2*d:], out, lse, c, ws)
	//end
	return err
}

func readmeOffload(dir string, weights, gradient []snug.BFloat16, first func(lo int, w []float32) error) error {
	//readme:
	store, err := offload.Open(dir, offload.Options{HostLimit: 64 << 20}) // the rest goes to disk
	if err != nil {
		return err
	}
	defer store.Close()
	opt, err := quant8.NewAdamW(quant8.AdamWOptions{Storage: store}) // any state, paged
	if err != nil {
		return err
	}
	updater, err := offload.NewUpdater(store, opt, offload.UpdaterOptions{}) // weights and gradients too
	if err != nil {
		return err
	}
	if err := updater.Add("w", len(weights), first); err != nil {
		return err
	}
	if err := updater.Bind("w", snug.ViewOf(weights)); err != nil { // float32 below, bfloat16 here
		return err
	}
	if err := updater.Accumulate("w", 0, snug.ViewOf(gradient), 1); err != nil { // as they arrive
		return err
	}
	if err := updater.Step(1e-3, 1); err != nil {
		return err
	}
	err = updater.Commit() // a killed process goes on from here
	//end
	return err
}

func readmeFused(x, table, dx []snug.BFloat16, targets []int32) error {
	//readme:
	head := fused.CrossEntropy{Vocab: 512, Cols: 32, Chunk: 16}
	dw := make([]float32, 512*32)
	ws := make([]float32, head.WorkspaceLen(len(targets))) // 16 rows of logits at a time
	loss, err := fused.CrossEntropyBackward(head, dx, dw, x, table, targets, 1/float32(len(targets)), fused.Into{}, ws)
	//end
	if err != nil || loss.Targets != len(targets) {
		return err
	}
	return nil
}

func readmeDevice(name string, weights []float32) error {
	//readme:
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
	err = amp.Cast(low, full) // every function takes arrays where it takes slices
	//end
	if err != nil {
		return err
	}
	return low.CopyOut(make([]snug.BFloat16, len(weights)))
}

func readmePlan(model plan.Model, device plan.Device) error {
	//readme:
	p, err := plan.Task{Model: model, Device: device, Batch: 32}.Fit(6 << 30)
	if err != nil {
		return err // says by how much it misses, and what is cheapest to change
	}
	for _, line := range p.Explain() {
		fmt.Println(line)
	}
	//end
	return nil
}

// doubler is a stage that doubles its input.
type doubler struct{}

func (doubler) Forward(_ context.Context, x []float32) ([]float32, error) {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = 2 * x[i]
	}
	return y, nil
}

func (d doubler) ForwardSave(ctx context.Context, x []float32) (y, s []float32, err error) {
	y, err = d.Forward(ctx, x)
	return y, y, err
}

func (d doubler) Backward(ctx context.Context, _, _, dy []float32) ([]float32, error) {
	return d.Forward(ctx, dy)
}

func TestReadmeCode(t *testing.T) {
	four := []float32{1, 2, 3, 4}
	window, err := accum.New([]accum.Param{{Name: "w", Len: 4}}, accum.Options{})
	require.NoError(t, err)
	require.NoError(t, window.Begin(1))
	require.NoError(t, window.Add("w", snug.ViewOf(four)))
	_, err = window.End()
	require.NoError(t, err)
	backward := func(scale float32) error {
		require.Equal(t, float32(65536), scale)
		return nil
	}
	require.NoError(t, readmeAmp(window, backward, func(scale float32) error {
		require.Equal(t, float32(1), scale)
		return nil
	}))
	require.NoError(t, readmeAccum([]batch{{3, four}, {5, four}}))
	chain := &remat.Chain[[]float32, []float32]{Stages: []remat.Stage[[]float32, []float32]{doubler{}, doubler{}}, Bytes: bytesOf, SavedBytes: bytesOf}
	require.NoError(t, readmeRemat(context.Background(), chain, four, func(y []float32) ([]float32, error) { return append([]float32(nil), y...), nil }))
	require.NoError(t, readmeQuant8(make([]float32, 5000), make([]float32, 5000)))
	b := func(n int) []snug.BFloat16 { return make([]snug.BFloat16, n) }
	require.NoError(t, readmeQlora(b(64*64)))
	require.NoError(t, readmeAttention(b(64*64), b(64*64), b(3*64*64), b(3*64*64)))
	require.NoError(t, readmeOffload(t.TempDir(), b(5000), b(5000), nil))
	for _, p := range kerneltest.Places(t)[1:] {
		require.NoError(t, readmeDevice(p.Name, four))
	}
	model, err := plan.ModelNamed("gpt2", 0)
	require.NoError(t, err)
	require.NoError(t, readmePlan(model, plan.Devices()[0]))
	require.NoError(t, readmeFused(b(40*32), b(512*32), b(40*32), make([]int32, 40)))
}

func TestReadmeShowsThisCode(t *testing.T) {
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	parts := strings.Split(string(source), "\t//readme:\n")[1:]
	require.Len(t, parts, 10)
	for _, part := range parts {
		code, _, found := strings.Cut(part, "\t//end\n")
		require.True(t, found)
		code = strings.ReplaceAll(strings.TrimPrefix(code, "\t"), "\n\t", "\n")
		require.Contains(t, string(readme), "```go\n"+code+"```")
	}
}
