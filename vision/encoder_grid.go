package vision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
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

// positionsName is the table's.
const positionsName = "pos_embed.weight"

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
	model     *layers.Model
	angles    *layers.Angles
	positions []float32
	x, y      []float32 // its input, and rows of a part, for all images of a call
	running   struct {  // the call
		placed
		images []Pixels
		out    []float32
	}
}

// open reads a tower whose tensors have a prefix, which may follow "model.".
func (g *grid) open(prefix string, file *amp.Weights, o layers.Options) (imageTower, error) {
	last, outer := fmt.Sprintf("%sblocks.%d.norm1.weight", prefix, g.blocks-1), ""
	if !hasTensor(file, last) {
		if outer = "model."; !hasTensor(file, outer+last) {
			return nil, fmt.Errorf("the file lacks %s, of the last of %d blocks by depth in %s: %w", last, g.blocks, configName, snug.ErrConfig)
		}
	}
	t := &gridTower{grid: g, angles: layers.NewAngles(g.rope, o.Device)}
	parts, err := g.parts(prefix, t.angles), error(nil)
	for _, list := range parts {
		layers.Sequential(list).Params(func(p *layers.Param) bool {
			err = cmp.Or(err, checkTensor(file, outer+p.Name, p.Shape))
			return err == nil
		})
	}
	if g.side > 0 {
		err = cmp.Or(err, checkTensor(file, outer+prefix+positionsName, []int{g.places, g.width}))
	}
	if err != nil {
		return nil, err
	}
	if t.model, err = layers.NewModel(g.patch, layers.MSE{}, o, freeze(t.join(parts), layers.MSE{}, func(string) bool { return false })...); err != nil {
		return nil, err
	}
	if err = t.load(file, outer, prefix); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// join returns the layers of all parts, with those between them that add positions, and that take rows which the projector reads.
func (t *gridTower) join(parts [][]layers.Layer) (list []layers.Layer) {
	for i, part := range parts {
		if list = append(list, part...); i == 0 && t.side > 0 {
			list = append(list, between{t.width, t.addPositions})
		}
		if i < len(parts)-1 && slices.Contains(t.reads, i) {
			list = append(list, between{t.width, func(rows snug.View) error {
				low, _, err := snug.MakeView(snug.CPU(), rows.DType(), rows.Len())
				if err == nil {
					err = snug.Copy(low, rows)
				}
				if err == nil {
					err = amp.Cast(t.y, low)
				}
				t.collect(i)
				return err
			}})
		}
	}
	return list
}

// between is a layer of a frozen tower that calls do with its rows, which are those of the layer before it.
type between struct {
	width int
	do    func(rows snug.View) error
}

// Width implements [layers.Layer].
func (b between) Width(in int) (int, error) {
	if in != b.width {
		return 0, fmt.Errorf("rows of %d elements, want %d: %w", in, b.width, snug.ErrShape)
	}
	return in, nil
}

// Params implements [layers.Layer].
func (between) Params(func(*layers.Param) bool) {}

// Forward implements [layers.Layer].
func (b between) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	y := p.Get(b.width)
	p.Do(func() error { return snug.Copy(y.View, x.View) })
	p.Do(func() error { return b.do(y.View) })
	return y
}

// ForwardSave implements [layers.Layer]. It keeps the output alone.
func (b between) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	y := b.Forward(p, x)
	return y, output{y}
}

// Backward implements [layers.Layer].
func (between) Backward(_ *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	return dy
}

// load reads the parameters, and the table of positions.
func (t *gridTower) load(file *amp.Weights, outer, prefix string) error {
	err := file.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range t.model.Params() {
			if !yield(outer+p.Name, p.Value) {
				return
			}
		}
	})
	if err == nil && t.side > 0 {
		t.positions = make([]float32, t.places*t.width)
		err = file.Load(outer+prefix+positionsName, snug.ViewOf(t.positions))
	}
	return err
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
	p := placed{grid: t.grid, starts: []int{0}}
	if t.window > 0 {
		p.parts = []int{0}
	}
	for _, x := range images {
		p.add(x.Grid)
	}
	in, each := t.unit()*t.patch, t.unit()*t.width
	t.x = grown(t.x, len(p.order)*in)
	p.eachImage(images, func(x Pixels, at, n int) {
		for i, from := range p.order[at:][:n] {
			copy(t.x[(at+i)*in:][:in], x.Values[(from-at)*in:])
		}
	})
	t.y = grown(t.y, len(p.order)*each)
	t.running.placed, t.running.images, t.running.out = p, images, out
	defer func() { t.running.images, t.running.out = nil, nil }()
	if err := t.model.Predict(ctx, t.y, layers.Sample{X: t.x, Starts: p.starts, Parts: p.parts, Positions: p.positions[:]}); err != nil {
		return err
	}
	t.collect(slices.Max(t.reads))
	return nil
}

// collect copies the rows of a part that the projector reads, whose groups lie one behind the other in an image.
func (t *gridTower) collect(part int) {
	call, each := &t.running, t.unit()*t.width
	for group, from := range t.reads {
		if from != part {
			continue
		}
		call.eachImage(call.images, func(_ Pixels, at, n int) {
			first := at*len(t.reads) + group*n
			for i, to := range call.order[at:][:n] {
				copy(call.out[(first+to-at)*each:][:each], t.y[(at+i)*each:])
			}
		})
	}
}

// addPositions adds the learned positions to rows.
func (t *gridTower) addPositions(rows snug.View) (err error) {
	call := &t.running
	call.eachImage(call.images, func(x Pixels, at, n int) {
		high, wide := x.Grid[1], x.Grid[2]
		s := conv.ResizeShape{Batch: 1, Channels: t.width, Dims: 2, Size: [3]int{t.side, t.side}, Out: [3]int{high, wide}, Interpolation: conv.Linear, AlignCorners: true, Layout: conv.ChannelsLast}
		table := make([]float32, high*wide*t.width)
		err = cmp.Or(err, conv.Resize(table, t.positions[:t.side*t.side*t.width], s, make([]float32, s.WorkspaceLen())))
		for i := at * t.unit(); i < (at+n)*t.unit(); i++ {
			copy(t.y[i*t.width:][:t.width], table[(int(call.positions[1][i])*wide+int(call.positions[2][i]))*t.width:])
		}
	})
	if err != nil {
		return err
	}
	low, _, err := snug.MakeView(snug.CPU(), rows.DType(), rows.Len())
	if err == nil {
		err = amp.Cast(low, t.y)
	}
	if err != nil {
		return err
	}
	v, free, err := snug.MakeView(rows.Device(), rows.DType(), rows.Len())
	if err != nil {
		return err
	}
	if err = snug.Copy(v, low); err == nil {
		err = fused.Add(rows, rows, v)
	}
	return errors.Join(err, free())
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
