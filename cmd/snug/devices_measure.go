package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/transformer"
)

// This file measures the rates by which plan predicts times, with what training does: one layer of a transformer forward and backward, updates of
// an optimizer, and a file. It takes about 160 MB of memory and a few seconds.

// probe is the model that is measured.
var probe = transformer.Config{
	Family: transformer.Llama, Vocab: 256, Dim: 768, Hidden: 2048, Layers: 1, Heads: 12, KVHeads: 12, HeadDim: 64, Context: 512, NormEps: 1e-6,
	Activation: transformer.SiLU, Gated: true, Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: 64}, InitStd: 0.02, ScoreScale: 0.125, EmbeddingScale: 1,
	BOS: -1, Pad: -1, Windows: []int{0},
}

const (
	probeTimes    = 5       // of which the median counts
	probeElements = 4 << 20 // of an optimizer
	updateBytes   = 28      // that an update of an element in float32 moves: parameter and two states are read and written, the gradient is read
	probeFile     = 64 << 20
)

// measureProcessor measures the rates of the processor, and of the disk with the folder for temporary files.
func measureProcessor(ctx context.Context) (m measured, err error) {
	if m, err = thisProcessor(); err != nil {
		return m, err
	}
	m.At = time.Now()
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		rate, err := trainingRate(ctx, dt)
		if err != nil {
			return m, err
		}
		if dt == snug.F32 {
			m.F32 = rate
		} else {
			m.F16 = rate
		}
	}
	seconds, err := updateSeconds(32)
	if err != nil {
		return m, err
	}
	m.Bandwidth = updateBytes * probeElements / seconds
	if seconds, err = updateSeconds(8); err != nil {
		return m, err
	}
	m.Elementwise = plan.StateOps(8) * probeElements / seconds
	m.DiskRate, err = diskRate()
	return m, err
}

// median returns the median time of do, which is called once before.
func median(do func() error) (float64, error) {
	var times []float64
	for i := range 1 + probeTimes {
		start := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		if i > 0 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	slices.Sort(times)
	return max(times[len(times)/2], 1e-9), nil
}

// trainingRate returns the operations a second that a forward and a backward pass of the probe reach: those that plan counts.
func trainingRate(ctx context.Context, dt snug.DType) (rate float64, err error) {
	m, err := transformer.New(&probe, transformer.Options{DType: dt})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var params []accum.Param
	for _, p := range m.Params() {
		params = append(params, accum.Param{Name: p.Name, Len: p.Len()})
	}
	window, err := accum.New(params, accum.Options{Schedule: accum.Weight(1)})
	if err != nil {
		return 0, err
	}
	b := transformer.Batch{Tokens: make([]int32, probe.Context), Labels: make([]int32, probe.Context)}
	for i := range b.Tokens {
		b.Tokens[i] = int32(i*7) % int32(probe.Vocab)
	}
	seconds, err := median(func() error {
		window.Reset()
		if err := window.Begin(b.Weight()); err != nil {
			return err
		}
		_, err := m.Backprop(ctx, b, 1, window)
		return err
	})
	if err != nil {
		return 0, err
	}
	operations, err := probeOperations(dt)
	return operations / seconds, err
}

// probeOperations returns how many operations plan counts for that: the time on a device that does one a second, and all else at once.
func probeOperations(dt snug.DType) (float64, error) {
	const once = 1e200
	model, err := probe.Plan(probe.Context)
	if err != nil {
		return 0, err
	}
	task := plan.Task{Model: model, Batch: 1, Compute: []snug.DType{dt}, Device: plan.Device{
		Name: "unit", Unified: true, Memory: 1 << 60, F32: 1, F16: 1, Elementwise: once,
		Bandwidth: once, HostF32: once, HostBandwidth: once, Link: once, DiskRate: once,
	}}
	p, err := task.Predict(plan.Run{Micro: 1, Window: 1, Compute: dt, Gradients: plan.SumF32, Tiled: true})
	return p.Seconds, err
}

// updateSeconds returns the time of an update of AdamW with states of so many bits.
func updateSeconds(bits int) (seconds float64, err error) {
	o, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: bits})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := o.Add("p", probeElements); err != nil {
		return 0, err
	}
	p, g := make([]float32, probeElements), make([]float32, probeElements)
	for i := range p {
		p[i], g[i] = float32(i%1000)/1000, float32(i%777)/1e4
	}
	return median(func() error {
		o.Advance(1e-4)
		return o.Step("p", snug.ViewOf(p), snug.ViewOf(g), 1)
	})
}

// diskRate returns the bytes a second that a file of the folder for temporary files takes until they are on the disk.
func diskRate() (rate float64, err error) {
	f, err := os.CreateTemp("", "snug-measure-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 31)
	}
	start := time.Now()
	for range probeFile / len(block) {
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return probeFile / max(time.Since(start).Seconds(), 1e-9), nil
}
