package vision

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
)

// Timing says which frames of a clip a video has, and when they are shown: frame i of the clip at i/FPS seconds.
type Timing struct {
	// FPS is how many frames of the clip are shown in a second; 0 is 24, which transformers takes where it does not know.
	FPS float64
	// Total is how many frames the clip has; 0: as many as Frames needs.
	Total int
	// Frames are the numbers of the frames that the video has, in an order that does not fall; nil: all of the clip.
	Frames []int
}

// unknownFPS is what transformers takes for frames without metadata.
const unknownFPS = 24

// complete returns the timing with all that it leaves out, and the frames of the video in a second.
func (t Timing) complete() (_ Timing, sampled float64, err error) {
	if t.FPS != 0 && !(t.FPS >= 1e-3 && t.FPS <= 1e6) {
		return t, 0, fmt.Errorf("FPS is %v, want 0, or from 0.001 to 1e6 frames a second: %w", t.FPS, snug.ErrConfig)
	}
	if t.Total < 0 || t.Total > maxFrames || len(t.Frames) > maxFrames {
		return t, 0, fmt.Errorf("%d frames of a clip of %d, want at most %d: %w", len(t.Frames), t.Total, maxFrames, snug.ErrShape)
	}
	for i, f := range t.Frames {
		if f < 0 || f >= maxFrames || t.Total > 0 && f >= t.Total || i > 0 && f < t.Frames[i-1] {
			return t, 0, fmt.Errorf("frame %d of the video is number %d of the clip, want numbers that do not fall, below %d: %w", i, f, max(t.Total, 1), snug.ErrShape)
		}
	}
	switch n := len(t.Frames); {
	case n == 0 && t.Total == 0:
		return t, 0, fmt.Errorf("a video without frames: %w", snug.ErrShape)
	case n == 0:
		t.Frames = spread(t.Total, t.Total)
	case t.Total == 0:
		t.Total = t.Frames[n-1] + 1
	}
	if t.FPS == 0 {
		t.FPS = unknownFPS
		return t, unknownFPS, nil
	}
	return t, float64(float64(len(t.Frames))/float64(t.Total)) * t.FPS, nil
}

// Sampling says how many frames of a clip [Processor.Sample] takes.
type Sampling struct {
	// FPS is how many frames of a second are taken; 0: as the model's files say.
	FPS float64
	// Max is the most frames; 0: max_frames of the model's files, without that 768.
	Max int
}

// videoFamily is a video processor of transformers, in one file each.
type videoFamily struct {
	kind     string   // video_processor_type
	models   []string // model_type of config.json whose processor it is where no type is given
	defaults videoConfig
	read     func(c *videoConfig, f *videoFields) error // fields of its own; nil if there are none
	// rate returns the numbers of frames for so many a second of a clip whose FPS is known.
	rate func(c *videoConfig, total int, fps, take float64) ([]int, error)
	// even returns n numbers of more frames, evenly chosen.
	even func(total, n int) []int
	// size returns the size of the resized frames.
	size func(c *videoConfig, frames int, from size) (size, error)
}

// videoFamilies are all of them.
var videoFamilies = []*videoFamily{&qwen2Video, &qwen3Video}

// errNoVideo says why the processor has no videos.
func (p *Processor) errNoVideo() error {
	if p.noVideo != nil {
		return fmt.Errorf("vision: videos: %w", p.noVideo)
	}
	return fmt.Errorf("vision: %s has no videos here, want those of Qwen2-VL, Qwen2.5-VL or Qwen3-VL: give the frames as images: %w", p.kind, snug.ErrConfig)
}

// Videos reports whether the processor takes videos.
func (p *Processor) Videos() bool { return p.made() && p.video != nil }

// MaxFrames returns the most frames that Sample takes where Sampling says nothing, 0 for a processor without videos.
func (p *Processor) MaxFrames() int {
	if !p.Videos() {
		return 0
	}
	return p.video.maxFrames
}

// Sample chooses frames of a clip, as the video processors of transformers do by sample_frames: so many a second as o, or the model's files with
// do_sample_frames, want, and otherwise all; and where that is more than the most, evenly chosen ones, whose number is a multiple of
// temporal_patch_size. fps is that of the clip; a clip whose fps is 0, because it is not known, is not sampled by the second. The
// numbers of Qwen2-VL are floor(i total/n), which torch computes in float32: in clips of more than 10,000 frames it may choose a neighbour.
//
// Errors wrap [snug.ErrConfig] for a processor without videos and for options that are out of range, and [snug.ErrShape] for a clip without frames.
func (p *Processor) Sample(total int, fps float64, o Sampling) (Timing, error) {
	t := Timing{FPS: fps, Total: total}
	switch {
	case !p.made():
		return t, errNoProcessor
	case p.video == nil:
		return t, p.errNoVideo()
	case o.Max < 0 || o.Max > maxFrames || o.FPS != 0 && !(o.FPS >= 1e-3 && o.FPS <= 1e6):
		return t, fmt.Errorf("vision: Sample of %v frames a second, and at most %d: want from 0.001 to 1e6, or 0, and from 0 to %d: %w", o.FPS, o.Max, maxFrames, snug.ErrConfig)
	}
	t, _, err := t.complete()
	if err != nil {
		return t, fmt.Errorf("vision: Sample: %w", err)
	}
	t.FPS = fps
	c := p.video.videoConfig
	if o.Max > 0 {
		c.maxFrames, c.minFrames = o.Max, min(c.minFrames, o.Max)
	}
	take := o.FPS
	if take == 0 && c.sample && c.frames == 0 {
		take = c.fps
	}
	switch {
	case take > 0 && fps > 0:
		t.Frames, err = p.video.family.rate(&c, total, fps, take)
	case o.FPS == 0 && c.sample && c.frames > 0:
		if n := min(c.frames, c.maxFrames); n < total {
			t.Frames = p.video.family.even(total, max(n-n%c.temporal, 1))
		}
	}
	if n := c.maxFrames; err == nil && len(t.Frames) > n {
		t.Frames = p.video.family.even(total, max(n-n%c.temporal, 1))
	}
	if err != nil {
		return t, fmt.Errorf("vision: Sample: %w", err)
	}
	return t, nil
}

