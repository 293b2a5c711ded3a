package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/vision"
	"github.com/snug-ml/snug/vision/segment"
)

// masksRate is the peak of the learning rate for masks by default.
const masksRate = 1e-4

// masksSubject are models that segment images by prompts: Segment Anything.
func masksSubject() *subject {
	return &subject{
		what: "a model that makes masks for prompts", is: segment.IsModel, flags: []string{"images", "features", "box-jitter", "full"},
		rate: func(f *tuneFlags) float64 { return f.scaledRate(masksRate) },
		new:  func(v *visual) lesson { return &masks{visual: v} },
	}
}

// masks teaches the mask decoder of Segment Anything the objects of images, on features that the frozen encoder computes once.
type masks struct {
	*visual
	data      *dataset.Masks
	order     *order
	processor *vision.Processor
	config    segment.Config
	model     *segment.Model
	overlap   float64 // sum of IoU, of the objects that were evaluated
	asked     int
}

func (m *masks) read(ctx context.Context, shown func(what string, n, of int)) (err error) {
	o := dataset.MaskOptions{ImageFolder: m.imageDir, Progress: func(n, of int) { shown("masks", n, of) }}
	if m.memory > 0 {
		o.Memory = max(m.memory-plan.ThisProcess().Base-spareBytes, 1)
	}
	if m.processor, err = vision.OpenProcessor(m.dir); err != nil {
		return err
	}
	if m.config, err = segment.ReadConfig(m.dir); err != nil {
		return err
	}
	if m.data, err = dataset.ReadMasks(ctx, m.files, o); err != nil {
		return err
	}
	for i := range m.data.Images() {
		w, h := m.data.Size(i)
		l, err := m.processor.Layout(w, h)
		if err != nil {
			return fmt.Errorf("%s: %w", m.data.Name(i), err)
		}
		if side := m.config.Encoder.Image; !slices.Equal(l.Shape, []int{1, 3, side, side}) {
			return fmt.Errorf("preprocessor_config.json of %s makes images of the shape %v, and the model has %d by %d pixels: change its size: %w", m.dir, l.Shape, side, side, snug.ErrConfig)
		}
	}
	images := newOrder(m.data.Images(), m.tuneFlags.held, m.seed) // an image is held out with all of its objects
	m.order = &order{seed: m.seed}
	for i := range m.data.Len() {
		if slices.Contains(images.held, m.data.Item(i).Image) {
			m.order.held = append(m.order.held, i)
		} else {
			m.order.train = append(m.order.train, i)
		}
	}
	return nil
}

func (m *masks) lines() []string {
	return append([]string{fmt.Sprintf("%s with %s", console.Count(m.data.Images(), "image"), console.Count(m.data.Len(), "object"))}, m.data.Notes()...)
}

func (m *masks) samples() *order { return m.order }

func (m *masks) about() map[string]any {
	return map[string]any{"subject": "masks", "box-jitter": m.jitter}
}

func (m *masks) sum() [sha256.Size]byte { return m.data.Sum() }

func (m *masks) task(t *plan.Task) (err error) {
	t.Compute = []snug.DType{snug.F32}
	t.Model, err = m.config.Plan()
	return err
}

// beside counts, for each object, features in 16 bits and in float32 and the target; and what the decoding of a mask takes.
func (m *masks) beside(micro int) int64 {
	return int64(micro)*(6*int64(m.config.FeatureLen())+4*int64(m.config.Side()*m.config.Side())) + m.data.DecodeBytes()
}

func (m *masks) ahead() int64 {
	n, err := m.config.EncoderBytes(m.dtype)
	if err != nil { // ReadConfig has checked it
		return 0
	}
	for i := range m.data.Images() {
		if _, err := os.Stat(m.featuresOf(i)); err != nil {
			return n + m.data.DecodeBytes()
		}
	}
	return m.data.DecodeBytes()
}

// featuresOf returns the file of the features of an image: its name depends on the image, on how it is processed, on the weights and on the type of the encoder.
func (m *masks) featuresOf(image int) string {
	sum := m.data.ImageSum(image)
	about := sha256.Sum256(fmt.Appendf(nil, "%x %s %s %s %s", sum, m.modelSums.weights, m.modelSums.config, m.modelSums.processor, m.dtype))
	dir := m.featureDir
	if dir == "" {
		dir = filepath.Join(m.pagesDir(), "snug.features")
	}
	return filepath.Join(dir, fmt.Sprintf("%x.safetensors", about[:16]))
}

// prepare computes the features that are missing or damaged. The encoder is then no longer in memory.
func (m *masks) prepare() (clean func() error, err error) {
	if clean = nothing; m.featureDir == "" {
		clean = func() error { return removePages(m.pagesDir()) }
	}
	if err := os.MkdirAll(filepath.Dir(m.featuresOf(0)), 0o700); err != nil {
		return clean, usagef("tune: %s is where the features of images go: %w", filepath.Dir(m.featuresOf(0)), err)
	}
	var missing []int
	for i := range m.data.Images() {
		switch _, err := segment.ReadFeatures(m.featuresOf(i)); {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, snug.ErrCorrupt):
			missing = append(missing, i)
		case err != nil:
			return clean, err
		}
	}
	if len(missing) == 0 {
		return clean, nil
	}
	e, err := segment.OpenEncoder(m.dir, layers.Options{DType: m.dtype})
	if err != nil {
		return clean, err
	}
	err = errors.Join(m.encode(e, missing), e.Close())
	runtime.GC() // the decoder takes the memory that the encoder had
	debug.FreeOSMemory()
	return clean, err
}

