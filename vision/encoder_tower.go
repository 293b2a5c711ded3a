package vision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/layers"
)

// selection says which rows of a [Tower], whose images have one size, the projector reads.
type selection struct {
	norms bool // the tower's outputs are normalized
	from  int  // the first row that the projector reads
	each  int  // rows of the text for what the tower sees at once: an image, or a tile of it
	// gather writes what the projector reads of the rows; nil: the rows themselves
	gather func(dst, rows []float32)
	// scatter is the transpose of gather, which writes the gradient of all rows
	scatter func(drows, dread []float32)
	// count returns how many tiles an image has, each of the size of the tower's images; nil: one. The error wraps [snug.ErrShape].
	count func(l Layout) (int, error)
	// pack writes what the projector reads of an image from what it would read of its tiles, one after the other, and returns how many
	// elements that are; nil: what it reads of the tiles.
	pack func(dst, tiles []float32, l Layout) int
	// unpack is the transpose of pack: it writes the gradients of the tiles, and returns how many elements it read.
	unpack func(dtiles, src []float32, l Layout) int
	reads  int // elements that the projector reads for a tile
}

// of returns the tiles of an image.
func (s *selection) of(l Layout) (int, error) {
	if s.count == nil {
		return 1, nil
	}
	return s.count(l)
}

// readTower reads vision_config, whose model_type may be missing, or does not count where only says so, into c. The tower has all rows until
// the caller says otherwise.
func (c *connection) readTower(text []byte, standard string, only bool) (*selection, error) {
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
	if tower["model_type"] == nil || only {
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
	c.rows = func(l Layout) (int, error) {
		n, err := s.of(l)
		return n * s.each, err
	}
	c.patches = func(rows int64) int64 {
		each := int64(max(1, s.each))
		return saturate.Mul(rows/each+min(1, rows%each), int64(c.tower.Rows()))
	}
	c.stack = func() ([]layers.Layer, int) {
		f, _ := byType(c.tower.Family)
		list, _ := (&Tower{config: c.tower, family: f}).stages(TowerOptions{}, f.prefix, s.norms)
		return list, c.tower.Channels * c.tower.Patch * c.tower.Patch
	}
	c.open = func(w *modelFamily, file *amp.Weights, o TowerOptions) (imageTower, error) {
		s.reads = s.each * c.reads
		return openSquares(w, c.tower, *s, file, o)
	}
	return s, nil
}

// squares computes rows of images of one size.
type squares struct {
	*Tower
	selection
	names *origin   // which has the names of its tensors in the folder
	rows  []float32 // of the tower, for all tiles of a call
	tiles []float32 // what the projector would read of the tiles of an image
	// of a call
	images []Pixels
	out    []float32
}

func openSquares(w *modelFamily, c TowerConfig, s selection, file *amp.Weights, o TowerOptions) (imageTower, error) {
	f, _ := byType(c.Family)
	from := &origin{Weights: file, place: f.place(file, w.places(f))}
	if err := from.deep(c.Layers); err != nil {
		return nil, err
	}
	t, err := newTower(c, o, from.prefix, s.norms, from)
	if err != nil {
		return nil, err
	}
	if err := t.loadParams(from, map[string]bool{}); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &squares{Tower: t, selection: s, names: from}, nil
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
	n, err := t.of(x.Layout)
	if pixels := c.Channels * c.Image * c.Image; err == nil && (len(x.Values)/pixels != n || len(x.Values)%pixels != 0) {
		err = fmt.Errorf("%d elements, want %d times %d channels of %d by %d pixels: %w", len(x.Values), n, c.Channels, c.Image, c.Image, snug.ErrShape)
	}
	return err
}

// sampleOf returns the patches of the tiles of images.
func (t *squares) sampleOf(images []Pixels) (layers.Sample, error) {
	var tiles [][]float32
	for _, x := range images {
		tiles = slices.AppendSeq(tiles, slices.Chunk(x.Values, t.config.Channels*t.config.Image*t.config.Image))
	}
	return t.Sample(tiles, nil)
}

func (t *squares) encode(ctx context.Context, out []float32, images []Pixels) error {
	in, err := t.sampleOf(images)
	if err != nil {
		return err
	}
	t.rows = grown(t.rows, in.Sequences*t.config.Rows()*t.config.Width)
	if err := t.Features(ctx, t.rows, in); err != nil {
		return err
	}
	return t.collect(out, t.rows, images)
}

// collect writes what the projector reads of the rows of images.
func (t *squares) collect(out, rows []float32, images []Pixels) error {
	c := &t.config
	each := c.Rows() * c.Width
	for _, x := range images {
		n, err := t.of(x.Layout)
		if err != nil {
			return err
		}
		dst := out
		if t.pack != nil {
			t.tiles = grown(t.tiles, n*t.reads)
			dst = t.tiles
		}
		for i := range n {
			tile := dst[i*t.reads:][:t.reads]
			if t.gather == nil {
				copy(tile, rows[t.from*c.Width:each])
			} else {
				t.gather(tile, rows[t.from*c.Width:each])
			}
			rows = rows[each:]
		}
		used := n * t.reads
		if t.pack != nil {
			used = t.pack(out, t.tiles, x.Layout)
		}
		out = out[used:]
	}
	return nil
}

// sizes implements imageTower.
func (t *squares) sizes(l Layout) (tiles, patches int, err error) {
	tiles, err = t.of(l)
	return tiles, t.config.Rows(), err
}

func (t *squares) trainer() *layers.Model { return t.Model }

func (t *squares) begin(out []float32, images []Pixels) (layers.Sample, error) {
	t.out, t.images = out, images
	return t.sampleOf(images)
}

func (t *squares) end() { t.out, t.images = nil, nil }

func (t *squares) read(rows []float32) error { return t.collect(t.out, rows, t.images) }

// spread implements imageTower: it is the transpose of collect.
func (t *squares) spread(rows, read []float32) {
	c := &t.config
	clear(rows)
	each := c.Rows() * c.Width
	for _, x := range t.images {
		n, _ := t.of(x.Layout) // which collect has checked
		tiles, used := read, n*t.reads
		if t.unpack != nil {
			t.tiles = grown(t.tiles, n*t.reads)
			clear(t.tiles)
			tiles, used = t.tiles, t.unpack(t.tiles, read, x.Layout)
		}
		for i := range n {
			if tile := tiles[i*t.reads:][:t.reads]; t.scatter == nil {
				copy(rows[t.from*c.Width:each], tile)
			} else {
				t.scatter(rows[t.from*c.Width:each], tile)
			}
			rows = rows[each:]
		}
		read = read[used:]
	}
}

// values implements imageTower.
func (t *squares) values() map[string]snug.View {
	list := map[string]snug.View{}
	for _, p := range t.Model.Params() {
		if p.Trains {
			list[t.names.slot(t.Tower, p).tensor] = p.Value
		}
	}
	return list
}