// VideoLayout returns what ProcessVideo makes of a video whose frames have a size in pixels, without them. Errors wrap [snug.ErrShape],
// [snug.ErrNoMemory] and [snug.ErrConfig].
func (p *Processor) VideoLayout(width, height int, t Timing) (Layout, error) {
	_, l, err := p.planVideo(width, height, t)
	return l, err
}

func (p *Processor) planVideo(width, height int, t Timing) (way plan, l Layout, err error) {
	switch {
	case !p.made():
		return way, l, errNoProcessor
	case p.video == nil:
		return way, l, p.errNoVideo()
	case width < 1 || height < 1:
		return way, l, fmt.Errorf("vision: video of %d x %d pixels, want at least 1 x 1: %w", width, height, snug.ErrShape)
	}
	t, sampled, err := t.complete()
	from, c := size{height, width}, &p.video.videoConfig
	if err == nil {
		way, err = p.video.plan(len(t.Frames), from)
	}
	if err == nil {
		err = way.check(from)
	}
	if err != nil {
		return way, l, fmt.Errorf("vision: %s: %w", p.video.family.kind, err)
	}
	l = way.layout(from, c.filter)
	l.Frames, l.Interval, l.Times = len(t.Frames), float64(c.temporal)/sampled, make([]float64, way.times)
	for i := range l.Times {
		first, last := t.Frames[i*c.temporal], t.Frames[min((i+1)*c.temporal, len(t.Frames))-1]
		l.Times[i] = (float64(first)/t.FPS + float64(last)/t.FPS) / 2
	}
	if p.prompt != nil && p.prompt.video != nil {
		l.Tokens = p.prompt.video.tokens(&p.texts, l)
	}
	return way, l, nil
}

// plan returns the way from frames to values.
func (v *video) plan(frames int, from size) (plan, error) {
	c := &v.videoConfig
	p := plan{whole: from, patch: c.patch, merge: c.merge, temporal: c.temporal, times: (frames + c.temporal - 1) / c.temporal}
	if c.resize {
		to, err := v.family.size(c, frames, from)
		if err != nil {
			return p, err
		}
		p.resize(to)
	}
	return p, nil
}

// ProcessVideo returns the values of a video, pixel_values_videos with video_grid_thw in Layout.Grid, with the bits of transformers with torchvision:
// its video processors have no other arithmetic, whatever [Processor.Using] says. Frames are RGB images of one size, those that t names. The last
// frame is repeated until there are a multiple of temporal_patch_size. It holds Layout.Bytes at most. Errors are those of
// [Processor.VideoLayout].
func (p *Processor) ProcessVideo(frames []*Image, t Timing) (Pixels, error) {
	if t.Frames == nil && t.Total == 0 {
		t.Total = len(frames)
	}
	var first size
	if len(frames) > 0 {
		if err := frames[0].check(); err != nil {
			return Pixels{}, fmt.Errorf("vision: frame 0: %w", err)
		}
		first = size{frames[0].Height, frames[0].Width}
	}
	return p.processVideo(first, t, func(yield func(*Image, error) bool) {
		for _, m := range frames {
			if !yield(m, nil) {
				return
			}
		}
	})
}

// processVideo processes frames, of which it holds temporal_patch_size.
func (p *Processor) processVideo(from size, t Timing, frames iter.Seq2[*Image, error]) (Pixels, error) {
	way, l, err := p.planVideo(from.width, from.height, t)
	if err != nil {
		return Pixels{}, err
	}
	x := Pixels{Layout: l, Values: make([]float32, l.Len())}
	c, b := &p.video.config, backends[Torchvision]
	levels := c.levels(b)
	left, group, n := x.Values, make([]*Image, 0, c.temporal), 0
	for m, err := range frames {
		if err == nil {
			err = m.check()
		}
		switch {
		case err != nil:
			return Pixels{}, fmt.Errorf("vision: frame %d: %w", n, err)
		case size{m.Height, m.Width} != from:
			return Pixels{}, fmt.Errorf("vision: frame %d has %d x %d pixels, and the first %d x %d: want frames of one size: %w", n, m.Width, m.Height, from.width, from.height, snug.ErrShape)
		case n == l.Frames:
			return Pixels{}, fmt.Errorf("vision: more than %d frames, want as many as the Timing names: %w", l.Frames, snug.ErrShape)
		}
		n++
		if group = append(group, way.resized(m, c, b)); len(group) == c.temporal || n == l.Frames {
			for len(group) < c.temporal {
				group = append(group, group[len(group)-1])
			}
			left = way.patches(left, group, &levels)
			group = group[:0]
		}
	}
	if n < l.Frames {
		return Pixels{}, fmt.Errorf("vision: %d frames, want the %d that the Timing names: %w", n, l.Frames, snug.ErrShape)
	}
	return x, nil
}

// roundEven returns the multiple of n that is nearest to x, the even one of two, as Python rounds.
func roundEven(x, n float64) float64 { return math.RoundToEven(x/n) * n }
