package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/vision"
)

// The peaks of the learning rate for classes by default: that of transformers' image-classification example, and for a head alone.
const classesRate, headRate = 5e-5, 1e-3

// classesSubject are models that tell classes of images apart.
func classesSubject() *subject {
	return &subject{
		what: "a model that tells classes of images apart", is: isClasses, flags: []string{"map", "images", "train", "full", "masters", "val"}, parts: []string{headPart},
		rate: func(f *tuneFlags) float64 {
			if f.trainsHead() {
				return f.scaledRate(headRate)
			}
			return f.scaledRate(classesRate)
		},
		new: func(v *visual) lesson { return &classes{visual: v} },
	}
}

// classes teaches a tower the classes of images: the cross-entropy of a head on its rows.
type classes struct {
	*visual
	data, tests *dataset.Classes // tests, unless nil, are those that are held out
	order       *order
	processor   *vision.Processor
	config      vision.TowerConfig
	options     vision.TowerOptions
	kept        string // says which head trains
	tower       *vision.Tower

	made         layers.Sample // of the images in last, which a step may ask for again
	last         picked
	right, asked int // of the images that were evaluated
}

// options of the data.
func (c *classes) dataOptions(shown func(what string, n, of int)) (o dataset.ClassOptions, err error) {
	o = dataset.ClassOptions{ImageFolder: c.imageDir, Progress: func(n, of int) { shown("images", n, of) }}
	if o.Map, err = c.fieldMap(); err != nil {
		return o, fmt.Errorf("-map: %w", err)
	}
	if c.memory > 0 {
		o.Memory = max(c.memory-plan.ThisProcess().Base-spareBytes, 1)
	}
	return o, nil
}

func (c *classes) read(ctx context.Context, shown func(what string, n, of int)) error {
	if strings.Contains(c.files, ",") {
		return usagef("tune: -data %s: several paths, want one folder or table of images with classes", c.files)
	}
	o, err := c.dataOptions(shown)
	if err != nil {
		return err
	}
	if c.processor, err = vision.OpenProcessor(c.dir); err != nil {
		return err
	}
	if c.data, err = dataset.ReadClasses(ctx, c.files, o); err != nil {
		return err
	}
	if err := c.openModel(); err != nil {
		return err
	}
	if err := c.readTests(ctx, o); err != nil {
		return err
	}
	if c.tests != nil {
		c.order = numbered(c.data.Len(), c.tests.Len(), c.seed)
	} else {
		c.order = newOrder(c.data.Len(), c.tuneFlags.held, c.seed)
	}
	l, err := c.layout()
	if err != nil {
		return err
	}
	if side := c.config.Image; !slices.Equal(l.Shape, []int{1, 3, side, side}) {
		return fmt.Errorf("preprocessor_config.json of %s makes images of the shape %v, and the model has %d by %d pixels: change its size: %w", c.dir, l.Shape, side, side, snug.ErrConfig)
	}
	return nil
}

// layout is that of all images: the processor makes squares of one size.
func (c *classes) layout() (vision.Layout, error) {
	var most vision.Layout
	for _, set := range []*dataset.Classes{c.data, c.tests} {
		for i := range set.Len() {
			w, h := set.Size(i)
			l, err := c.processor.Layout(w, h)
			if err != nil {
				return l, fmt.Errorf("%s: %w", set.Name(i), err)
			}
			if most.Bytes = max(most.Bytes, l.Bytes); i == 0 {
				l.Bytes, most = most.Bytes, l
			}
		}
	}
	return most, nil
}

// openModel reads what the model is. Its own head goes on where it has the classes of the data.
func (c *classes) openModel() error {
	own, err := vision.ReadTower(c.dir, vision.TowerOptions{})
	if err != nil {
		return err
	}
	labels := c.data.Labels()
	if same := slices.Equal(slices.Sorted(slices.Values(own.Labels)), slices.Sorted(slices.Values(labels))); same {
		c.config, c.kept = own, "the head of the model goes on: it has the classes of the data"
		if err := c.data.Relabel(own.Labels); err != nil {
			return err
		}
	} else {
		c.options.Labels = labels
		if c.config, err = vision.ReadTower(c.dir, c.options); err != nil {
			return err
		}
		c.kept = fmt.Sprintf("a new head for %s", console.Count(len(labels), "class"))
		if len(labels) > 1 {
			c.kept = fmt.Sprintf("a new head for %d classes", len(labels))
		}
	}
	if c.trainsHead() {
		c.options.Train = func(name string) bool { return strings.HasPrefix(name, "classifier.") }
	}
	return nil
}

// readTests reads the images that are held out where they are data of their own.
func (c *classes) readTests(ctx context.Context, o dataset.ClassOptions) (err error) {
	o.Labels = c.config.Labels
	switch {
	case c.validation != "":
		c.tests, err = dataset.ReadClasses(ctx, c.validation, o)
	case !c.given("held-out"):
		o.Validation = true
		if c.tests, err = dataset.ReadClasses(ctx, c.files, o); errors.Is(err, fs.ErrNotExist) {
			c.tests, err = nil, nil
		}
	}
	return err
}

func (c *classes) lines() []string {
	labels := c.config.Labels
	counts := make([]int, len(labels))
	for i := range c.data.Len() {
		counts[c.data.Class(i)]++
	}
	const most = 12
	var parts []string
	for i, label := range labels[:min(most, len(labels))] {
		parts = append(parts, fmt.Sprintf("%s %d", label, counts[i]))
	}
	if n := len(labels) - most; n > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", n))
	}
	lines := append([]string{"images by class: " + strings.Join(parts, ", "), c.kept}, c.data.Notes()...)
	if c.tests == nil {
		return lines
	}
	known, seen := map[[sha256.Size]byte]bool{}, 0
	for i := range c.data.Len() {
		known[c.data.ImageSum(i)] = true
	}
	for i := range c.tests.Len() {
		if known[c.tests.ImageSum(i)] {
			seen++
		}
	}
	if seen > 0 {
		lines = append(lines, console.Count(seen, "held-out image")+" also among those that are trained on")
	}
	return append(lines, c.tests.Notes()...)
}

