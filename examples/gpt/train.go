package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/text"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// trainer trains a model with the techniques of a config.
type trainer struct {
	*train.Trainer[transformer.Batch]
	config
	data   *text.Corpus
	model  *transformer.Model
	store  *offload.Store // nil without offload
	meter  *meter.Monitor
	losses fused.Losses        // of the current step
	micros []transformer.Batch // micro-batches of the current step
}

// newTrainer makes a trainer on dev with the weights of the newest checkpoint in saved, or with initial weights. pages
// is the folder for paged state. The ranks after the first have none, and take part in checkpoints.
func newTrainer(dev *snug.Device, c config, data *text.Corpus, pages string, saved *train.Folder) (t *trainer, err error) {
	t = &trainer{config: c, data: data, micros: make([]transformer.Batch, c.batch().Window)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	if t.meter, err = meter.New(meter.Options{Limits: [meter.Tiers]int64{c.limit}, Samples: 256}); err != nil {
		return t, err
	}
	run, _, err := c.predict()
	if err != nil {
		return t, err
	}
	model := transformer.Options{Device: dev, Seed: c.seed, Losses: &t.losses, Monitor: t.meter}
	o := train.Options{
		Optimizer: c.optimizer(), Schedule: c.learningRate, Clip: 1, Monitor: t.meter, Ranks: train.Ranks{Reducer: c.reducer},
		Losses: &t.losses, Measure: c.poison > 0, // names the micro-batch of a NaN
	}
	if c.on[useAMP] {
		o.Scaler = &amp.ScalerOptions{}
	}
	if c.on[useOffload] {
		if t.store, err = offload.Open(pages, offload.Options{HostLimit: c.hostLimit()}); err != nil {
			return t, err
		}
		o.Storage = t.store
	}
	if err := (plan.Plan{Task: c.task(), Run: run}).Apply(&model, &o); err != nil {
		return t, err
	}
	if t.model, err = transformer.New(c.architecture(), model); err != nil {
		return t, err
	}
	if err := t.model.Reserve(c.batch().Micro, c.context); err != nil {
		return t, err
	}
	o.Fill = t.model.FirstValues
	if saved != nil || c.rank() > 0 && c.saves {
		o.Folder, o.SaveEvery, o.About = saved, c.saveEvery, c.about(data)
	}
	if t.Trainer, err = train.New[transformer.Batch](poisoned{t.model, c}, o); err != nil {
		return t, err
	}
	t.SetNotes(notes{append(slices.Clip(c.ends), c.steps), c.first})
	return t, t.count()
}

// count tells the meter where pages are, and checks its limit. The meter counts everything in memory on the device, as
// one memory, and pages in host memory also on the host.
func (t *trainer) count() error {
	if t.store != nil {
		s := t.store.Stats()
		t.meter.Set(meter.OnDevice, meter.State, s.HostBytes, s.HostPeak)
		t.meter.Set(meter.OnHost, meter.State, s.HostBytes, s.HostPeak)
		t.meter.Set(meter.OnDisk, meter.State, s.DiskBytes, s.DiskBytes)
	}
	return t.meter.Check()
}

// Close frees the model, its trainer, the paged state and the meter.
func (t *trainer) Close() (err error) {
	if t.Trainer != nil {
		err = t.Trainer.Close()
	}
	if t.store != nil {
		err = errors.Join(err, t.store.Close())
	}
	if t.model != nil {
		err = errors.Join(err, t.model.Close())
	}
	if t.meter != nil {
		err = errors.Join(err, t.meter.Close())
	}
	return err
}

// poisoned is a model that makes a NaN, as an overflow would: in a gradient of its middle layer, in the middle
// micro-batch of step config.poison.
type poisoned struct {
	*transformer.Model
	config
}

func (p poisoned) Backprop(ctx context.Context, b transformer.Batch, scale float32, w train.Window) (fused.Loss, error) {
	if window := p.batch().Window; p.poison > 0 && b.Draw == uint64((p.poison-1)*window*p.batch().Ranks+window/2) {
		w = poison{w.(*accum.Window), fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", p.layers/2)}
	}
	return p.Model.Backprop(ctx, b, scale, w)
}

// poison puts a NaN into the gradient of one parameter when it is complete.
type poison struct {
	*accum.Window
	name string
}

func (p poison) Done(name string) error {
	if name == p.name {
		acc, _, err := p.Into(name)
		if err != nil {
			return err
		}
		at, err := acc.Slice(acc.Len()/3, acc.Len()/3+1)
		if err != nil {
			return err
		}
		if err := snug.Copy(at, []float32{float32(math.NaN())}); err != nil {
			return err
		}
	}
	return p.Window.Done(name)
}

// batches returns the micro-batches of a step, which the next call overwrites.
func (t *trainer) batches(step int) []transformer.Batch {
	b, used := t.batch(), 0
	for micro := range b.Window {
		first, end := b.Samples(t.rank(), micro)
		if first == end { // with more ranks than sequences
			continue
		}
		m := &t.micros[used]
		used++
		*m = transformer.Batch{Tokens: m.Tokens[:0], Labels: m.Labels[:0], Sequences: end - first, Draw: uint64((step*b.Ranks+t.rank())*b.Window + micro)}
		for ; first < end; first++ {
			key := text.Mix(t.seed) + uint64(step)*uint64(b.Global) + uint64(first)
			m.Tokens, m.Labels = text.AppendSequence(m.Tokens, m.Labels, t.data.Train, t.context, key)
		}
	}
	return t.micros[:used]
}

// heldOut yields the same sequences of held-out text in every call.
func (t *trainer) heldOut(yield func(transformer.Batch) bool) {
	var b transformer.Batch
	for i := range t.preset.heldOut {
		b.Tokens, b.Labels = text.AppendSequence(b.Tokens[:0], b.Labels[:0], t.data.Held, t.context, uint64(i))
		if !yield(b) {
			return
		}
	}
}

// sample returns text that the model writes after start. The same weights and seed give the same text.
func (t *trainer) sample(ctx context.Context, start string) (string, error) {
	var prompt []int32
	for _, k := range t.data.Vocabulary.Encode([]byte(start)) {
		prompt = append(prompt, int32(k))
	}
	g, err := t.model.Generate(transformer.GenerateOptions{Sampling: transformer.Sampling{Temperature: 0.7, Seed: t.seed}})
	if err != nil {
		return "", err
	}
	err = g.Prompt(ctx, prompt)
	for i := 0; i < t.sampled && err == nil; i++ {
		_, err = g.Next(ctx)
	}
	return t.data.Vocabulary.Decode(g.Tokens()), errors.Join(err, g.Close())
}
