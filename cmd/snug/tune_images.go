package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// imageFlags are the flags for data with images.
type imageFlags struct {
	imageDir    string // where relative paths begin
	featureDir  string // what the tower computes is kept here
	featureBits int    // 0: in the type of -compute
	trains      []string
	pixels      int // the most of an image, 0: as the model's files say
	frames      int // the most of a video, 0: as the model's files say
	validation  string
	jitter      int
}

// maxPixelsFlag is the flag of the most pixels of an image.
func maxPixelsFlag(to *int) *flagRow {
	return countFlag("max-pixels", "N", to, 0, 1, vision.DefaultPixels, "most pixels of an image, for models that take images of any size (Qwen's): larger ones are made smaller; default: as the model's files say")
}

// maxFramesFlag is the flag of the most frames of a video.
func maxFramesFlag(to *int) *flagRow {
	return countFlag("max-frames", "N", to, 0, 1, 1<<18, "most frames of a video, for Qwen2-VL, Qwen2.5-VL and Qwen3-VL: of more, evenly spaced ones are taken; default: max_frames of the model's files, without that 768")
}

// checkFrames returns an error if the most frames of a video are given for a model without videos.
func checkFrames(in *vision.Input, frames int) error {
	if frames == 0 || in.Processor.Videos() {
		return nil
	}
	_, err := in.Processor.Sample(1, 0, vision.Sampling{})
	return fmt.Errorf("-max-frames: %w", err)
}

// openInput says how the model of a folder sees images, which have at most some pixels, 0 for as many as its files say.
func openInput(dir string, pixels int) (*vision.Input, error) {
	in, err := vision.OpenInput(dir)
	if err != nil || pixels == 0 {
		return in, err
	}
	return in.MaxPixels(pixels)
}

// The parts of a model that sees images which -train may name.
const textPart, projectorPart, towerPart = "text", "projector", "tower"

// headPart is what -train may name of a model that tells classes of images apart.
const headPart = "head"

// rows are the rows of the table of flags.
func (f *imageFlags) rows() flagTable {
	parts := []string{textPart, projectorPart, towerPart, headPart}
	return flagTable{
		fileFlag("images", "DIR", &f.imageDir, "folder in which relative paths of images and videos begin; default: that of the data file. This flag and the next five change nothing where no data has images or videos"),
		maxPixelsFlag(&f.pixels),
		maxFramesFlag(&f.frames),
		listFlag("train", &f.trains, parts, func(part string) (string, error) {
			if !slices.Contains(parts, part) {
				return "", fmt.Errorf("want text, text,projector or text,projector,tower; or head")
			}
			return part, nil
		}, "parts that train in a model that sees images: text; text,projector (default); or with -full text,projector,tower, where the tower, the encoder of images, "+
			"stays in memory and has no features to keep. head: of a model that tells classes of images apart, the head alone"),
		fileFlag("features", "DIR", &f.featureDir, "folder for the features of the images, which other runs with the same model and images read; default: in the folder DIR.pages, with the DIR of -o, "+
			"which is removed at the end. The encoder computes features before the first step, and is then freed. Further ranks use DIR-1, DIR-2, ..., and each computes all features"),
		countFlag("features-bits", "N", &f.featureBits, 0, 8, 16, "bits of a stored feature: 8, with a scale for each 256 of them, or 16 (bf16 if -compute is f32); default: the type of -compute"),
		fileFlag("val", "PATH", &f.validation, "with classes of images: images for the loss and the accuracy on held-out samples, in the forms of -data; default: the part for validation of -data, or else "+
			"the share of -held-out, which is 0.1 for images"),
		countFlag("box-jitter", "N", &f.jitter, 0, 0, 1<<16, "with masks: move each side of a box by up to N pixels of the photo in each step, at random by -seed; default 0"),
	}
}