func (c *classes) samples() *order { return c.order }

func (c *classes) about() map[string]any {
	return map[string]any{"subject": "classes", "head": c.trainsHead(), "labels": c.config.Labels}
}

func (c *classes) sum() [sha256.Size]byte { return c.data.Sum() }

func (c *classes) task(t *plan.Task) (err error) {
	t.Compute = []snug.DType{c.dtype}
	t.Model, err = c.config.Plan(c.options.Train)
	return err
}

// sets are the images to train on and, if they are others, those that are held out.
func (c *classes) sets() []*dataset.Classes {
	if c.tests == nil {
		return []*dataset.Classes{c.data}
	}
	return []*dataset.Classes{c.data, c.tests}
}

// of returns the set of a micro-batch.
func (c *classes) of(b picked) *dataset.Classes {
	if b.held && c.tests != nil {
		return c.tests
	}
	return c.data
}

// beside counts, for each image, its values and its patches, and what is decoded at a time.
func (c *classes) beside(micro int) int64 {
	l, err := c.layout()
	if err != nil { // read has checked it
		return 0
	}
	patches := int64(c.config.Rows()) * int64(c.config.Channels*c.config.Patch*c.config.Patch)
	return int64(micro)*4*(int64(l.Len())+patches) + c.decoding() + int64(dataset.Workers())*l.Bytes
}

// decoding returns what the decoding of images takes.
func (c *classes) decoding() (most int64) {
	for _, set := range c.sets() {
		most = max(most, set.DecodeBytes())
	}
	return most
}

func (c *classes) ahead() int64 { return c.decoding() }

func (c *classes) prepare() (func() error, error) { return nothing, nil }

func (c *classes) open(p plan.Plan, m *meter.Monitor) (train.Model[picked], error) {
	o := c.options
	o.Options = c.layerOptions(p, m)
	var err error
	if c.tower, err = vision.OpenTower(c.dir, o); err != nil {
		return nil, err
	}
	return towerModel{c.tower.Model, c}, c.tower.Model.SetPlan(p.Run.Remat)
}

func (c *classes) score() (float64, string) {
	right, asked := c.right, c.asked
	c.right, c.asked = 0, 0
	return float64(right) / float64(asked), "accuracy"
}

func (c *classes) save(dir string) error { return c.tower.Save(dir) }

func (c *classes) use(dir string) string {
	return "the model is in " + dir + ": snug generate -model " + dir + " -image FILE"
}

func (c *classes) close() error { return errors.Join(c.tower.Close(), c.data.Close(), c.tests.Close()) }

// sample decodes and processes the images of a micro-batch.
func (c *classes) sample(ctx context.Context, b picked) (layers.Sample, error) {
	if c.made.X != nil && b.held == c.last.held && slices.Equal(b.samples, c.last.samples) {
		return c.made, nil
	}
	c.made = layers.Sample{}
	set, images, labels := c.of(b), make([][]float32, len(b.samples)), make([]int32, len(b.samples))
	err := dataset.Each(ctx, len(images), func(i int) error {
		n := b.samples[i]
		labels[i] = int32(set.Class(n))
		m, err := set.Image(n)
		if err != nil {
			return err
		}
		x, err := c.processor.Process(m)
		images[i] = x.Values
		return err
	}, nil)
	if err != nil {
		return c.made, err
	}
	s, err := c.tower.Sample(images, labels)
	if err == nil {
		c.made, c.last = s, b
	}
	return s, err
}

// towerModel is a tower that learns classes. It is a train.Model of micro-batches whose images it reads.
type towerModel struct {
	*layers.Model
	of *classes
}

func (t towerModel) Weight(b picked) float64 { return float64(len(b.samples)) }

func (t towerModel) Backprop(ctx context.Context, b picked, scale float32, w train.Window) (loss fused.Loss, err error) {
	s, err := t.of.sample(ctx, b)
	if err != nil {
		return loss, err
	}
	return t.Model.Backprop(ctx, s, scale, w)
}

// Evaluate returns the cross-entropy of the logits, and counts for which images the right class is ahead.
func (t towerModel) Evaluate(ctx context.Context, b picked) (loss fused.Loss, err error) {
	s, err := t.of.sample(ctx, b)
	if err != nil {
		return loss, err
	}
	classes := len(t.of.config.Labels)
	logits := make([]float32, len(b.samples)*classes)
	if err := t.of.tower.Logits(ctx, logits, s); err != nil {
		return loss, err
	}
	for i, label := range s.Labels {
		row := logits[i*classes:][:classes]
		loss.Sum += logSumExp(row) - float64(row[label])
		if b.held {
			if t.of.asked++; slices.Index(row, slices.Max(row)) == int(label) {
				t.of.right++
			}
		}
	}
	loss.Targets, loss.Weight = len(s.Labels), float64(len(s.Labels))
	return loss, nil
}

// logSumExp returns the logarithm of the sum of the exponentials of logits.
func logSumExp(logits []float32) float64 {
	most, sum := float64(slices.Max(logits)), 0.
	for _, x := range logits {
		sum += math.Exp(float64(x) - most)
	}
	return most + math.Log(sum)
}

// probability returns the probability of a logit, from the logarithm of the sum of the exponentials of all.
func probability(logit float32, all float64) float64 { return math.Exp(float64(logit) - all) }
