package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/vision"
)

// photos are images that are samples of their own, not parts of a text. They are read by any number of goroutines.
type photos struct {
	list   []photo
	blobs  temporary // of images that have no file of their own
	memory int64     // Options.Memory
	mu     sync.Mutex
}

// photo is an image. It takes about 150 bytes of memory.
type photo struct {
	path          string // of its file; empty: the set has the bytes
	from          string // of one without a file: the table and the row
	at            int64  // where the bytes are
	size          int
	white         bool
	sum           [sha256.Size]byte
	width, height int
}

// name says where an image is.
func (p *photo) name() string {
	if p.path != "" {
		return p.path
	}
	return p.from
}

// photoEndings are the endings of the names of images that [vision.Decode] reads.
var photoEndings = []string{".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"}

// photoRemedies say what to do with images that are not read.
var photoRemedies = map[string]string{
	".heic": "HEIC: save it as JPEG or PNG", ".heif": "HEIF: save it as JPEG or PNG", ".avif": "AVIF: save it as JPEG or PNG", ".jp2": "JPEG 2000: save it as PNG", ".svg": "SVG: save it as PNG",
	".dng": "a raw photo: save it as JPEG or PNG", ".cr2": "a raw photo: save it as JPEG or PNG", ".nef": "a raw photo: save it as JPEG or PNG", ".dcm": "DICOM: save it as PNG", ".npy": "an array: save it as PNG",
}

// counted writes a number of things, such as 2 images.
func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", one, "s")
}

// isPhoto reports whether a name is one of an image that is read.
func isPhoto(path string) bool {
	return slices.Contains(photoEndings, strings.ToLower(filepath.Ext(path)))
}

// Workers returns on how many goroutines [Each] runs: at most 4, and at most GOMAXPROCS.
func Workers() int { return min(4, runtime.GOMAXPROCS(0)) }

// decoding returns the limits of an image. Several are decoded at a time.
func (s *photos) decoding(p *photo) vision.DecodeOptions {
	o := vision.DecodeOptions{OnWhite: p.white}
	if s.memory > 0 {
		o.Pixels = int(min(vision.DefaultPixels, max(s.memory, leastMemory)/pixelBytes/int64(Workers())))
	}
	return o
}

// describe reads an image's file, whose bytes the set keeps unless they have a path.
func (s *photos) describe(x imageSource, from string) (p photo, err error) {
	p, data := photo{path: x.path, from: from, white: x.white}, x.data
	if p.path != "" {
		if data, err = s.read(&p); err != nil {
			return p, err
		}
	}
	p.sum, p.size = sha256.Sum256(data), len(data)
	if p.width, p.height, err = vision.DecodeSize(data, s.decoding(&p)); err != nil {
		return p, fmt.Errorf("%s: %w", p.name(), err)
	}
	if p.path == "" {
		p.at = s.blobs.written
		err = s.blobs.write(data, "images in rows", "images")
	}
	return p, err
}

// read reads the file of an image that has one.
func (s *photos) read(p *photo) ([]byte, error) {
	most := max(s.memory, leastMemory)
	if info, err := os.Stat(p.path); err == nil && s.memory > 0 && info.Size() > most {
		return nil, fmt.Errorf("%s: the file has %d bytes, and %d may be read: %w", p.path, info.Size(), most, snug.ErrNoMemory)
	}
	return files.ReadInput(p.path, files.Image)
}

// bytes returns the file of an image.
func (s *photos) bytes(p *photo) ([]byte, error) {
	if p.path == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		data := make([]byte, p.size)
		return data, s.blobs.readAt(data, p.at, "images")
	}
	data, err := s.read(p)
	if err == nil && sha256.Sum256(data) != p.sum {
		err = fmt.Errorf("the file has changed since the data was read: %w", snug.ErrCorrupt)
	}
	return data, err
}

// image decodes an image.
func (s *photos) image(p *photo) (*vision.Image, error) {
	data, err := s.bytes(p)
	if err != nil {
		return nil, named(p, err)
	}
	m, err := vision.Decode(bytes.NewReader(data), s.decoding(p))
	return m, named(p, err)
}

// named adds the path of an image to an error.
func named(p *photo, err error) error {
	if err == nil || strings.Contains(err.Error(), p.name()) {
		return err
	}
	return fmt.Errorf("%s: %w", p.name(), err)
}

// remedied says what to do about an error, before the kind of it.
func remedied(err error, remedy string) error {
	for _, kind := range []error{snug.ErrCorrupt, snug.ErrConfig, snug.ErrNoMemory} {
		if text, ends := strings.CutSuffix(err.Error(), ": "+kind.Error()); ends && errors.Is(err, kind) {
			return fmt.Errorf("%s: %s: %w", text, remedy, kind)
		}
	}
	return fmt.Errorf("%w: %s", err, remedy)
}

// maxDamaged is how many damaged images an error names.
const maxDamaged = 5

// check decodes images, some at a time. Its error names the first of those that are damaged.
func (s *photos) check(ctx context.Context, list []photo, shown func(n, of int)) error {
	failed := make([]error, len(list))
	err := Each(ctx, len(list), func(i int) error {
		_, failed[i] = s.image(&list[i])
		return nil
	}, shown)
	if err != nil {
		return err
	}
	failed = slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	switch n := len(failed); {
	case n == 0:
		return nil
	case n == 1:
		return remedied(failed[0], "remove the file, or save it anew")
	default:
		var texts []string
		for _, err := range failed[:min(n, maxDamaged)] {
			texts = append(texts, strings.TrimSuffix(err.Error(), ": "+snug.ErrCorrupt.Error()))
		}
		return fmt.Errorf("%d images cannot be read, the first are: %s: remove these files, or save them anew: %w", n, strings.Join(texts, "; "), snug.ErrCorrupt)
	}
}

// Each calls do with the numbers from 0 to n-1, some at a time on as many goroutines as images are decoded on. It ends after an error, the first of which
// it returns, and when ctx is done. shown, unless nil, is called with the numbers that are done, by one goroutine at a time.
func Each(ctx context.Context, n int, do func(i int) error, shown func(n, of int)) error {
	var mu sync.Mutex
	var first error
	next, done := 0, 0
	take := func() (i int, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = ctx.Err()
		}
		i = next
		next++
		return i, first == nil && i < n
	}
	var group sync.WaitGroup
	for range min(Workers(), n) {
		group.Add(1)
		go func() {
			defer group.Done()
			for i, more := take(); more; i, more = take() {
				err := do(i)
				mu.Lock()
				if done++; first == nil {
					first = err
				}
				if shown != nil && err == nil {
					shown(done, n)
				}
				mu.Unlock()
			}
		}()
	}
	group.Wait()
	return first
}

// decodeBytes returns about how much memory decoding of some images takes, several at a time.
func (s *photos) decodeBytes(list []photo) (most int64) {
	for i := range list {
		p := &list[i]
		most = max(most, int64(p.size)+pixelBytes*int64(p.width)*int64(p.height))
	}
	return most * int64(min(Workers(), max(1, len(list))))
}
