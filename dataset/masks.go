package dataset

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/vision"
)

// MaskOptions say how images with masks are read.
type MaskOptions struct {
	ImageFolder string          // where relative paths of rows begin; empty: in the folder of the rows
	Memory      int64           // as in [Options]
	Progress    func(n, of int) // unless nil, is called with how many files are read, of how many
}

// MaskItem is an object of an image.
type MaskItem struct {
	Image  int         // the number of the image
	Value  int         // of the object's pixels in the mask; 0: all that are not 0
	Box    *[4]float32 // left, top, right and bottom, in pixels of the image: of the row, or of the object in the mask; nil where the row has points
	Points [][2]float32
	Labels []bool // of points: on the object; nil: all are
}

// Masks are images with masks of objects. Reading them takes about 250 bytes of memory an image, and as much for an object.
type Masks struct {
	photos
	masks []photo // of each image
	items []MaskItem
	notes []string
}

// maskFolders are the names of folders with masks.
var maskFolders = []string{"masks", "labels", "annotations"}

// maxObjects bounds the objects of a mask.
const maxObjects = 1 << 16

// ReadMasks reads images with masks:
//
//	cells/images/1.png  cells/masks/1.png     masks with the names of the images, also in labels or annotations
//	cells.jsonl                               rows with image and mask, and a box [left, top, right, bottom], or points [[x, y], ...] with labels [1, 0, ...]
//
// A mask has the size of its image. Its pixels are 0 where no object is. If all others have one value, such as 255, they are an object; else each value is
// one: gray of 8 or 16 bits, or the numbers of a palette, in PNG, TIFF, BMP or GIF. Of colours that are not black all pixels are one object. The mask of a row with a box or points
// is one object. Where a row gives no box, the box is that of the object's pixels. JPEG, which changes values, is refused.
//
// All files are decoded once. The error wraps [snug.ErrConfig] for an image without a mask, a mask of another size and one without an object, and a
// prompt that is not in the image, [snug.ErrCorrupt] for what is damaged, or is of the file system or of ctx.
func ReadMasks(ctx context.Context, path string, o MaskOptions) (*Masks, error) {
	m := &Masks{photos: photos{memory: o.Memory}}
	err := m.readAll(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("dataset: %w", errors.Join(err, m.Close()))
	}
	return m, nil
}

func (m *Masks) readAll(ctx context.Context, path string, o MaskOptions) error {
	if ctx == nil || path == "" || o.Memory < 0 {
		return fmt.Errorf("the context is nil, the path empty, or Memory %d below 0: %w", o.Memory, snug.ErrConfig)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	r := &maskReader{Masks: m, options: o, ctx: ctx, known: map[string]int{}}
	if info.IsDir() {
		err = r.folder(path)
	} else {
		err = r.rows(path)
	}
	if err == nil && len(m.items) == 0 {
		err = fmt.Errorf("%s: there are no masks: %w", path, snug.ErrConfig)
	}
	if err != nil {
		return err
	}
	return m.check(ctx, m.list, o.Progress)
}

// maskReader reads images with masks.
type maskReader struct {
	*Masks
	options MaskOptions
	ctx     context.Context
	known   map[string]int // numbers of images by image and mask
	ignored []string       // fields of rows that are not read
}

// folder reads a folder with a folder of images and one of masks.
func (r *maskReader) folder(dir string) error {
	folders, _, _, err := foldersIn(dir)
	if err != nil {
		return err
	}
	in := ""
	for _, name := range maskFolders {
		if slices.Contains(folders, name) {
			in = cmp.Or(in, name)
		}
	}
	if !slices.Contains(folders, "images") || in == "" {
		return fmt.Errorf("%s: want the folders images and masks (or labels, or annotations) in it, or a file of rows with image and mask: %w", dir, snug.ErrConfig)
	}
	images, err := byStem(filepath.Join(dir, "images"))
	if err != nil {
		return err
	}
	masks, err := byStem(filepath.Join(dir, in))
	if err != nil {
		return err
	}
	unused := len(masks)
	for i, stem := range slices.Sorted(maps.Keys(images)) {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		mask := masks[stem]
		if mask == "" {
			return fmt.Errorf("%s: %s has no %s.png for it: draw the mask, or remove the image: %w", images[stem], filepath.Join(dir, in), stem, snug.ErrConfig)
		}
		unused--
		if err := r.add(images[stem], mask, nil); err != nil {
			return err
		}
		if r.options.Progress != nil {
			r.options.Progress(i+1, len(images))
		}
	}
	if unused > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s of %s without an image", counted(unused, "file"), filepath.Join(dir, in)))
	}
	return nil
}

