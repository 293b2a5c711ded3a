package dataset

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/vision"
)

// ClassOptions say how images with classes are read.
type ClassOptions struct {
	// Labels are the classes in the order of their numbers, such as those of a model that is tested; other ones are errors. Nil: those that are found, in
	// the order of a ClassLabel or of their names, and numbers in the order of numbers.
	Labels []string
	// Validation reads the part for validation instead of that for training. Without such a part the error wraps fs.ErrNotExist.
	Validation bool
	// Map names fields of tables: Map["image"] and Map["label"]. An empty map: see [ReadClasses].
	Map map[string]string
	// ImageFolder is where relative paths of images in tables begin; empty: in the folder of the table.
	ImageFolder string
	// Memory is as in [Options].
	Memory int64
	// Progress, unless nil, is called with how many images are decoded, of how many.
	Progress func(n, of int)
}

// Classes are images, each with a class. Reading them takes about 150 bytes of memory an image.
type Classes struct {
	photos
	labels  []string
	classes []int32 // of each image
	notes   []string
}

// ReadClasses reads images with classes as torchvision's ImageFolder and the imagefolder of Hugging Face's datasets have them:
//
//	photos/cat/1.jpg  photos/dog/1.jpg                                     a folder for each class
//	photos/train/cat/1.jpg  photos/validation/cat/9.jpg                    the same for each part: train; validation, valid, val, dev or test
//	photos/metadata.csv, .jsonl or .parquet, with file_name and label      files beside the table, with a part of such a folder each, too
//	photos/train.parquet or photos/data/train-00000.parquet                images in the table, as datasets writes them
//
// A path may also name a table, or a folder of tables. Its rows have image, img, file_name or path, and label, labels or class; classes are texts, or
// numbers, whose names are those of a ClassLabel that datasets keeps in a table of Parquet. All images of a class's folder are read, also in folders
// within it, through links of files, and of the folder of the class. Hidden files are not read, nor those that are no images by their endings; Notes says so.
//
// All images are decoded once, several at a time: a damaged one is an error that names its file. The error wraps [snug.ErrConfig] where fewer than two
// classes are found, a class has no image, or an image has no class, [snug.ErrCorrupt] for what is damaged, or is of the file system or of ctx.
func ReadClasses(ctx context.Context, path string, o ClassOptions) (*Classes, error) {
	c, err := readClasses(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("dataset: %w", err)
	}
	return c, nil
}

func readClasses(ctx context.Context, path string, o ClassOptions) (c *Classes, err error) {
	if ctx == nil || path == "" || o.Memory < 0 {
		return nil, fmt.Errorf("the context is nil, the path empty, or Memory %d below 0: %w", o.Memory, snug.ErrConfig)
	}
	for to := range o.Map {
		if to != imageField && to != labelField {
			return nil, fmt.Errorf("the Map names %.40q, want image or label: %w", to, snug.ErrConfig)
		}
	}
	r := &classReader{options: o, Classes: &Classes{photos: photos{memory: o.Memory}}}
	if err = r.read(path); err == nil {
		err = r.number(path)
	}
	if err == nil {
		err = r.check(ctx, r.list, o.Progress)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.repeated()
	r.alike()
	return r.Classes, nil
}

// classReader reads images with classes.
type classReader struct {
	*Classes
	options ClassOptions
	found   []string       // the class of each image, as its folder or row says it
	numbers map[string]int // of found classes
	names   []string       // of a ClassLabel
	numeric bool           // all classes so far are whole numbers
	file    string         // the table that is read
}

// add takes an image.
func (r *classReader) add(x imageSource, from, class string) error {
	p, err := r.describe(x, from)
	if err != nil {
		return err
	}
	if r.numbers == nil {
		r.numbers, r.numeric = map[string]int{}, true
	}
	if !utf8.ValidString(class) {
		return fmt.Errorf("%s: the class %q is not UTF-8: give it another name: %w", p.name(), class, snug.ErrConfig)
	}
	n, known := r.numbers[class]
	if !known {
		n = len(r.found)
		r.numbers[class], r.found = n, append(r.found, class)
		_, err := strconv.Atoi(class)
		r.numeric = r.numeric && err == nil
	}
	r.list, r.classes = append(r.list, p), append(r.classes, int32(n))
	return nil
}

// number gives classes their numbers.
func (r *classReader) number(path string) error {
	sorted := slices.Clone(r.found)
	slices.SortFunc(sorted, func(a, b string) int {
		if r.numeric {
			x, _ := strconv.Atoi(a)
			y, _ := strconv.Atoi(b)
			return cmp.Or(cmp.Compare(x, y), cmp.Compare(a, b))
		}
		return cmp.Compare(a, b)
	})
	switch r.labels = sorted; {
	case r.options.Labels != nil:
		r.labels = slices.Clone(r.options.Labels)
	case r.names != nil:
		r.labels = r.names
	}
	place := make([]int32, len(r.found))
	for i, class := range r.found {
		n := slices.Index(r.labels, class)
		if n < 0 {
			return fmt.Errorf("%s: the class %q is none of %s: %w", path, class, listed(r.labels), snug.ErrConfig)
		}
		place[i] = int32(n)
	}
	for i, n := range r.classes {
		r.classes[i] = place[n]
	}
	switch {
	case len(r.list) == 0:
		return fmt.Errorf("%s: there are no images: %w", path, snug.ErrConfig)
	case len(r.found) == 1 && r.options.Labels == nil:
		return fmt.Errorf("%s: all images are of the class %q, want 2 classes or more: %w", path, r.found[0], snug.ErrConfig)
	}
	if n := len(r.labels) - len(r.found); n > 0 && r.options.Labels == nil {
		r.note("%d of the %d classes that the table names have no image", n, len(r.labels))
	}
	return nil
}

// repeated notes images that come twice.
func (r *classReader) repeated() {
	first := map[[sha256.Size]byte]int{}
	same, differs := 0, 0
	var pair, wrong [2]int
	for i := range r.list {
		j, again := first[r.list[i].sum]
		switch {
		case !again:
			first[r.list[i].sum] = i
		case r.classes[i] == r.classes[j]:
			if same++; same == 1 {
				pair = [2]int{j, i}
			}
		default:
			if differs++; differs == 1 {
				wrong = [2]int{j, i}
			}
		}
	}
	if same > 0 {
		r.note("%s are the same file as another of the class: the first is %s, as %s", counted(same, "image"), r.Name(pair[1]), r.Name(pair[0]))
	}
	if differs > 0 {
		r.note("%s are the same file as one of another class: the first is %s, as %s", counted(differs, "image"), r.Name(wrong[1]), r.Name(wrong[0]))
	}
}

// alike notes classes whose names differ in capitals or white space alone.
func (r *classReader) alike() {
	first := map[string]string{}
	for _, class := range r.found {
		plain := strings.ToLower(strings.Join(strings.Fields(class), " "))
		if other, again := first[plain]; again {
			r.note("the classes %q and %q differ in capitals or white space alone", other, class)
			continue
		}
		first[plain] = class
	}
}

// maxNotes bounds the notes.
const maxNotes = 20

func (c *Classes) note(format string, args ...any) {
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, fmt.Sprintf(format, args...))
	}
}

