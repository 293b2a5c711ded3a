package vision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
)

// grid is a tower of images of any size, which come as rows of patches: the pixels of a patch, in squares of Merge by Merge patches, of
// which the projector makes one row each. Patches of an image, or of a frame, see each other alone. Their rows and columns turn the queries
// and keys. The tower's rows lie in the order of windows, and go back to that of squares after it.
type grid struct {
	patch  int // elements of a patch: channels, frames, rows, columns
	merge  int
	window int // squares along the side of a window; 0: there are none
	width  int // of a row
	blocks int
	rope   layers.Rope
	// parts returns the layers in parts, one after the other. Parameters have names behind a prefix, and angles turn by the patches'
	// places.
	parts func(prefix string, angles *layers.Angles) [][]layers.Layer
	reads []int // the parts whose rows the projector reads, in its order
	// side, unless 0, is that of a table of learned positions, which are interpolated to the grid of an image and added to the rows of the
	// first part. There are places rows in the table.
	side, places int
}

// unit returns the patches of a square.
func (g *grid) unit() int { return g.merge * g.merge }

// axialRope returns the rope of heads, half of whose pairs turn by the row, and half by the column.
func axialRope(theta float64, dim int) layers.Rope {
	return layers.Rope{Kind: layers.RopeAxial, Theta: theta, Dim: dim, Sections: [3]int{0, dim / 4, dim / 4}}
}

// rows returns the squares of an image.
func (g *grid) rows(l Layout) (int, error) {
	rows, columns := l.Grid[1]/g.merge, l.Grid[2]/g.merge
	switch {
	case l.Merge != g.merge || l.Grid[0] < 1 || rows < 1 || columns < 1 || rows*g.merge != l.Grid[1] || columns*g.merge != l.Grid[2]:
		return 0, fmt.Errorf("a grid of %v patches, %d of which are merged along a side: want squares of %d by %d: %w", l.Grid, l.Merge, g.merge, g.merge, snug.ErrShape)
	case l.Grid[0] > mostTokens/rows || l.Grid[0]*rows > mostTokens/columns:
		return 0, fmt.Errorf("a grid of %v patches, want at most %d tokens: %w", l.Grid, mostTokens, snug.ErrShape)
	}
	return l.Grid[0] * rows * columns, nil
}

// gridTower computes rows of such images.
type gridTower struct {
	*grid
	model   *layers.Model
	angles  *layers.Angles
	outer   string     // what the names of tensors in the folder begin with
	table   *positions // unless nil, it is added to the rows of the first part
	x, y    []float32  // its input, and rows of a part, for all images of a call
	running struct {   // the call
		placed
		images []Pixels
		out    []float32
		read   []float32 // the gradient of what the projector reads, in its backward pass
	}
}

