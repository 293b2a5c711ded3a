package dataset

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/vision"
)

// videoParts are the types of parts that are videos.
var videoParts = []string{"video", "video_url", "input_video"}

// videoSource is where a video comes from. Without paths the row has it in a field.
type videoSource struct {
	paths []string // of a folder or an animated file, or of frames
	list  bool     // paths are of frames
	rate  float64  // fps or sample_fps: of the frames, or how many of an animated file are taken in a second; 0: not given
	most  int      // max_frames; 0: not given
}

// videoFrames are the frames of a video of a sample.
type videoFrames struct {
	clip   *vision.Clip
	timing vision.Timing
}

// videoPart reads a part of a message that is a video, and returns the mark of it.
func (f *rows) videoPart(m *turn, o object) (string, error) {
	if m.Role == "assistant" {
		return "", fmt.Errorf("a video in a turn of the assistant, which writes only text")
	}
	x, err := f.videoObject(o, "messages.content.")
	if err != nil {
		return "", err
	}
	return f.mark(imageSource{video: x}), nil
}

// videoOf reads a video of a field: the path of a folder or of an animated file, the paths of frames, or an object with them.
func (f *rows) videoOf(x value) (imageSource, error) {
	v := &videoSource{}
	var err error
	if o, is := x.(object); is {
		v, err = f.videoObject(o, "")
	} else {
		err = f.videoPaths(v, x)
	}
	if err == nil && len(v.paths) == 0 {
		err = fmt.Errorf("a video without a path")
	}
	return imageSource{video: v}, err
}

// videoObject reads an object with a video: its place and its rate. inside is where members are that change nothing.
func (f *rows) videoObject(o object, inside string) (*videoSource, error) {
	v := &videoSource{}
	for _, member := range o {
		if member.Name == "type" || empty(member.Value) {
			continue
		}
		var err error
		switch member.Name {
		case "video", "video_url", "url", "path":
			if len(v.paths) > 0 {
				return nil, fmt.Errorf("the part has more than one video")
			}
			err = f.videoPaths(v, member.Value)
		case "fps", "sample_fps":
			err = number(member.Value, 1e-3, 1e6, &v.rate)
		case "max_frames":
			most := 0.
			err = number(member.Value, 1, 1<<18, &most)
			v.most = int(most)
		case "bytes":
			err = fmt.Errorf("the bytes of a video, want the path of a folder of frames or of an animated file")
		default:
			if text, is := member.Value.(string); is && slices.Contains(partNames, member.Name) {
				return nil, fmt.Errorf("the part is a video and has the text %q: write it as a part of its own", shortened(text))
			}
			f.ignore(inside + member.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", member.Name, err)
		}
	}
	return v, nil
}

// videoPaths reads the path of a folder or of an animated file, or a list of paths of frames.
func (f *rows) videoPaths(v *videoSource, x value) error {
	items, isList := x.(list)
	if o, is := x.(object); is { // {"url": ...}, as OpenAI writes images
		for _, name := range []string{"path", "url"} {
			if text, found := textOf(o, name); found && text != "" {
				x = text
				break
			}
		}
	}
	if v.list = isList; !isList {
		items = list{x}
	}
	for i, item := range items {
		text, is := item.(string)
		if !is {
			return fmt.Errorf("item %d is %s, want the path of a folder of frames or of an animated file, or a list of paths of frames", i, kindOf(item))
		}
		one, err := f.imageNamed(text)
		if err == nil && one.path == "" {
			err = fmt.Errorf("a data: URL, want a path")
		}
		if err != nil {
			return err
		}
		v.paths = append(v.paths, one.path)
	}
	return nil
}

// number reads a number within bounds, which qwen-vl-utils takes also as a text.
func number(x value, least, most float64, to *float64) error {
	if text, is := x.(string); is {
		x = json.Number(strings.TrimSpace(text))
	}
	n, is := x.(json.Number)
	v, err := n.Float64()
	if !is || err != nil || !(v >= least && v <= most) {
		return fmt.Errorf("%s, want a number from %v to %v", shortJSON(x), least, most)
	}
	*to = v
	return nil
}

// clip reads the sizes and the sum of a video, and chooses its frames.
func (r *reader) clip(x *videoSource) (p picture, err error) {
	in, v, o := r.options.Images, &videoFrames{}, r.decoding(&p)
	if r.options.Memory > 0 {
		o.Bytes = int(min(vision.DefaultBytes, max(r.options.Memory, leastMemory)))
	}
	if p.video = v; x.list {
		v.clip, err = vision.ClipOf(x.paths, o)
	} else {
		v.clip, err = vision.OpenClip(x.paths[0], o)
	}
	if err != nil {
		return p, err
	}
	most := r.options.MaxFrames
	if x.most > 0 && (most == 0 || x.most < most) {
		most = x.most
	}
	if v.timing, err = in.Processor.SampleClip(v.clip, x.rate, most); err != nil {
		return p, err
	}
	width, height := v.clip.Size()
	if p.layout, err = in.Processor.VideoLayout(width, height, v.timing); err == nil {
		p.rows, err = in.Rows(p.layout)
	}
	if err == nil {
		p.sum, err = v.clip.Sum(v.timing.Frames)
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w", x.paths[0], err)
	}
	if info, err := os.Stat(x.paths[0]); err == nil && v.clip.FPS() > 0 {
		p.size = int(info.Size())
	}
	return p, nil
}

// videoPixels reads and processes the frames of a video.
func (s *Set) videoPixels(p *picture) (vision.Pixels, error) {
	x, sum, err := s.options.Images.Processor.ProcessClip(p.video.clip, p.video.timing)
	if err == nil && sum != p.sum {
		err = fmt.Errorf("the frames have changed since the data was read: %w", snug.ErrCorrupt)
	}
	return x, err
}