// Labels returns the names of the classes.
func (c *Classes) Labels() []string { return slices.Clone(c.labels) }

// Relabel gives the classes the order of labels, which are the same names. The error wraps [snug.ErrConfig] for other ones.
func (c *Classes) Relabel(labels []string) error {
	place := make([]int32, len(c.labels))
	for i, label := range c.labels {
		n := slices.Index(labels, label)
		if n < 0 || len(labels) != len(c.labels) {
			return fmt.Errorf("dataset: the labels %s, want the classes %s in some order: %w", listed(labels), listed(c.labels), snug.ErrConfig)
		}
		place[i] = int32(n)
	}
	for i, n := range c.classes {
		c.classes[i] = place[n]
	}
	c.labels = slices.Clone(labels)
	return nil
}

// Len returns the number of images, 0 of nil.
func (c *Classes) Len() int {
	if c == nil {
		return 0
	}
	return len(c.list)
}

// Class returns the number of the class of an image.
func (c *Classes) Class(image int) int { return int(c.classes[image]) }

// Name says where an image is: its file, or the table and the row.
func (c *Classes) Name(image int) string { return c.list[image].name() }

// Size returns the pixels of an image.
func (c *Classes) Size(image int) (width, height int) {
	return c.list[image].width, c.list[image].height
}

// Notes says what a person should know: what is not read, and what comes twice.
func (c *Classes) Notes() []string { return slices.Clone(c.notes) }

// Image decodes an image. The error wraps [snug.ErrCorrupt] for a file that has changed.
func (c *Classes) Image(image int) (*vision.Image, error) {
	if image < 0 || image >= len(c.list) {
		return nil, fmt.Errorf("dataset: image %d of %d: %w", image, len(c.list), snug.ErrConfig)
	}
	return c.image(&c.list[image])
}

// ImageSum tells the file of an image from others.
func (c *Classes) ImageSum(image int) [sha256.Size]byte { return c.list[image].sum }

// DecodeBytes returns about how much memory the decoding of images takes on the goroutines of [Each].
func (c *Classes) DecodeBytes() int64 { return c.decodeBytes(c.list) }

// Sum returns the SHA-256 of the images, their classes and their order.
func (c *Classes) Sum() [sha256.Size]byte {
	h := sha256.New()
	for _, label := range c.labels {
		fmt.Fprintf(h, "%q\n", label)
	}
	for i := range c.list {
		h.Write(c.list[i].sum[:])
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(c.classes[i])))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Close removes the temporary file, if there is one. Closing twice does nothing.
func (c *Classes) Close() error {
	if c == nil {
		return nil
	}
	return c.blobs.close()
}

// read reads a folder or a table.
func (r *classReader) read(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && hubName.MatchString(path) {
		return fmt.Errorf("%w; a dataset of the hub is not downloaded here, but by hf download --repo-type dataset %s --local-dir %s, and given as a folder", err, path, filepath.Base(path))
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if r.options.Validation {
			return fmt.Errorf("%s: a table has no part for validation: %w", path, fs.ErrNotExist)
		}
		if isPhoto(path) {
			return fmt.Errorf("%s: an image, want a folder with a folder for each class, or a table: %w", path, snug.ErrConfig)
		}
		return r.table(path)
	}
	return r.folder(path)
}
