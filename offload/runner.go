package offload

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
)

// Runner brings the weights of a model's layers to the devices that a [DeviceMap] names. The
// weights are tensors of a [Store], under the names of the [Weight]s. A layer whose tier has
// no Rate is copied to the device of the tier once. Every other layer is paged into one of
// two frames on the first device while the layer before it is computed, and its frame is
// reused after it: its copies wait for the kernels of the layer that had the frame, and not
// for those of the layer that is computed. The caller waits only for pages that the store
// reads, or if the Mover's ring has fewer pages than two layers. The store holds its weights in host memory or on disk, within its limits.
//
// If a device has less memory than the map says, layers are demoted: they are paged from
// then on. [Runner.Demoted] lists them.
type Runner struct {
	s       *Store
	movers  []*Mover // movers of the tiers where layers run
	layers  []Layer
	tierOf  []int
	tiers   []Tier
	group   []int
	demoted []Demotion

	weights  map[string]movable
	dtypes   map[string]snug.DType // element types on the devices
	resident map[string]kept       // by weight
	frames   []frame
	closed   bool
}

// Demotion is a layer whose weights lie in a lower tier than the map says.
type Demotion struct {
	Layer    string
	From, To string // tiers
	Err      error  // the reason; wraps snug.ErrNoMemory
}

// RunnerOptions configure a [Runner].
type RunnerOptions struct {
	// DType is the element type of weights on the devices. Tensors of another
	// floating-point type are converted, rounded to nearest. 0 keeps the type of the store.
	DType snug.DType
}

// kept is a vector on a device.
type kept struct {
	view snug.View
	free func() error
}

// frame is the memory that a paged layer passes through, by element type.
type frame map[snug.DType]kept

// NewRunner allocates memory on the devices for the layers of a map and loads the layers
// that stay. The map is a result of [Greedy] or [Optimal] for the same layers. movers has
// a Mover for the device of each tier without a Rate, in the order of the tiers. Until
// [Runner.Close] a Runner takes the bytes of the weights that stay, and two frames of the
// bytes of the largest layer that is paged, or one frame if the device has no memory for
// two. Each weight is rounded up to 64 bytes. The memory of the Movers comes on top.
//
// Errors: [snug.ErrConfig] when movers, layers and map do not fit together or the store
// lacks a tensor, [snug.ErrShape] when a tensor does not have the Bytes of its Weight,
// [snug.ErrDType] for a DType that a tensor cannot be converted to, [snug.ErrNoMemory]
// when not even one layer fits, and errors of the store and the devices.
func NewRunner(s *Store, movers []*Mover, layers []Layer, m DeviceMap, o RunnerOptions) (_ *Runner, err error) {
	r := &Runner{s: s, movers: movers, layers: layers, tiers: m.Tiers, tierOf: append([]int(nil), m.TierOf...)}
	made := false
	defer func() {
		if !made { // or the Source of a tensor did not return
			err = errors.Join(err, r.free())
		}
	}()
	if err = r.check(o); err == nil {
		err = r.allocateAll()
	}
	if err == nil {
		err = r.loadResident()
	}
	if err != nil {
		return nil, in(err, "runner")
	}
	made = true
	return r, nil
}

