package vision

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"iter"
	"os"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// Clip is where the frames of a video are: images in files, each a frame, or an animated file. It holds names, and reads frames when they are
// wanted. It does not change, and serves any number of goroutines.
type Clip struct {
	names         []string
	animated      *animationFormat // of the one file, nil for images
	total         int
	width, height int
	fps           float64
	o             DecodeOptions
}

// OpenClip returns the clip of a folder of images, whose names in the order of bytes are their order, as [Frames] reads it, or of an animated GIF; another image
// is a clip of one frame. It reads an animated file, or the header of the first image. Animated PNG and WebP are refused. Other videos, such as MP4, are not decoded here: the
// error says how ffmpeg makes frames of them.
//
// Errors wrap [snug.ErrConfig] for options, a folder without images and a video that is no image, and otherwise are those of [Decode] and of the operating system.
func OpenClip(path string, o DecodeOptions) (c *Clip, err error) {
	defer fault.Named(&err, "vision: OpenClip")
	if path == "" {
		return nil, fmt.Errorf("no path of a clip: %w", snug.ErrConfig)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	names := []string{path}
	if info.IsDir() {
		if names, err = imagesIn(path); err != nil {
			return nil, err
		}
	}
	return openClip(names, o)
}

// ClipOf returns the clip of the frames in files of images, in their order. Errors are those of [OpenClip].
func ClipOf(names []string, o DecodeOptions) (c *Clip, err error) {
	defer fault.Named(&err, "vision: ClipOf")
	return openClip(slices.Clone(names), o)
}

func openClip(names []string, o DecodeOptions) (*Clip, error) {
	o, err := o.complete()
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0 || len(names) > maxFrames:
		return nil, fmt.Errorf("%d frames, want from 1 to %d: %w", len(names), maxFrames, snug.ErrConfig)
	}
	c := &Clip{names: names, total: len(names), o: o}
	file, err := fileOf(names[0], o)
	if err != nil {
		return nil, err
	}
	if _, err := formatOf(file); err != nil {
		return nil, fmt.Errorf("%s is no image, and videos are not decoded here, want a folder of frames, as: ffmpeg -i %q -vf fps=2 frames/%%04d.png: %w", names[0], names[0], snug.ErrConfig)
	}
	if c.width, c.height, err = DecodeSize(file, o); err != nil {
		return nil, fmt.Errorf("%s: %w", names[0], err)
	}
	if animatedPNG(file) || animatedWebP(file) {
		return nil, fmt.Errorf("%s: an animated PNG or WebP, want a folder of its frames, or a GIF: %w", names[0], snug.ErrConfig)
	}
	if a := animationOf(file); a != nil && len(names) == 1 {
		m, err := a.scan(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", names[0], damaged(a.name, err))
		}
		if n := m.count(); n > 1 {
			c.animated, c.total, c.fps = a, n, float64(n)/m.seconds()
		}
	}
	return c, nil
}

// Len returns the number of frames.
func (c *Clip) Len() int {
	if c == nil {
		return 0
	}
	return c.total
}

// FPS returns how many frames an animated file shows in a second, on average, and 0 for images, which do not say.
func (c *Clip) FPS() float64 {
	if c == nil {
		return 0
	}
	return c.fps
}

// Size returns the pixels of a row and of a column of the first frame.
func (c *Clip) Size() (width, height int) {
	if c == nil {
		return 0, 0
	}
	return c.width, c.height
}

// framesPerSecond is the rate of images whose rate is not given, that of qwen-vl-utils.
const framesPerSecond = 2

// SampleClip chooses at most some frames of a clip by [Processor.Sample], 0 for as many as the model's files say. rate is how many frames of a second
// images in files have, 0 for 2, which are not sampled by the second, and how many of an animated file are taken, 0 for as many as the model's files say.
// Errors are those of Sample.
func (p *Processor) SampleClip(c *Clip, rate float64, most int) (Timing, error) {
	if c == nil || c.total == 0 {
		return Timing{}, fmt.Errorf("vision: SampleClip: %w", c.check(nil))
	}
	o := Sampling{Max: most}
	if c.fps > 0 {
		o.FPS = rate
		return p.Sample(c.total, c.fps, o)
	}
	t, err := p.Sample(c.total, 0, o)
	if err == nil {
		t.FPS = cmp.Or(rate, framesPerSecond)
		_, _, err = t.complete()
	}
	if err != nil {
		return t, fmt.Errorf("vision: SampleClip: %w", err)
	}
	return t, nil
}

