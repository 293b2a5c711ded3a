package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/vision"
)

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

// aboutFeatures tells what features depend on beside the image: the model's weights, the type and the device of the encoder, and the files of the
// processor.
func (t *tuning) aboutFeatures() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s %s\n", t.modelSums.config, t.modelSums.weights, t.dtype, t.dev.Name())
	if err := writeProcessor(h, t.dir); err != nil {
		return sum, err
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
		fmt.Fprintf(t.call.stdout, "\nimages: %s in %.1f s\n", t.howMany(list), time.Since(began).Seconds())
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