func (r *Runner) check(o RunnerOptions) error {
	pr, err := newPlacement(r.layers, r.tiers)
	if err != nil {
		return err
	}
	r.group = pr.group
	runs := 0
	for _, t := range r.tiers {
		if t.Rate == 0 {
			runs++
		}
	}
	for _, mover := range r.movers {
		if !mover.made() {
			return errNoMover
		}
	}
	if len(r.movers) != runs || len(r.tierOf) != len(r.layers) {
		return fmt.Errorf("%d movers and tiers of %d layers, want movers for %d tiers and tiers of %d: %w", len(r.movers), len(r.tierOf), runs, len(r.layers), snug.ErrConfig)
	}
	for i, t := range r.tierOf {
		if t < 0 || t >= len(r.tiers) || t != r.tierOf[r.first(i)] {
			return fmt.Errorf("layer %q lies in tier %d of %d, or apart from layers that it is tied to: %w", r.layers[i].Name, t, len(r.tiers), snug.ErrConfig)
		}
	}
	r.weights, r.dtypes = map[string]movable{}, map[string]snug.DType{}
	for _, l := range r.layers {
		bytes := int64(0)
		for _, w := range l.Weights {
			if err := r.find(w, o.DType); err != nil {
				return in(err, "layer %q", l.Name)
			}
			bytes += padded(int64(r.weights[w.Name].Len()), r.dtypes[w.Name])
		}
		if bytes > math.MaxInt {
			return fmt.Errorf("layer %q has %d bytes, more than the process can address: %w", l.Name, bytes, snug.ErrNoMemory)
		}
	}
	return nil
}

// first returns the first of the layers that are tied to layer i.
func (r *Runner) first(i int) int {
	for j, g := range r.group {
		if g == r.group[i] {
			return j
		}
	}
	return i
}

// find looks a weight up in the store.
func (r *Runner) find(w Weight, dt snug.DType) error {
	t, err := lookup(r.s, w.Name)
	if err != nil {
		return err
	}
	if dt == 0 {
		dt = t.dtype()
	}
	if dt != t.dtype() && !(dt.IsFloat() && t.dtype().IsFloat()) {
		return fmt.Errorf("tensor %q holds %s, which cannot be converted to %s: %w", w.Name, t.dtype(), dt, snug.ErrDType)
	}
	if bytes := int64(t.Len()) * int64(dt.Size()); bytes != w.Bytes {
		return fmt.Errorf("tensor %q has %d bytes as %s, want %d: %w", w.Name, bytes, dt, w.Bytes, snug.ErrShape)
	}
	r.weights[w.Name], r.dtypes[w.Name] = t, dt
	return nil
}

// paged reports whether a layer is paged.
func (r *Runner) paged(layer int) bool { return r.tiers[r.tierOf[layer]].Rate > 0 }

// Tier returns the name of the tier of a layer, which a demotion changes.
// It is empty for a layer that does not exist.
func (r *Runner) Tier(layer int) string {
	if r == nil || layer < 0 || layer >= len(r.tierOf) {
		return ""
	}
	return r.tiers[r.tierOf[layer]].Name
}

// Demoted lists the layers that lie in a lower tier than the map says, and why.
func (r *Runner) Demoted() []Demotion {
	if r == nil {
		return nil
	}
	return r.demoted
}

// View returns a weight that stays on its device, for example to bind it with
// [Updater.Bind], and false for a weight that is paged.
func (r *Runner) View(name string) (snug.View, bool) {
	if r == nil {
		return snug.View{}, false
	}
	k, ok := r.resident[name]
	return k.view, ok
}

// Close frees the memory on the devices, whose queued work must be done. Closing twice
// does nothing; afterwards passes return [snug.ErrConfig].
func (r *Runner) Close() error {
	if r == nil || r.closed {
		return nil
	}
	r.closed = true
	if err := r.free(); err != nil {
		return in(err, "close runner")
	}
	return nil
}

// Forward calls do for every layer, from the first to the last, with the layer's weights in
// their order, on the device where the layer runs. Kernels that do queues see the weights.
// do and its kernels may read the weights, until do has returned and the kernels are done,
// and may not change them. While do runs, the next paged layer is copied.
//
// Errors: the error of do or of ctx, unchanged; [snug.ErrConfig] when do or ctx is nil or the
// Runner is closed; errors of the store and the devices.
func (r *Runner) Forward(ctx context.Context, do func(layer int, weights []snug.View) error) error {
	return r.run(ctx, do, func(i int) int { return i })
}

// Backward is [Runner.Forward] from the last layer to the first.
func (r *Runner) Backward(ctx context.Context, do func(layer int, weights []snug.View) error) error {
	return r.run(ctx, do, func(i int) int { return len(r.layers) - 1 - i })
}

