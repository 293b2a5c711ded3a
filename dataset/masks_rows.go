package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// rows reads a file of rows.
func (r *maskReader) rows(path string) error {
	in, err := open(path)
	if err != nil {
		return err
	}
	defer in.file.Close()
	rows := &reader{Set: newSet(Options{Memory: r.options.Memory, ImageFolder: r.options.ImageFolder})}
	rows.other = &maskRows{r, rows}
	if err := rows.contents(in); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(r.ignored) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s: ignored fields: %s", path, listed(r.ignored)))
	}
	return nil
}

// maskRows takes the rows of a file.
type maskRows struct {
	*maskReader
	reader *reader
}

// maskFields are the fields that are read.
var maskFields = []string{"image", "mask", "box", "points", "labels"}

func (r *maskRows) reads(column string) bool {
	return slices.Contains(maskFields, column)
}

func (r *maskRows) begin(func(string) (string, bool)) error { return nil }

func (r *maskRows) take(x row) error {
	for _, name := range namesOf(x.fields) {
		if !r.reads(name) && !slices.Contains(r.ignored, name) && len(r.ignored) < maxNotes {
			r.ignored = append(r.ignored, name)
		}
	}
	paths := map[string]string{}
	for _, name := range []string{"image", "mask"} {
		v, found := x.fields.Get(name)
		if !found || empty(v) {
			return fmt.Errorf("the row has no %s, its fields are %s: %w", name, listed(namesOf(x.fields)), snug.ErrConfig)
		}
		from, err := r.reader.rows.imageOf(v, false)
		if err == nil && from.path == "" {
			err = fmt.Errorf("want the path of a file")
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %w", name, err, snug.ErrConfig)
		}
		paths[name] = from.path
	}
	of, err := promptOf(x.fields)
	if err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	return r.add(paths["image"], paths["mask"], of)
}

// promptOf returns the prompt of a row, nil if it has none.
func promptOf(o object) (of *MaskItem, err error) {
	if v, _ := o.Get("box"); !empty(v) {
		list, err := numbersOf(v, 4)
		if err != nil {
			return nil, fmt.Errorf("box: %w, want [left, top, right, bottom]", err)
		}
		if list[0] > list[2] || list[1] > list[3] {
			return nil, fmt.Errorf("box: %v, want left before right, and top before bottom", list)
		}
		of = &MaskItem{Box: (*[4]float32)(list)}
	}
	v, _ := o.Get("points")
	if empty(v) {
		if v, _ := o.Get("labels"); !empty(v) {
			return nil, fmt.Errorf("labels without points, want points [[x, y], ...] with a label each")
		}
		return of, nil
	}
	points, is := v.(list)
	if !is || len(points) > 1<<12 {
		return nil, fmt.Errorf("points: %s, want up to 4096 points [[x, y], ...]", kindOf(v))
	}
	if of == nil {
		of = &MaskItem{}
	}
	for i, p := range points {
		at, err := numbersOf(p, 2)
		if err != nil {
			return nil, fmt.Errorf("points: point %d: %w, want [x, y]", i, err)
		}
		of.Points = append(of.Points, [2]float32(at))
	}
	v, _ = o.Get("labels")
	if empty(v) {
		return of, nil
	}
	labels, err := numbersOf(v, len(points))
	for _, n := range labels {
		if n != 0 && n != 1 {
			err = fmt.Errorf("%v", n)
		}
		of.Labels = append(of.Labels, n == 1)
	}
	if err != nil {
		return nil, fmt.Errorf("labels: %w, want 1 or 0 for each point", err)
	}
	return of, nil
}

// within returns an error for a prompt that is not in an image. Boxes may end a pixel beyond it, as those of detectors do.
func (m *MaskItem) within(width, height int) error {
	in := func(x, y float32) bool { return x >= -1 && y >= -1 && x <= float32(width+1) && y <= float32(height+1) }
	if b := m.Box; b != nil && !(in(b[0], b[1]) && in(b[2], b[3])) {
		return fmt.Errorf("box: %v is not in the image of %d by %d pixels", *b, width, height)
	}
	for i, p := range m.Points {
		if !in(p[0], p[1]) {
			return fmt.Errorf("points: point %d, %v, is not in the image of %d by %d pixels", i, p, width, height)
		}
	}
	return nil
}

// numbersOf returns the numbers of an array of a length.
func numbersOf(v value, n int) (out []float32, err error) {
	l, is := v.(list)
	switch {
	case !is:
		return nil, errors.New(kindOf(v))
	case len(l) != n:
		return nil, fmt.Errorf("an array of %d, not of %d", len(l), n)
	}
	for _, x := range l {
		number, is := x.(json.Number)
		if !is {
			return nil, fmt.Errorf("%s in place of a number", kindOf(x))
		}
		f, err := number.Float64()
		if err != nil || !(math.Abs(f) <= 1<<24) {
			return nil, fmt.Errorf("%.20s, want a number from %d to %d", number, -1<<24, 1<<24)
		}
		out = append(out, float32(f))
	}
	return out, nil
}
