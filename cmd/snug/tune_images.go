package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/layers"
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
}

// maxPixelsFlag is the flag of the most pixels of an image.
func maxPixelsFlag(to *int) *flagRow {
	return countFlag("max-pixels", "N", to, 0, 1, vision.DefaultPixels, "most pixels of an image, for models that take images of any size (Qwen's): larger ones are made smaller; default: as the model's files say")
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

// rows are the rows of the table of flags.
func (f *imageFlags) rows() flagTable {
	parts := []string{textPart, projectorPart, towerPart}
	return flagTable{
		fileFlag("images", "DIR", &f.imageDir, "folder in which relative paths of images begin; default: that of the data file. This flag and the next four change nothing where no data has images"),
		maxPixelsFlag(&f.pixels),
		listFlag("train", &f.trains, parts, func(part string) (string, error) {
			if !slices.Contains(parts, part) {
				return "", fmt.Errorf("want text, text,projector or text,projector,tower")
			}
			return part, nil
		}, "parts that train in a model that sees images: text; text,projector (default); or with -full text,projector,tower in LLaVA 1.5, Gemma 3 and PaliGemma, whose tower, the encoder of images, then "+
			"stays in memory and has no features to keep"),
		fileFlag("features", "DIR", &f.featureDir, "folder for the features of the images, which other runs with the same model and images read; default: in the folder DIR.pages, with the DIR of -o, "+
			"which is removed at the end. The encoder computes features before the first step, and is then freed. Further ranks use DIR-1, DIR-2, ..., and each computes all features"),
		countFlag("features-bits", "N", &f.featureBits, 0, 8, 16, "bits of a stored feature: 8, with a scale for each 256 of them, or 16 (bf16 if -compute is f32); default: the type of -compute"),
	}
}

// check sets what trains by default, and says what is wrong with the flags, "" if nothing is.
func (f *imageFlags) check(full bool) string {
	if f.trains == nil {
		f.trains = []string{textPart, projectorPart}
	}
	switch {
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
		m.dataOptions.Images, m.dataOptions.ImageFolder = in, f.imageDir
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
		c.rows = max(c.rows, rows)
	}
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
	c.pages, c.largest = 0, 0
	each, err := c.in.Rows(t.data.Layout(0)) // of every image, in models whose tower trains
	if err != nil {
		return nil, err
	}
	c.images = (c.rows + each - 1) / max(1, each)
	if c.tower, err = c.in.EncoderTraining(t.dir, t.dtype); err != nil {
		return nil, err
	}
	return c, nil
}

// featureBytes returns the bytes of the page of an image.
func (t *tuning) featureBytes(l vision.Layout) (int64, error) {
	return t.input().FeatureBytes(l, t.cacheOptions())
}

// cacheOptions returns the form of features: that of -compute, unless -features-bits names fewer bits.
func (t *tuning) cacheOptions() vision.CacheOptions {
	switch {
	case t.featureBits == 8:
		return vision.CacheOptions{Bits: 8}
	case t.featureBits == 16 && t.dtype == snug.F32:
		return vision.CacheOptions{DType: snug.BF16}
	}
	return vision.CacheOptions{DType: t.dtype}
}

// featureLimit returns the host memory of the store of features: most is the largest page, total all pages, and memory the limit of the process, 0
// for none.
func featureLimit(most, total, memory int64) int64 {
	const least, ample = 4 << 20, 64 << 20
	limit := min(ample, total)
	if memory > 0 {
		limit = min(limit, memory/32)
	}
	return max(limit, least, 2*(most+4096))
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
	_, t.images, err = fitImages(c, t.share(), func(extra int64) (plan.Plan, error) {
		t.process.Base, t.images = base+extra, extra
		err := t.choose()
		return t.plan, err
	})
	return err
}

// featuresDir returns the folder of the store of features.
func (t *tuning) featuresDir() string {
	if t.featureDir == "" {
		return filepath.Join(t.pagesDir(), "snug.features")
	}
	if t.follows() {
		return fmt.Sprintf("%s-%d", t.featureDir, t.ranks.Rank())
	}
	return t.featureDir
}

// neededImages returns the numbers of the images that this run reads, one of each file, and the bytes of their features.
func (t *tuning) neededImages() (list []int, bytes int64, err error) {
	first := 0
	if t.folder != nil {
		first, _, _ = t.folder.Newest()
	}
	seen := map[[sha256.Size]byte]bool{}
	for _, i := range t.data.ImagesOf(first, t.stepCount(), t.batch) {
		sum := t.data.ImageSum(i)
		if seen[sum] {
			continue
		}
		seen[sum] = true
		list = append(list, i)
		n, err := t.featureBytes(t.data.Layout(i))
		if err != nil {
			return nil, 0, err
		}
		bytes += n
	}
	return list, bytes, nil
}

// featureRoom returns what the features of images will take.
func (t *tuning) featureRoom() []room {
	dir := t.featuresDir()
	if !t.seesImages() || t.trainsTower() || holdsFile(dir, storeIndex) { // which may have them
		return nil
	}
	_, bytes, err := t.neededImages()
	if err != nil {
		return nil // reportImages has said it
	}
	return []room{{"what the tower computes of images", dir, bytes}}
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
		fmt.Fprintf(t.call.stdout, "\nimages: %s in this run; beside the plan above: the tower, the projector and their activations, %s\n", console.Count(len(list), "image"), meter.FormatBytesUp(t.images))
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
		console.Count(len(list), "image"), meter.FormatBytesUp(bytes), escaped(t.featuresDir()), meter.FormatBytes(t.encoding))
	fmt.Fprintf(t.call.stdout, "        beside the plan above: weights and activations of the projector, and the cache of features, at most %s\n", meter.FormatBytesUp(t.images))
	if limit := t.processLimit(); limit > 0 && !t.onDevice() && t.process.Base+t.encoding > limit {
		return usagef("tune: -memory %s: the largest image and the encoder take about %s, beside %s of the process", meter.FormatBytes(limit), meter.FormatBytesUp(t.encoding), meter.FormatBytes(t.process.Base))
	}
	return nil
}

