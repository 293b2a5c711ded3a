package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/snug-ml/snug"
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
	trains  bool                   // the projector trains
	full    bool                   // with all of the text, not beside adapters
	largest int64                  // bytes of the largest page of features
	pages   int64                  // bytes of pages of features in memory
	images  int                    // of a sample, whose tower trains
	tower   func(images int) int64 // bytes of a tower that trains, nil for one that does not
}

// bytes returns what images take for micro-batches of at most some samples: the projector, its activations, and pages of features. What trains in a
// projector beside adapters is in the plan.
func (c *imageCosts) bytes(micro int) int64 {
	elements := int64(0)
	for _, shape := range c.in.Projector() {
		size := int64(1)
		for _, d := range shape {
			size *= int64(d)
		}
		elements += size
	}
	n := elements * int64(c.dtype.Size())
	if c.full && c.trains {
		n += elements * (4 + 4 + 8) // gradient, master weight and state
	}
	if c.tower != nil {
		n += c.tower(micro * c.images)
	}
	return n + c.in.ProjectorBytes(c.rows*micro, c.dtype) + c.pages + int64(micro)*c.largest
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

// fitImages finds the plan that leaves memory for what images take, which depends on the micro-batch of the plan. fit finds a plan beside some bytes.
func fitImages(c *imageCosts, samples int, fit func(extra int64) (plan.Plan, error)) (p plan.Plan, extra int64, err error) {
	for micro := samples; ; micro = max(1, micro/2) {
		extra = c.bytes(micro)
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
	fmt.Fprintf(w, "\nwith one image in each sample, beside %d tokens of text:\n", t.Model.Context)
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
	p, extra, err := fitImages(c, t.Batch, func(extra int64) (plan.Plan, error) {
		one := one
		if one.deviceMemory > 0 {
			one.deviceMemory = max(1, one.deviceMemory-extra)
		}
		one.extra = extra
		return one.fit(t, folder)
	})
	head := fmt.Sprintf("%d tokens of an image", rows)
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