// check sets what trains by default, and says what is wrong with the flags, "" if nothing is.
func (f *imageFlags) check(full bool) string {
	if f.trains == nil {
		f.trains = []string{textPart, projectorPart}
	}
	switch {
	case slices.Contains(f.trains, headPart):
		return "-train head is for a model that tells classes of images apart"
	case !slices.Contains(f.trains, textPart):
		return "-train: want text among what trains"
	case f.trainsTower() && !full:
		return "-train tower wants -full, because PEFT's adapters do not have the tower"
	case f.trainsTower() && (f.featureDir != "" || f.featureBits != 0):
		return "-features and -features-bits are of a tower that is frozen, and -train names it"
	case f.featureBits != 0 && f.featureBits != 8 && f.featureBits != 16:
		return "-features-bits: want 8 or 16"
	}
	return ""
}

// imageRun is a run on images: what the frozen tower computes of them is read from a cache, and the model has no tower.
type imageRun struct {
	model    *vision.Model
	cache    *vision.Cache
	features *offload.Store
}

// seesImages reports whether samples of the data have images.
func (m *material) seesImages() bool { return m != nil && m.data != nil && m.data.Images() > 0 }

// openInput sets how the data reads images, if the model sees them. A line says why not where a model of images and text is not known here.
func (m *material) openInput(f *tuneFlags) error {
	if m.config.Whole == "" || f.beta > 0 || f.teacher.dir != "" {
		return nil
	}
	in, err := openInput(f.dir, f.pixels)
	if err != nil && f.pixels > 0 {
		return usagef("tune: -max-pixels: %w", err)
	}
	if m.imageErr = err; err == nil {
		if err := checkFrames(in, f.frames); err != nil {
			return usagef("tune: %w", err)
		}
		m.dataOptions.Images, m.dataOptions.ImageFolder, m.dataOptions.MaxFrames = in, f.imageDir, f.frames
	}
	return nil
}

// input is how the model sees images.
func (m *material) input() *vision.Input { return m.dataOptions.Images }

// trainsProjector reports whether the projector trains.
func (f *imageFlags) trainsProjector() bool { return slices.Contains(f.trains, projectorPart) }

// trainsTower reports whether the tower of images trains.
func (f *imageFlags) trainsTower() bool { return slices.Contains(f.trains, towerPart) }

// imageCosts returns what the images of the data take beside the text, nil without any.
func (t *tuning) imageCosts() (c *imageCosts, err error) {
	if !t.seesImages() {
		return nil, nil
	}
	c = &imageCosts{in: t.input(), cache: t.cacheOptions(), dtype: t.dtype, trains: t.trainsProjector(), full: t.full}
	for _, rows := range t.data.ImagesEach() {
		c.each = append(c.each, rows)
	}
	slices.SortFunc(c.each, func(a, b int) int { return b - a })
	total := int64(0)
	for i := range t.data.Images() {
		size, err := c.in.FeatureBytes(t.data.Layout(i), c.cache)
		if err != nil {
			return nil, err
		}
		c.largest, total = max(c.largest, size), total+size
	}
	c.pages = featureLimit(c.largest, total, t.memory)
	if !t.trainsTower() {
		return c, nil
	}
	c.pages, c.largest, c.tower = 0, 0, true
	return c, nil
}

// chooseWithImages finds the plan that leaves memory for what images take.
func (t *tuning) chooseWithImages() error {
	c, err := t.imageCosts()
	if err != nil {
		return err
	}
	if c == nil {
		return t.choose()
	}
	base := t.process.Base
	defer func() { t.process.Base = base }()
	_, t.images, err = fitImages(c.bytes, t.share(), func(extra int64) (plan.Plan, error) {
		t.process.Base, t.images = base+extra, extra
		err := t.choose()
		return t.plan, err
	})
	return err
}

