package dataset

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
	"os"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/vision"
)

// Images returns the number of images and videos of all samples. Their numbers are 0 to Images-1.
func (s *Set) Images() int { return len(s.pictures) }

// Layout returns the layout of an image, whose number is one of a [Batch].
func (s *Set) Layout(image int) vision.Layout { return s.pictures[image].layout }

// Pixels reads and processes an image or a video, whose number is one of a [Batch]. It takes the file, its pixels, or those of a frame, and what
// [vision.Layout].Bytes says. The error wraps [snug.ErrCorrupt] for a file that is damaged, or has changed since [Open].
func (s *Set) Pixels(image int) (vision.Pixels, error) {
	p := &s.pictures[image]
	if p.video != nil {
		x, err := s.videoPixels(p)
		if err != nil {
			return x, fmt.Errorf("dataset: video %d: %w", image, err)
		}
		return x, nil
	}
	data, err := s.file(p)
	var m *vision.Image
	if err == nil {
		m, err = vision.Decode(bytes.NewReader(data), s.decoding(p))
	}
	var x vision.Pixels
	if err == nil {
		x, err = s.options.Images.Processor.Process(m)
	}
	if err != nil && p.path != "" && !strings.Contains(err.Error(), p.path) {
		err = fmt.Errorf("%s: %w", p.path, err)
	}
	if err != nil {
		return x, fmt.Errorf("dataset: image %d: %w", image, err)
	}
	return x, nil
}

// file returns the file of an image.
func (s *Set) file(p *picture) ([]byte, error) {
	if p.path == "" {
		data := make([]byte, p.size)
		return data, s.blobs.readAt(data, p.at, "images")
	}
	data, err := s.readImage(p.path)
	if err == nil && sha256.Sum256(data) != p.sum {
		err = fmt.Errorf("the file has changed since the data was read: %w", snug.ErrCorrupt)
	}
	return data, err
}

// ImagesEach yields for every sample, in the order of the files, its number and how many tokens of the text its images have.
func (s *Set) ImagesEach() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for n := range s.list.n {
			x, rows := s.list.get(n), 0
			for i := x.images[0]; i < x.images[1]; i++ {
				rows += s.pictures[i].rows
			}
			if !yield(n, rows) {
				return
			}
		}
	}
}

// ImageSum tells what [Set.Pixels] decodes: the SHA-256 of an image's file, and of how it is decoded, or that of a video's frames.
func (s *Set) ImageSum(image int) [sha256.Size]byte {
	p := &s.pictures[image]
	if p.white {
		return sha256.Sum256(append(p.sum[:len(p.sum):len(p.sum)], "on white"...))
	}
	return p.sum
}

// DecodeBytes returns about how much memory [Set.Pixels] takes for an image beside what [vision.Layout].Bytes says: the file, and its pixels as the
// decoder has them and in RGB.
func (s *Set) DecodeBytes(image int) int64 {
	p := &s.pictures[image]
	return int64(p.size) + pixelBytes*int64(p.layout.OriginalWidth)*int64(p.layout.OriginalHeight)
}

// pixelBytes is about the most that a pixel takes while a file is decoded.
const pixelBytes = 11

// decoding returns the limits of an image, which with Options.Memory has no more pixels than fit in it.
func (s *Set) decoding(p *picture) vision.DecodeOptions {
	o := vision.DecodeOptions{OnWhite: p.white}
	if s.options.Memory > 0 {
		o.Pixels = int(min(vision.DefaultPixels, max(s.options.Memory, leastMemory)/pixelBytes))
	}
	return o
}

// readImage reads the file of an image. A file larger than Options.Memory is an error.
func (s *Set) readImage(path string) ([]byte, error) {
	most := max(s.options.Memory, leastMemory)
	if info, err := os.Stat(path); err == nil && s.options.Memory > 0 && info.Size() > most {
		return nil, fmt.Errorf("%s: the file has %d bytes, and %d may be read: %w", path, info.Size(), most, snug.ErrNoMemory)
	}
	return files.ReadInput(path, files.Image)
}

// ImagesOf returns, in rising order, the numbers of the images of the samples that steps first to last-1 train on, if each step takes so many samples
// (see [Set.Batch]), and of the samples that are held out.
func (s *Set) ImagesOf(first, last, samples int) (list []int) {
	needed := make([]bool, len(s.pictures))
	need := func(x sample) {
		for i := x.images[0]; i < x.images[1]; i++ {
			needed[i] = true
		}
	}
	n, begun := int64(s.training()), s.epoch
	for i := range min(int64(last-first)*int64(samples), 2*n) { // 2·n in a row contain a whole epoch
		need(s.sample(s.number(int64(first)*int64(samples) + i)))
	}
	if begun >= 0 {
		s.enter(begun)
	}
	for k := range s.held {
		need(s.sample(int(n) + k))
	}
	for i, is := range needed {
		if is {
			list = append(list, i)
		}
	}
	return list
}