// check returns an error if frames are not of the clip.
func (c *Clip) check(frames []int) error {
	if c == nil || c.total == 0 {
		return fmt.Errorf("a Clip that OpenClip did not make: %w", snug.ErrConfig)
	}
	for i, f := range frames {
		if f < 0 || f >= c.total || i > 0 && f < frames[i-1] {
			return fmt.Errorf("frame %d is number %d, want numbers that do not fall, below %d: %w", i, f, c.total, snug.ErrShape)
		}
	}
	return nil
}

// Sum returns the SHA-256 of what chosen frames are decoded from, and of their numbers, for a [Cache]. It reads the files, and checks that
// images have the size of the first; the error then wraps [snug.ErrShape].
func (c *Clip) Sum(frames []int) (sum [sha256.Size]byte, err error) {
	defer fault.Named(&err, "vision: Clip.Sum")
	if err := c.check(frames); err != nil {
		return sum, err
	}
	h := sha256.New()
	for file, err := range c.files(frames, h) {
		if err != nil {
			return sum, err
		}
		if width, height, err := DecodeSize(file.data, c.o); err != nil {
			return sum, fmt.Errorf("%s: %w", file.name, err)
		} else if width != c.width || height != c.height {
			return sum, fmt.Errorf("%s has %d x %d pixels, and the first frame %d x %d: want frames of one size: %w", file.name, width, height, c.width, c.height, snug.ErrShape)
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}

// clipFile is a file of a clip.
type clipFile struct {
	name string
	data []byte
}

// files yields the files of chosen frames, and hashes them: each image, or the one animated file.
func (c *Clip) files(frames []int, h hash.Hash) iter.Seq2[clipFile, error] {
	return func(yield func(clipFile, error) bool) {
		for i, f := range frames {
			if h.Write(binary.LittleEndian.AppendUint32(nil, uint32(f))); c.animated != nil && i > 0 {
				continue
			}
			name := c.names[0]
			if c.animated == nil {
				name = c.names[f]
			}
			data, err := fileOf(name, c.o)
			if err != nil {
				yield(clipFile{}, err)
				return
			}
			sum := sha256.Sum256(data)
			h.Write(sum[:])
			if !yield(clipFile{name, data}, nil) {
				return
			}
		}
	}
}

// images yields chosen frames, and hashes what they are decoded from.
func (c *Clip) images(frames []int, h hash.Hash) iter.Seq2[*Image, error] {
	return func(yield func(*Image, error) bool) {
		for file, err := range c.files(frames, h) {
			switch {
			case err != nil:
			case c.animated != nil:
				var m movie
				if m, err = c.animated.scan(file.data); err != nil {
					err = damaged(c.animated.name, err)
					break
				}
				for p, err := range c.animated.draw(m, frames, c.o) {
					if err != nil {
						err = fmt.Errorf("%s: %w", file.name, err)
					}
					if !yield(p, err) || err != nil {
						return
					}
				}
				continue
			default:
				var m *Image
				if m, err = decodeFile(file.data, c.o); err == nil {
					if !yield(m, nil) {
						return
					}
					continue
				}
			}
			yield(nil, fmt.Errorf("%s: %w", file.name, err))
			return
		}
	}
}

// ProcessClip is [Processor.ProcessVideo] of the frames of a clip that t names, which it reads one after the other, and [Clip.Sum] of them. It
// holds Layout.Bytes, and what [Decode] holds of one frame. A t without Total and Frames has all frames.
func (p *Processor) ProcessClip(c *Clip, t Timing) (x Pixels, sum [sha256.Size]byte, err error) {
	if c == nil || c.total == 0 {
		return x, sum, fmt.Errorf("vision: ProcessClip: %w", c.check(nil))
	}
	if t.Frames == nil && t.Total == 0 {
		t.Total = c.total
	}
	whole, _, err := t.complete()
	if err == nil {
		t.Frames, t.Total = whole.Frames, whole.Total
		err = c.check(t.Frames)
	}
	if err != nil {
		return x, sum, fmt.Errorf("vision: ProcessClip: %w", err)
	}
	h := sha256.New()
	if x, err = p.processVideo(size{c.height, c.width}, t, c.images(t.Frames, h)); err != nil {
		return x, sum, err
	}
	h.Sum(sum[:0])
	return x, sum, nil
}