// reportImages says what images the run has.
func (t *tuning) reportImages() error {
	if !t.seesImages() {
		return nil
	}
	list, bytes, err := t.neededImages()
	if err != nil {
		return err
	}
	if t.trainsTower() {
		fmt.Fprintf(t.call.stdout, "\nimages: %s in this run; beside the plan above: activations of the tower and the projector, %s\n", t.howMany(list), meter.FormatBytesUp(t.images))
		return nil
	}
	for _, i := range list {
		n, err := t.input().EncoderBytes(t.dir, t.data.Layout(i), t.dtype)
		if err != nil {
			return err
		}
		t.encoding = max(t.encoding, n+t.data.DecodeBytes(i))
	}
	fmt.Fprintf(t.call.stdout, "\nimages: %s in this run, whose features take %s in %s; those that are missing there are computed first, with about %s of memory\n",
		t.howMany(list), meter.FormatBytesUp(bytes), escaped(t.featuresDir()), meter.FormatBytes(t.encoding))
	fmt.Fprintf(t.call.stdout, "        beside the plan above: weights and activations of the projector, and the cache of features, at most %s\n", meter.FormatBytesUp(t.images))
	if limit := t.processLimit(); limit > 0 && !t.onDevice() && t.process.Base+t.encoding > limit {
		return usagef("tune: -memory %s: the largest image and the encoder take about %s, beside %s of the process", meter.FormatBytes(limit), meter.FormatBytesUp(t.encoding), meter.FormatBytes(t.process.Base))
	}
	return nil
}

// howMany says how many images and videos there are.
func (t *tuning) howMany(list []int) string {
	videos := 0
	for _, i := range list {
		if t.data.Layout(i).Frames > 0 {
			videos++
		}
	}
	switch images := console.Count(len(list)-videos, "image"); videos {
	case 0:
		return images
	case len(list):
		return console.Count(videos, "video")
	default:
		return images + " and " + console.Count(videos, "video")
	}
}

// openImageModel opens the model, without its tower unless that trains.
func (t *tuning) openImageModel(o transformer.Options) (err error) {
	options := vision.ModelOptions{Text: o, NoEncoder: true, Train: func(string) bool { return t.trainsProjector() }}
	if t.trainsTower() {
		options.NoEncoder, options.TrainEncoder = false, func(string) bool { return true }
	}
	t.imageRun.model, err = vision.OpenModel(t.dir, options)
	if err == nil {
		t.model = t.imageRun.model.Text
	}
	return err
}

// closeImages closes the model and the store of features.
func (t *tuning) closeImages() error {
	var err error
	if t.imageRun.model != nil {
		err = t.imageRun.model.Close()
		t.model = nil
	}
	return errors.Join(err, t.features.Close())
}

// imageModel is a model of images and text that learns to predict the labels.
type imageModel struct {
	*vision.Model
	data  *dataset.Set
	cache *vision.Cache // nil if the tower trains
	dir   string        // of the features
}

// batch returns a batch with the features of its images, or with their pixels.
func (v imageModel) batch(b dataset.Batch) (out vision.Batch, err error) {
	if out.Text = b.Batch; v.cache != nil {
		out.Features = []vision.Features{}
	}
	for _, images := range b.Images {
		for _, i := range images {
			if v.cache == nil {
				x, err := v.data.Pixels(i)
				if err != nil {
					return out, err
				}
				out.Images = append(out.Images, x)
				continue
			}
			f, err := v.cache.Get(v.data.ImageSum(i), v.data.Layout(i))
			if errors.Is(err, snug.ErrCorrupt) {
				err = fmt.Errorf("%w: remove the folder %s, and they are computed again", err, v.dir)
			}
			if err != nil {
				return out, err
			}
			out.Features = append(out.Features, f)
		}
	}
	return out, nil
}

func (v imageModel) Weight(b dataset.Batch) float64 { return b.Weight() }

func (v imageModel) Backprop(ctx context.Context, b dataset.Batch, scale float32, w train.Window) (loss fused.Loss, err error) {
	seen, err := v.batch(b)
	if err != nil {
		return loss, err
	}
	return v.Model.Backprop(ctx, seen, scale, w)
}

func (v imageModel) Evaluate(ctx context.Context, b dataset.Batch) (loss fused.Loss, err error) {
	seen, err := v.batch(b)
	if err != nil {
		return loss, err
	}
	return v.Model.Evaluate(ctx, seen)
}