// coming is a paged layer on its way.
type coming struct {
	views []snug.View
	moves Move
	read  *task
	point driver.Fence // after which the frame may be written; nil if moves take their turn in the queue
}

// arrive waits until the layer is read, and makes the device wait for the rest.
func (c *coming) arrive() (err error) {
	arrived := false
	defer func() {
		if c.point != nil {
			c.point.Release()
		}
		if !arrived { // or a Source did not return
			err = errors.Join(err, c.moves.Wait())
		}
	}()
	if err := c.read.wait(); err != nil {
		return err
	}
	arrived = true
	return c.moves.Await()
}

// usable returns why r has no weights.
func (r *Runner) usable() error {
	if r == nil || r.s == nil || r.closed {
		return fmt.Errorf("offload: the runner is nil or closed, or was not made by NewRunner: %w", snug.ErrConfig)
	}
	return nil
}

// run calls do for every layer; layerAt returns the i-th.
func (r *Runner) run(ctx context.Context, do func(int, []snug.View) error, layerAt func(i int) int) (err error) {
	if err := r.usable(); err != nil {
		return err
	}
	if ctx == nil || do == nil {
		return fmt.Errorf("offload: runner: the context or the function is nil: %w", snug.ErrConfig)
	}
	var next *coming
	defer func() {
		if next != nil { // a page under way uses the frames
			err = errors.Join(err, next.arrive(), next.moves.Wait())
		}
	}()
	started := 0
	// begin starts the next paged layer of the order, if there is one.
	begin := func(at int) {
		next = nil
		for ; at < len(r.layers) && next == nil; at++ {
			if layer := layerAt(at); r.paged(layer) {
				next = r.begin(layer, r.frames[started%len(r.frames)])
				started++
			}
		}
	}
	begin(0)
	for at := range r.layers {
		layer := layerAt(at)
		if err := ctx.Err(); err != nil {
			return err
		}
		if !r.paged(layer) {
			if err := do(layer, r.residentViews(layer)); err != nil {
				return err
			}
			continue
		}
		now := next
		next = nil
		if err := now.arrive(); err != nil {
			return in(err, "page layer %q in", r.layers[layer].Name)
		}
		if len(r.frames) > 1 {
			begin(at + 1)
		}
		if err := do(layer, now.views); err != nil {
			return err
		}
		if len(r.frames) == 1 {
			begin(at + 1)
		}
	}
	return nil
}

func (r *Runner) residentViews(layer int) []snug.View {
	views := make([]snug.View, len(r.layers[layer].Weights))
	for i, w := range r.layers[layer].Weights {
		views[i] = r.resident[w.Name].view
	}
	return views
}

// begin starts to page a layer into a frame, which kernels queued so far may use. A goroutine reads the store meanwhile.
// Its copies wait for those kernels alone, and not for what the caller queues while it reads.
func (r *Runner) begin(layer int, f frame) *coming {
	c := &coming{}
	var err error
	if c.point, err = r.movers[0].point(); err != nil {
		c.read = inBackground(func() error { return err })
		return c
	}
	used := map[snug.DType]int{}
	for _, w := range r.layers[layer].Weights {
		dt := r.dtypes[w.Name]
		n := r.weights[w.Name].Len()
		view, err := f[dt].view.Slice(used[dt], used[dt]+n)
		if err != nil {
			c.read = inBackground(func() error { return err })
			return c
		}
		used[dt] += padded(n, dt) / dt.Size()
		c.views = append(c.views, view)
	}
	c.read = inBackground(func() error {
		for i, w := range r.layers[layer].Weights {
			move, err := r.weights[w.Name].loadAfter(r.movers[0], c.views[i], 0, after{point: c.point})
			if err != nil {
				return err
			}
			c.moves.join(move)
		}
		return nil
	})
	return c
}

// padded returns the bytes of n elements, rounded up to 64.
func padded[N int | int64](n N, dt snug.DType) N { return roundUp(n*N(dt.Size()), alignment) }