// encode writes the features of images.
func (m *masks) encode(e *segment.Encoder, missing []int) error {
	show, began := console.NewScreen(m.call.stderr), time.Now()
	for i, n := range missing {
		image, err := m.data.Image(n)
		if err != nil {
			return err
		}
		x, err := m.processor.Process(image)
		if err == nil {
			err = e.EncodeFile(m.stop.Now, m.featuresOf(n), snug.F16, x.Values)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.data.Name(n), err)
		}
		if show != nil {
			show.Show([]string{fmt.Sprintf("images: %d of %d, %.1f/s", i+1, len(missing), float64(i+1)/time.Since(began).Seconds())})
		}
		if m.stop.Asked() {
			kept := "nothing is saved; -features keeps what the encoder computes of images"
			if m.featureDir != "" {
				kept = "the same command goes on from what is in " + m.featureDir
			}
			return console.Interruption{Text: "interrupted before the first step: " + kept, Status: m.stop.Status()}
		}
	}
	if show != nil {
		show.Clear()
	}
	fmt.Fprintf(m.call.stdout, "\nimages: features of %d in %.1f s\n", len(missing), time.Since(began).Seconds())
	return nil
}

func (m *masks) open(p plan.Plan, monitor *meter.Monitor) (train.Model[picked], error) {
	var err error
	if m.model, err = segment.Open(m.dir, segment.Options{Monitor: monitor}); err != nil {
		return nil, err
	}
	return maskModel{m.model, m}, nil
}

func (m *masks) score() (float64, string) {
	overlap, asked := m.overlap, m.asked
	m.overlap, m.asked = 0, 0
	if asked == 0 {
		return math.NaN(), ""
	}
	return overlap / float64(asked), "IoU"
}

func (m *masks) save(dir string) error { return m.model.Save(dir) }

func (m *masks) use(dir string) string {
	return "the model is in " + dir + ": SamModel.from_pretrained of transformers loads it, and segment.Open"
}

func (m *masks) close() error { return errors.Join(m.model.Close(), m.data.Close()) }

// items returns the objects of a micro-batch with their features.
func (m *masks) items(b picked) ([]segment.Item, error) {
	list := make([]segment.Item, len(b.samples))
	for i, n := range b.samples {
		of := m.data.Item(n)
		w, h := m.data.Size(of.Image)
		l, err := m.processor.Layout(w, h)
		if err != nil {
			return nil, err
		}
		item := &list[i]
		if item.Features, err = segment.ReadFeatures(m.featuresOf(of.Image)); err != nil {
			return nil, fmt.Errorf("%w: remove the file, and it is computed again", err)
		}
		mask, err := m.data.Mask(n)
		if err != nil {
			return nil, err
		}
		if item.Target, err = m.config.Target(mask, segment.Size{Height: l.Height, Width: l.Width}, segment.Size{Height: h, Width: w}); err != nil {
			return nil, err
		}
		item.Prompt = m.prompt(n, of, l, b)
	}
	return list, nil
}

// prompt returns the prompt of an object, in pixels of the image that the encoder gets. Boxes for training are moved by -box-jitter, anew in each step.
func (m *masks) prompt(n int, of dataset.MaskItem, l vision.Layout, batch picked) (p segment.Prompt) {
	x, y := float32(l.Width)/float32(l.OriginalWidth), float32(l.Height)/float32(l.OriginalHeight)
	if of.Box != nil {
		b := *of.Box
		if m.jitter > 0 && !batch.held {
			rng := rand.New(rand.NewPCG(m.seed+uint64(batch.step)<<32, uint64(n)))
			for i, most := range []int{l.OriginalWidth, l.OriginalHeight, l.OriginalWidth, l.OriginalHeight} {
				b[i] = min(max(b[i]+float32(rng.IntN(2*m.jitter+1)-m.jitter), 0), float32(most-1))
			}
		}
		p.Box = &segment.Box{Left: min(b[0], b[2]) * x, Top: min(b[1], b[3]) * y, Right: max(b[0], b[2]) * x, Bottom: max(b[1], b[3]) * y}
	}
	for i, at := range of.Points {
		p.Points = append(p.Points, segment.Point{X: at[0] * x, Y: at[1] * y, Background: of.Labels != nil && !of.Labels[i]})
	}
	return p
}

// maskModel is a mask decoder that learns objects. It is a train.Model of micro-batches whose features and masks it reads.
type maskModel struct {
	*segment.Model
	of *masks
}

func (t maskModel) Weight(b picked) float64 { return float64(len(b.samples)) }

func (t maskModel) Backprop(ctx context.Context, b picked, scale float32, w train.Window) (loss fused.Loss, err error) {
	items, err := t.of.items(b)
	if err != nil {
		return loss, err
	}
	return t.Model.Backprop(ctx, items, scale, w)
}

// Evaluate returns the loss, and adds up the overlap of masks with their targets.
func (t maskModel) Evaluate(ctx context.Context, b picked) (loss fused.Loss, err error) {
	items, err := t.of.items(b)
	if err != nil {
		return loss, err
	}
	if b.held {
		n := t.Config().Side() * t.Config().Side()
		logits, scores := make([]float32, len(items)*n), make([]float32, len(items))
		if err := t.Predict(ctx, logits, scores, items); err != nil {
			return loss, err
		}
		for i := range items {
			t.of.overlap += segment.IoU(logits[i*n:][:n], items[i].Target)
			t.of.asked++
		}
	}
	return t.Model.Evaluate(ctx, items)
}
