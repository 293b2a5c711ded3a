package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/vision"
)

// imageCosts are what images of samples take in training beside the text.
type imageCosts struct {
	in      *vision.Input
	rows    int // of the images of a sample, in the text
	cache   vision.CacheOptions
	dtype   snug.DType
	trains  bool  // the projector trains
	full    bool  // with all of the text, not beside adapters
	largest int64 // bytes of the largest page of features
	pages   int64 // bytes of pages of features in memory
	tower   bool  // the tower trains too, of which there are no features
	each    []int // rows of the images of samples, most first, whose sums are of micro-batches; nil: rows each
}

// bytes returns what images take for micro-batches of at most some samples: the projector unless all of it is in the plan, its activations, and pages
// of features, or the activations of a tower that trains. What trains is in the plan: see beside and whole.
func (c *imageCosts) bytes(micro int) int64 {
	n := int64(0)
	if !c.full || !c.trains {
		for _, shape := range c.in.Projector() {
			n += elements(shape) * int64(c.dtype.Size())
		}
	}
	rows := c.most(micro)
	if c.tower {
		n = saturate.Add(n, c.in.EncoderTraining(rows, c.dtype))
	}
	return saturate.Add(n, saturate.Add(c.in.ProjectorBytes(rows, c.dtype), c.pages+int64(micro)*c.largest))
}

// elements returns how many elements a parameter has.
func elements(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return n
}

// most returns the most rows that the images of a micro-batch have.
func (c *imageCosts) most(micro int) (rows int) {
	if c.each == nil {
		return c.rows * micro
	}
	for _, n := range c.each[:min(micro, len(c.each))] {
		rows += n
	}
	return rows
}

// beside returns the shapes of the projector's parameters that train beside adapters. They have a dimension more, as tables have that are no
// matrices of the text.
func (c *imageCosts) beside() (shapes [][]int) {
	if !c.trains || c.full {
		return nil
	}
	for _, shape := range c.in.Projector() {
		shapes = append(shapes, append([]int{1}, shape...))
	}
	return shapes
}

// whole adds to the model of the text what trains with all of its weights: the projector and the tower.
func (c *imageCosts) whole(m *plan.Model) {
	if !c.full {
		return
	}
	m.Params = slices.Clone(m.Params)
	if c.trains {
		for _, shape := range c.in.Projector() {
			m.Params = append(m.Params, shape)
		}
	}
	if c.tower {
		for _, shape := range c.in.Encoder() {
			m.Params = append(m.Params, shape)
		}
	}
}

// fitImages finds the plan that leaves memory for what images take, bytes for micro-batches of some samples. fit finds a plan beside some bytes.
func fitImages(bytes func(micro int) int64, samples int, fit func(extra int64) (plan.Plan, error)) (p plan.Plan, extra int64, err error) {
	for micro := samples; ; micro = max(1, micro/2) {
		extra = bytes(micro)
		if p, err = fit(extra); err == nil && p.Run.Micro >= micro/2 || micro == 1 {
			return p, extra, err
		}
	}
}

// planImages writes a line for each size of an image in a sample: its tokens beside the context of text, the plan with which the model trains, and what
// the encoder takes before.
func (f *planFlags) planImages(w io.Writer, t plan.Task, operands []string) error {
	if len(f.images) == 0 {
		return nil
	}
	folder := strings.Join(operands, "")
	in, err := openInput(folder, f.most)
	if err != nil {
		return usageError{err}
	}
	what := "image"
	if f.frames > 0 {
		what = "video of " + console.Count(f.frames, "frame")
	}
	fmt.Fprintf(w, "\nwith one %s in each sample, beside %d tokens of text:\n", what, t.Model.Context)
	for _, side := range f.images {
		text, err := f.planImage(in, t, folder, side)
		if err != nil {
			return usageError{err}
		}
		if _, err := fmt.Fprintf(w, "  %4d px: %s\n", side, text); err != nil {
			return err
		}
	}
	return nil
}

// planImage describes the plan for images of one size.
func (f *planFlags) planImage(in *vision.Input, t plan.Task, folder string, side int) (string, error) {
	l, err := in.Processor.Layout(side, side)
	head := "%d tokens of an image"
	if f.frames > 0 {
		head = "%d tokens of a video"
		l, err = in.Processor.VideoLayout(side, side, vision.Timing{Total: f.frames})
	}
	if err != nil {
		return "", err
	}
	rows, err := in.Rows(l)
	if err != nil {
		return "", err
	}
	one := *f
	one.context = t.Model.Context + rows
	if t.Model, err = one.readFolder(folder); err != nil {
		return "", err
	}
	c := &imageCosts{in: in, rows: rows, trains: true, full: f.rank == 0, dtype: snug.BF16}
	if len(t.Compute) == 1 {
		c.dtype = t.Compute[0]
	}
	c.cache.DType = c.dtype
	if c.largest, err = in.FeatureBytes(l, c.cache); err != nil {
		return "", err
	}
	c.pages = featureLimit(c.largest, c.largest, f.memory)
	t.Beside = append(t.Beside, c.beside()...)
	c.whole(&t.Model)
	p, extra, err := fitImages(c.bytes, t.Batch, func(extra int64) (plan.Plan, error) {
		one := one
		if one.deviceMemory > 0 {
			one.deviceMemory = max(1, one.deviceMemory-extra)
		}
		one.extra = extra
		return one.fit(t, folder)
	})
	head = fmt.Sprintf(head, rows)
	var miss *plan.MissError
	if errors.As(err, &miss) {
		return head + ": nothing fits, at least " + meter.FormatBytesUp(miss.Minimum) + " is wanted", nil
	}
	if err != nil {
		return "", err
	}
	encoder := "" // known from the weights, which a folder need not have
	if n, err := in.EncoderBytes(folder, l, c.dtype); err == nil {
		encoder = "; encoder, before training: " + meter.FormatBytesUp(n)
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, snug.ErrConfig) {
		return "", err
	}
	r := p.Run
	frozen := ""
	if f.rank > 0 {
		frozen = fmt.Sprintf(", frozen weights in %d bits", cmp.Or(r.Frozen, 16))
	}
	what := fmt.Sprintf("%s on the device", meter.FormatBytesUp(p.Peak[meter.OnDevice].Total()+extra))
	if f.memory > 0 {
		n, err := p.Task.Resident(r)
		if err != nil {
			return "", err
		}
		what = fmt.Sprintf("%s of resident memory", meter.FormatBytesUp(n))
	}
	return fmt.Sprintf("%s; %s; micro-batch %d%s, rematerialization %s%s", head, what, r.Micro, frozen, cmp.Or(r.Remat.Name, "keep all"), encoder), nil
}