// aboutFeatures tells what features depend on beside the image: the model's weights, the type and the device of the encoder, and the files of the
// processor.
func (t *tuning) aboutFeatures() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s %s\n", t.modelSums.config, t.modelSums.weights, t.dtype, t.dev.Name())
	for _, name := range []string{"preprocessor_config.json", "processor_config.json"} {
		text, err := files.ReadInput(filepath.Join(t.dir, name), files.Description)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return sum, err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// openFeatures opens the cache and computes what it lacks with the tower, which is then no longer in memory. clean removes it unless -features
// keeps it.
func (t *tuning) openFeatures() (clean func() error, err error) {
	clean = nothing
	if t.trainsTower() {
		return clean, nil
	}
	list, total, err := t.neededImages()
	if err != nil {
		return clean, err
	}
	most := int64(0)
	for _, i := range list {
		n, err := t.featureBytes(t.data.Layout(i))
		if err != nil {
			return clean, err
		}
		most = max(most, n)
	}
	dir := t.featuresDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return clean, usagef("tune: %s is where the features of images go: %w", dir, err)
	}
	if t.features, err = offload.Open(dir, offload.Options{HostLimit: featureLimit(most, total, t.memory)}); err != nil {
		return clean, usagef("tune: %s is where the features of images go: %w", dir, err)
	}
	if t.featureDir == "" {
		clean = func() error { return removePages(t.pagesDir()) }
	}
	about, err := t.aboutFeatures()
	if err != nil {
		return clean, err
	}
	o := t.cacheOptions()
	o.About = about
	if t.cache, err = t.input().NewCache(t.features, o); err != nil {
		return clean, err
	}
	return clean, t.fillFeatures(list)
}

// fillFeatures computes the features of images that the cache lacks.
func (t *tuning) fillFeatures(list []int) (err error) {
	list = slices.DeleteFunc(list, func(i int) bool { return t.cache.Has(t.data.ImageSum(i), t.data.Layout(i)) })
	if len(list) == 0 {
		return nil
	}
	e, err := vision.OpenEncoder(t.dir, layers.Options{DType: t.dtype, Device: t.dev})
	if err != nil {
		return err
	}
	show := console.NewScreen(t.call.stderr)
	began := time.Now()
	err = t.cache.Fill(t.stop.Now, e, len(list), func(i int) ([sha256.Size]byte, vision.Layout, func() (vision.Pixels, error)) {
		n := list[i]
		return t.data.ImageSum(n), t.data.Layout(n), func() (vision.Pixels, error) { return t.data.Pixels(n) }
	}, func(i int) error {
		if show != nil {
			show.Show([]string{fmt.Sprintf("images: %d of %d, %.1f/s", i+1, len(list), float64(i+1)/time.Since(began).Seconds())})
		}
		if t.stop.Asked() {
			err := t.cache.Commit()
			return errors.Join(console.Interruption{Text: "interrupted before the first step: " + t.keptFeatures(), Status: t.stop.Status()}, err)
		}
		return nil
	})
	if show != nil {
		show.Clear()
	}
	if err == nil {
		fmt.Fprintf(t.call.stdout, "\nimages: %s in %.1f s\n", console.Count(len(list), "image"), time.Since(began).Seconds())
	}
	err = errors.Join(err, e.Close())
	runtime.GC() // the model takes the memory that the tower had
	debug.FreeOSMemory()
	return err
}

// keptFeatures says what is left of features when a run ends before its first step.
func (t *tuning) keptFeatures() string {
	if t.featureDir == "" {
		return "nothing is saved; -features keeps what the tower computes of images"
	}
	return "the same command goes on from what is in " + t.featureDir
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
