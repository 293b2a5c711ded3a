package vision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
)

// selection says which rows of a [Tower], whose images have one size, the projector reads.
type selection struct {
	norms  bool // the tower's outputs are normalized
	from   int  // the first row that the projector reads
	each   int  // rows of an image in the text
	square int  // the side of a square of patches whose mean it reads; 0: it reads them all
}

// readTower reads vision_config, whose model_type may be missing, into c. The tower has all rows until the caller says otherwise.
func (c *connection) readTower(text []byte, standard string) (*selection, error) {
	var top struct {
		Tower json.RawMessage `json:"vision_config"`
	}
	if err := lenientJSON.Unmarshal(text, &top); err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	tower := map[string]json.RawMessage{}
	if top.Tower != nil {
		if err := lenientJSON.Unmarshal(top.Tower, &tower); err != nil {
			return nil, fmt.Errorf("vision_config: %w: %w", err, snug.ErrCorrupt)
		}
	}
	if tower["model_type"] == nil {
		tower["model_type"] = json.RawMessage(fmt.Sprintf("%q", standard))
	}
	inner, err := json.Marshal(tower)
	if err != nil {
		return nil, err
	}
	alone := false
	if c.tower, alone, err = parseConfig(inner); err != nil {
		return nil, fmt.Errorf("vision_config: %w", err)
	} else if !alone {
		return nil, fmt.Errorf("vision_config: model_type is %s, want that of a tower: %w", tower["model_type"], snug.ErrConfig)
	}
	s := &selection{norms: true, each: c.tower.Rows()}
	c.tower.Labels, c.reads = nil, c.tower.Width
	c.rows = func(Layout) (int, error) { return s.each, nil }
	c.open = func(w *modelFamily, file *amp.Weights, o layers.Options) (imageTower, error) {
		return openSquares(w, c.tower, *s, file, o)
	}
	return s, nil
}

// squares computes rows of images of one size.
type squares struct {
	*Tower
	selection
	rows []float32 // of the tower, for all images of a call
}

func openSquares(w *modelFamily, c TowerConfig, s selection, file *amp.Weights, o layers.Options) (imageTower, error) {
	f, _ := byType(c.Family)
	from := &origin{Weights: file, place: f.place(file, w.places(f))}
	if err := from.deep(c.Layers); err != nil {
		return nil, err
	}
	t, err := newTower(c, TowerOptions{Options: o, Train: func(string) bool { return false }}, from.prefix, s.norms, from)
	if err != nil {
		return nil, err
	}
	if err := t.loadParams(from, map[string]bool{}); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &squares{Tower: t, selection: s}, nil
}

// places lists how the tensors of a tower may be called in a folder.
func (w *modelFamily) places(f *towerFamily) (list []place) {
	for i := range f.spellings {
		for _, prefix := range w.towers {
			for _, outer := range []string{"", "model."} {
				list = append(list, place{outer + prefix, &f.spellings[i]})
			}
		}
	}
	slices.SortFunc(list, func(a, b place) int { return len(b.prefix) - len(a.prefix) }) // a prefix of another one comes later
	return list
}

func (t *squares) check(x Pixels) error {
	c := &t.config
	if want := c.Channels * c.Image * c.Image; len(x.Values) != want {
		return fmt.Errorf("%d elements, want %d channels of %d by %d pixels: %w", len(x.Values), c.Channels, c.Image, c.Image, snug.ErrShape)
	}
	return nil
}

func (t *squares) encode(ctx context.Context, out []float32, images []Pixels) error {
	pixels := make([][]float32, len(images))
	for i, x := range images {
		pixels[i] = x.Values
	}
	in, err := t.Sample(pixels, nil)
	if err != nil {
		return err
	}
	each := t.config.Rows() * t.config.Width
	t.rows = grown(t.rows, len(images)*each)
	if err := t.Features(ctx, t.rows, in); err != nil {
		return err
	}
	for i := range images {
		t.gather(out[i*t.each*t.config.Width:], t.rows[i*each:][:each])
	}
	return nil
}

// gather copies the rows of an image that the projector reads to dst, or means of them.
func (t *squares) gather(dst, rows []float32) {
	width := t.config.Width
	if rows = rows[t.from*width:]; t.square <= 1 {
		copy(dst, rows)
		return
	}
	side := t.config.Image / t.config.Patch
	for i := range t.each {
		y, x := i/(side/t.square)*t.square, i%(side/t.square)*t.square
		to := dst[i*width:][:width]
		clear(to)
		for j := range t.square * t.square {
			from := rows[((y+j/t.square)*side+x+j%t.square)*width:]
			for k := range to {
				to[k] += from[k]
			}
		}
		for k := range to {
			to[k] /= float32(t.square * t.square)
		}
	}
}
