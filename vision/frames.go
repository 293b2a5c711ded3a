package vision

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// extensions are the names of files in a folder that [Frames] reads.
var extensions = map[string]bool{".png": true, ".jpg": true, ".jpeg": true, ".webp": true, ".gif": true, ".bmp": true, ".tif": true, ".tiff": true}

// Frames returns at most n images of a clip, evenly chosen. The clip is an animated GIF, drawn as Pillow draws it, another image, which
// is one frame, or a folder of images, whose names in the order of bytes are their order, and in which other files and names that begin with a
// dot are passed over. Of a clip of t frames, more than n, those at floor(i t/n) are chosen, as transformers' video processors choose them.
// Frames of one clip may have different sizes.
//
// The call holds the chosen frames and what [Decode] holds of one; of a GIF it draws the frames up to the last chosen one, in
// at most 9 bytes a pixel.
//
// Errors wrap [snug.ErrConfig] for n < 1, options and a folder without images, and otherwise are those of [Decode] and of the
// operating system.
func Frames(path string, n int, o DecodeOptions) ([]*Image, error) {
	out, err := frames(path, n, o)
	if err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	return out, nil
}

func frames(path string, n int, o DecodeOptions) ([]*Image, error) {
	o, err := o.complete()
	switch {
	case err != nil:
		return nil, err
	case n < 1:
		return nil, fmt.Errorf("%d frames, want at least 1: %w", n, snug.ErrConfig)
	case path == "":
		return nil, fmt.Errorf("no path of a clip: %w", snug.ErrConfig)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return inFile(path, n, o)
	}
	names, err := imagesIn(path)
	if err != nil {
		return nil, err
	}
	var out []*Image
	for _, i := range spread(len(names), n) {
		f, err := inFile(names[i], 1, o)
		if err != nil {
			return nil, err
		}
		out = append(out, f...)
	}
	return out, nil
}

// imagesIn returns the paths of the images in a folder, in the order of bytes.
func imagesIn(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if name := e.Name(); extensions[strings.ToLower(filepath.Ext(name))] && !strings.HasPrefix(name, ".") {
			names = append(names, filepath.Join(path, name))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no images in the folder, want files with one of the endings png, jpg, jpeg, webp, gif, bmp, tif, tiff: %w", path, snug.ErrConfig)
	}
	return names, nil
}

// inFile returns the chosen frames of a file: of an animated GIF, or one image.
func inFile(path string, n int, o DecodeOptions) (out []*Image, err error) {
	file, err := fileOf(path, o)
	if err != nil {
		return nil, err
	}
	if a := animationOf(file); n > 1 && a != nil {
		out, err = a.frames(file, func(total int) []int { return spread(total, n) }, o)
	} else {
		var m *Image
		m, err = decodeFile(file, o)
		out = []*Image{m}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// fileOf reads a file within the limits of complete options.
func fileOf(path string, o DecodeOptions) (file []byte, err error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if size > int64(o.Bytes) {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d: %w", path, size, o.Bytes, snug.ErrNoMemory)
	}
	return contents(f, o.Bytes)
}

// movie is what an animated file holds, whose frames are drawn one after the other.
type movie interface {
	count() int
	seconds() float64
	pictures(o DecodeOptions) iter.Seq2[*picture, error]
}

// animationFormat is a file format with frames.
type animationFormat struct {
	name string
	is   func(file []byte) bool
	scan func(file []byte) (movie, error)
}

// animationFormats are asked in turn.
var animationFormats = []*animationFormat{&gifAnimation}

// animationOf returns the format of an animated file, nil for others.
func animationOf(file []byte) *animationFormat {
	for _, a := range animationFormats {
		if a.is(file) {
			return a
		}
	}
	return nil
}

// frames returns chosen frames of a file.
func (a *animationFormat) frames(file []byte, choose func(total int) []int, o DecodeOptions) (out []*Image, err error) {
	m, err := a.scan(file)
	if err != nil {
		return nil, damaged(a.name, err)
	}
	for f, err := range a.draw(m, choose(m.count()), o) {
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no frame, want at least one: %w", a.name, snug.ErrCorrupt)
	}
	return out, nil
}

// draw yields chosen frames, whose numbers do not fall.
func (a *animationFormat) draw(m movie, chosen []int, o DecodeOptions) iter.Seq2[*Image, error] {
	return func(yield func(*Image, error) bool) {
		n := 0
		for p, err := range m.pictures(o) {
			if len(chosen) == 0 {
				return
			}
			if err != nil {
				yield(nil, damaged(a.name, err))
				return
			}
			for ; len(chosen) > 0 && chosen[0] == n; chosen = chosen[1:] {
				if !yield(p.rgb(o), nil) {
					return
				}
			}
			n++
		}
	}
}

// spread returns at most n indices of total frames, evenly chosen.
func spread(total, n int) []int {
	n = min(n, total)
	out := make([]int, n)
	for i := range out {
		out[i] = i * total / n
	}
	return out
}
