package vision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// videoFields are the keys of video_preprocessor_config.json, of "video_processor" in processor_config.json, or of preprocessor_config.json
// where neither is there.
type videoFields struct {
	fields
	Kind      *string `json:"video_processor_type"`
	Sample    *bool   `json:"do_sample_frames"`
	FPS       any     `json:"fps"`
	Frames    any     `json:"num_frames"`
	MinFrames any     `json:"min_frames"`
	MaxFrames any     `json:"max_frames"`
	Cap       *bool   `json:"cap_pixels_per_frame"`
	Tokens    any     `json:"max_video_tokens"`
}

// videoConfig is what a video processor does, with the defaults of its class.
type videoConfig struct {
	config
	sample               bool    // by the second, or frames, where a clip has a rate
	fps                  float64 // frames of a second that are sampled, 0 for none
	frames               int     // num_frames, 0 for none
	minFrames, maxFrames int
	capped               bool // cap_pixels_per_frame
	tokens               int  // max_video_tokens
	framePixels          int  // the most of a frame, 0 for no limit of its own
}

// video is the video processor of a folder.
type video struct {
	family *videoFamily
	videoConfig
}

// videoName is the file of a video processor.
const videoName = "video_preprocessor_config.json"

// readVideo finds the video processor of a folder. What is wrong with it is an error of videos alone.
func (p *Processor) readVideo(dir folder, model *string) {
	video, err := openVideo(dir, model)
	if p.video = video; err != nil {
		p.noVideo = err
	}
}

// openVideo returns nil for a folder without a video processor that is known.
func openVideo(dir folder, model *string) (*video, error) {
	var outer struct {
		Video *videoFields `json:"video_processor"`
	}
	name := "processor_config.json"
	if _, err := dir.read(name, &outer); err != nil {
		return nil, err
	}
	f := outer.Video
	for _, file := range []string{videoName, pixelsName} {
		if f != nil {
			break
		}
		var one videoFields
		found, err := dir.read(file, &one)
		if err != nil {
			return nil, err
		}
		if found {
			f, name = &one, file
		}
	}
	if f == nil {
		return nil, nil
	}
	family, err := f.family(model)
	if family == nil || err != nil {
		return nil, err
	}
	v := &video{family: family, videoConfig: family.defaults}
	if err := v.read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// family returns the one that the type names, or the image processor's of the same name, or else that of the model; nil if there is none.
func (f *videoFields) family(model *string) (*videoFamily, error) {
	kind := ""
	switch {
	case f.Kind != nil:
		kind = *f.Kind
	case f.Type != nil:
		kind = strings.Replace(*f.Type, "ImageProcessor", "VideoProcessor", 1)
	}
	for _, one := range videoFamilies {
		if one.kind == kind {
			return one, nil
		}
	}
	if f.Kind != nil {
		return nil, fmt.Errorf("video_processor_type is %.60q, which is not known here: give the frames as images: %w", kind, snug.ErrConfig)
	}
	for _, one := range videoFamilies {
		if model != nil && slices.Contains(one.models, *model) {
			return one, nil
		}
	}
	return nil, nil
}

// read changes the defaults by the fields.
func (v *video) read(f *videoFields) error {
	c := &v.videoConfig
	f.CenterCrop, f.Pad = nil, nil // which these classes pass over
	c.square = true
	if err := c.config.read(&f.fields); err != nil {
		return err
	}
	for _, b := range []struct{ given, to *bool }{{f.Sample, &c.sample}, {f.Cap, &c.capped}} {
		if b.given != nil {
			*b.to = *b.given
		}
	}
	r := reader{}
	r.count("patch_size", f.Patch, &c.patch)
	r.count("temporal_patch_size", f.Temporal, &c.temporal)
	r.count("merge_size", f.Merge, &c.merge)
	r.count("num_frames", f.Frames, &c.frames)
	r.count("min_frames", f.MinFrames, &c.minFrames)
	r.count("max_frames", f.MaxFrames, &c.maxFrames)
	r.count("max_video_tokens", f.Tokens, &c.tokens)
	r.float("fps", f.FPS, &c.fps)
	if r.err == nil && v.family.read != nil {
		r.err = v.family.read(c, f)
	}
	switch {
	case r.err != nil:
		return r.err
	case c.resize && (c.size.shortest == 0 || c.size.longest == 0):
		return c.size.useless("shortest_edge and longest_edge, which are numbers of pixels")
	case c.patch > mostPatch || c.merge > mostPatch || c.temporal > mostPatch:
		return fmt.Errorf("patch_size %d, merge_size %d, temporal_patch_size %d, want at most %d: %w", c.patch, c.merge, c.temporal, mostPatch, snug.ErrConfig)
	case c.fps != 0 && !(c.fps >= 1e-3 && c.fps <= 1e6):
		return fmt.Errorf("fps is %v, want from 0.001 to 1e6: %w", c.fps, snug.ErrConfig)
	case c.sample && c.fps > 0 && c.frames > 0:
		return fmt.Errorf("fps and num_frames, want one of them: %w", snug.ErrConfig)
	case !c.resize:
		return nil
	}
	return Torchvision.check(c.filter)
}

// limit sets the most pixels of a frame.
func (v *video) limit(pixels int) *video {
	if v == nil {
		return nil
	}
	other := *v
	other.framePixels = min(pixels, maxPixels)
	return &other
}

// budget returns the pixels of max_video_tokens.
func (c *videoConfig) budget() float64 {
	side := float64(c.patch) * float64(c.merge)
	return min(float64(c.tokens)*side*side, 1<<40)
}