// open reads a tower whose tensors have a prefix, which may follow "model.".
func (g *grid) open(prefix string, file *amp.Weights, o TowerOptions) (imageTower, error) {
	last, outer := fmt.Sprintf("%sblocks.%d.norm1.weight", prefix, g.blocks-1), ""
	if !hasTensor(file, last) {
		if outer = "model."; !hasTensor(file, outer+last) {
			return nil, fmt.Errorf("the file lacks %s, of the last of %d blocks by depth in %s: %w", last, g.blocks, configName, snug.ErrConfig)
		}
	}
	t := &gridTower{grid: g, angles: layers.NewAngles(g.rope, o.Device), outer: outer}
	parts, err := g.parts(prefix, t.angles), error(nil)
	if g.side > 0 {
		t.table = newPositions(t, prefix)
	}
	list := layers.Sequential(t.join(parts))
	list.Params(func(p *layers.Param) bool {
		err = cmp.Or(err, checkTensor(file, outer+p.Name, p.Shape))
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	var loss layers.Loss = layers.MSE{}
	if o.over != nil {
		loss = o.over
	}
	if t.model, err = layers.NewModel(g.patch, loss, o.Options, freeze(list, loss, o.Train)...); err != nil {
		return nil, err
	}
	if err = t.load(file); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// stack returns the layers of a tower that nobody opened.
func (g *grid) stack() []layers.Layer {
	t := &gridTower{grid: g, angles: layers.NewAngles(g.rope, nil)}
	if g.side > 0 {
		t.table = newPositions(t, "")
	}
	return t.join(g.parts("", t.angles))
}

// join returns the layers of all parts, with those between them that add positions, and that take rows which the projector reads.
func (t *gridTower) join(parts [][]layers.Layer) (list []layers.Layer) {
	for i, part := range parts {
		if list = append(list, part...); i == 0 && t.table != nil {
			list = append(list, t.table)
		}
		if i < len(parts)-1 && slices.Contains(t.reads, i) {
			list = append(list, tapped{t, i})
		}
	}
	return list
}

// load reads the parameters.
func (t *gridTower) load(file *amp.Weights) error {
	return file.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range t.model.Params() {
			if !yield(t.outer+p.Name, p.Value) {
				return
			}
		}
	})
}

func hasTensor(w *amp.Weights, name string) bool {
	_, has := w.Tensor(name)
	return has
}

// Close implements imageTower.
func (t *gridTower) Close() error { return errors.Join(t.model.Close(), t.angles.Close()) }

func (t *gridTower) check(x Pixels) error {
	if want := int64(x.Grid[0]) * int64(x.Grid[1]) * int64(x.Grid[2]) * int64(t.patch); int64(len(x.Values)) != want {
		return fmt.Errorf("%d elements, want those of %v patches of %d: %w", len(x.Values), x.Grid, t.patch, snug.ErrShape)
	}
	return nil
}

func (t *gridTower) encode(ctx context.Context, out []float32, images []Pixels) error {
	in, err := t.begin(out, images)
	if err != nil {
		return err
	}
	defer t.end()
	t.y = grown(t.y, len(t.running.order)*t.unit()*t.width)
	if err := t.model.Predict(ctx, t.y, in); err != nil {
		return err
	}
	return t.read(t.y)
}

// begin implements imageTower.
func (t *gridTower) begin(out []float32, images []Pixels) (layers.Sample, error) {
	p := placed{grid: t.grid, starts: []int{0}}
	if t.window > 0 {
		p.parts = []int{0}
	}
	for _, x := range images {
		p.add(x.Grid)
	}
	in := t.unit() * t.patch
	t.x = grown(t.x, len(p.order)*in)
	p.eachImage(images, func(x Pixels, at, n int) {
		for i, from := range p.order[at:][:n] {
			copy(t.x[(at+i)*in:][:in], x.Values[(from-at)*in:])
		}
	})
	t.running.placed, t.running.images, t.running.out = p, images, out
	return layers.Sample{X: t.x, Starts: p.starts, Parts: p.parts, Positions: p.positions[:]}, nil
}

func (t *gridTower) end() { t.running.images, t.running.out, t.running.read = nil, nil, nil }

// read implements imageTower: the rows are those of the last part that the projector reads.
func (t *gridTower) read(rows []float32) error {
	t.collect(rows, slices.Max(t.reads))
	return nil
}

// spread implements imageTower. Layers in between add the gradients of other parts.
func (t *gridTower) spread(rows, read []float32) {
	t.running.read = read
	t.uncollect(rows, slices.Max(t.reads))
}

// eachRead calls do for each square of a part that the projector reads, with its place in the rows of the part, and among what the projector
// reads, where groups lie one behind the other in an image.
func (t *gridTower) eachRead(part int, do func(row, read int)) {
	call := &t.running
	for group, from := range t.reads {
		if from != part {
			continue
		}
		call.eachImage(call.images, func(_ Pixels, at, n int) {
			first := at*len(t.reads) + group*n
			for i, to := range call.order[at:][:n] {
				do(at+i, first+to-at)
			}
		})
	}
}

// collect copies the rows of a part that the projector reads.
func (t *gridTower) collect(rows []float32, part int) {
	each := t.unit() * t.width
	t.eachRead(part, func(row, read int) { copy(t.running.out[read*each:][:each], rows[row*each:]) })
}

// uncollect is the transpose of collect.
func (t *gridTower) uncollect(rows []float32, part int) {
	each := t.unit() * t.width
	clear(rows)
	t.eachRead(part, func(row, read int) { // a part may be read twice
		for i, v := range t.running.read[read*each:][:each] {
			rows[row*each+i] += v
		}
	})
}

// sizes implements imageTower.
func (t *gridTower) sizes(l Layout) (frames, patches int, err error) {
	return l.Grid[0], l.Grid[1] * l.Grid[2], nil
}

func (t *gridTower) trainer() *layers.Model { return t.model }

// values implements imageTower.
func (t *gridTower) values() map[string]snug.View {
	list := map[string]snug.View{}
	for _, p := range t.model.Params() {
		if p.Trains {
			list[t.outer+p.Name] = p.Value
		}
	}
	return list
}

// placed says where the squares of images are in the rows of a tower.
type placed struct {
	*grid
	order     []int      // the square of each place
	starts    []int      // of frames, in rows of patches
	parts     []int      // of windows
	positions [3][]int32 // of each patch: 0, its row and its column
}

// eachImage calls do for each image, with its first square and how many it has.
func (p *placed) eachImage(images []Pixels, do func(x Pixels, at, n int)) {
	at := 0
	for _, x := range images {
		n := x.Grid[0] * x.Grid[1] * x.Grid[2] / p.unit()
		do(x, at, n)
		at += n
	}
}

// add places an image.
func (p *placed) add(of [3]int) {
	rows, columns := of[1]/p.merge, of[2]/p.merge
	first := len(p.order)
	for range of[0] {
		p.eachSquare(rows, columns, func(y, x int) {
			p.order = append(p.order, first+y*columns+x)
			for i := range p.unit() {
				p.positions[0] = append(p.positions[0], 0)
				p.positions[1] = append(p.positions[1], int32(y*p.merge+i/p.merge))
				p.positions[2] = append(p.positions[2], int32(x*p.merge+i%p.merge))
			}
		})
		first += rows * columns
		p.starts = append(p.starts, len(p.order)*p.unit())
	}
}

// eachSquare calls do for the squares of a frame, window by window.
func (p *placed) eachSquare(rows, columns int, do func(y, x int)) {
	high, wide := rows, columns
	if p.window > 0 {
		high, wide = p.window, p.window
	}
	for y0 := 0; y0 < rows; y0 += high {
		for x0 := 0; x0 < columns; x0 += wide {
			for y := y0; y < min(y0+high, rows); y++ {
				for x := x0; x < min(x0+wide, columns); x++ {
					do(y, x)
				}
			}
			if p.window > 0 {
				p.parts = append(p.parts, len(p.order)*p.unit())
			}
		}
	}
}