// byStem returns the images of a folder by their names without endings.
func byStem(dir string) (map[string]string, error) {
	_, names, _, err := foldersIn(dir)
	list := map[string]string{}
	for _, name := range names {
		stem := strings.TrimSuffix(name, filepath.Ext(name))
		if other := list[stem]; other != "" {
			return nil, fmt.Errorf("%s and %s have one name: remove one of them: %w", other, name, snug.ErrConfig)
		}
		list[stem] = filepath.Join(dir, name)
	}
	return list, err
}

// add takes an image with its mask. of, unless nil, is the object that the mask is of.
func (r *maskReader) add(path, mask string, of *MaskItem) error {
	n, again := r.known[path+"\x00"+mask]
	if !again {
		p, err := r.describe(imageSource{path: path}, "")
		if err != nil {
			return remedied(err, "remove the file, or save it anew")
		}
		q, err := r.describe(imageSource{path: mask}, "")
		if err != nil {
			return remedied(err, "remove the file, or save it anew")
		}
		if p.width != q.width || p.height != q.height {
			return fmt.Errorf("%s has %d by %d pixels, and its image %s %d by %d: want one size: %w", mask, q.width, q.height, path, p.width, p.height, snug.ErrConfig)
		}
		n = len(r.list)
		r.known[path+"\x00"+mask] = n
		r.list, r.masks = append(r.list, p), append(r.masks, q)
	}
	values, err := r.values(n)
	if err != nil {
		return err
	}
	boxes := boxesOf(values, r.list[n].width)
	if len(boxes) == 0 {
		return fmt.Errorf("%s has no object, all of its pixels are 0: remove it and its image: %w", mask, snug.ErrConfig)
	}
	if of != nil {
		if err := of.within(r.list[n].width, r.list[n].height); err != nil {
			return fmt.Errorf("%w: %s: %w", err, path, snug.ErrConfig)
		}
		one := *of
		one.Image = n
		r.items = append(r.items, one)
		return nil
	}
	if len(boxes) > maxObjects {
		return fmt.Errorf("%s has %d objects, want at most %d: %w", mask, len(boxes), maxObjects, snug.ErrConfig)
	}
	for _, value := range slices.Sorted(maps.Keys(boxes)) {
		b := boxes[value]
		r.items = append(r.items, MaskItem{Image: n, Value: value, Box: &b})
	}
	return nil
}

// boxesOf returns the box of each value that is not 0.
func boxesOf(values []uint16, width int) map[int][4]float32 {
	boxes := map[int][4]float32{}
	for i, v := range values {
		if v == 0 {
			continue
		}
		x, y := float32(i%width), float32(i/width)
		b, seen := boxes[int(v)]
		if !seen {
			b = [4]float32{x, y, x, y}
		}
		boxes[int(v)] = [4]float32{min(b[0], x), min(b[1], y), max(b[2], x), max(b[3], y)}
	}
	return boxes
}

// Len returns the number of objects.
func (m *Masks) Len() int { return len(m.items) }

// Item returns an object.
func (m *Masks) Item(i int) MaskItem { return m.items[i] }

// Images returns the number of images.
func (m *Masks) Images() int { return len(m.list) }

// Name returns the file of an image.
func (m *Masks) Name(image int) string { return m.list[image].name() }

// Size returns the pixels of an image and of its mask.
func (m *Masks) Size(image int) (width, height int) {
	return m.list[image].width, m.list[image].height
}

// Image decodes an image. The error wraps [snug.ErrCorrupt] for a file that has changed.
func (m *Masks) Image(image int) (*vision.Image, error) { return m.image(&m.list[image]) }

// ImageSum tells the file of an image from others.
func (m *Masks) ImageSum(image int) [sha256.Size]byte { return m.list[image].sum }

// Mask decodes the mask of an object: 1 where it is and 0 elsewhere, [height, width]. Errors are those of [Masks.Image].
func (m *Masks) Mask(item int) ([]float32, error) {
	of := m.items[item]
	values, err := m.values(of.Image)
	if err != nil {
		return nil, err
	}
	mask := make([]float32, len(values))
	for i, v := range values {
		if v != 0 && (of.Value == 0 || int(v) == of.Value) {
			mask[i] = 1
		}
	}
	return mask, nil
}

// Notes says what a person should know.
func (m *Masks) Notes() []string { return slices.Clone(m.notes) }

// DecodeBytes returns about how much memory the decoding of images and masks takes on the goroutines of [Each].
func (m *Masks) DecodeBytes() int64 { return m.decodeBytes(m.list) }

// Sum returns the SHA-256 of the images, the masks and the prompts, in their order.
func (m *Masks) Sum() [sha256.Size]byte {
	h := sha256.New()
	for i := range m.list {
		h.Write(m.list[i].sum[:])
		h.Write(m.masks[i].sum[:])
	}
	for _, x := range m.items {
		text, _ := json.Marshal(x) // of numbers
		h.Write(text)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Close removes the temporary file, if there is one. Closing twice does nothing.
func (m *Masks) Close() error {
	if m == nil {
		return nil
	}
	return m.blobs.close()
}
