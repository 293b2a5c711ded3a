package offload

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
)

// allocateAll allocates the frames and the layers that stay. Layers that do not fit are
// demoted.
func (r *Runner) allocateAll() error {
	for {
		layer, err := r.allocate()
		if err == nil {
			return nil
		}
		if err := r.free(); err != nil {
			return err
		}
		if !errors.Is(err, snug.ErrNoMemory) || layer < 0 {
			return err
		}
		if err := r.demote(layer, err); err != nil {
			return err
		}
	}
}

// allocate makes all vectors. When it fails it returns the layer to demote, -1 if there
// is none.
func (r *Runner) allocate() (layer int, err error) {
	if err := r.allocateFrames(); err != nil {
		return r.largest(), err
	}
	r.resident = map[string]kept{}
	for i, l := range r.layers {
		if r.paged(i) {
			continue
		}
		for _, w := range l.Weights {
			if _, ok := r.resident[w.Name]; ok {
				continue
			}
			k, err := allocate(r.movers[r.tierOf[i]].dev, r.dtypes[w.Name], r.weights[w.Name].Len())
			if err != nil {
				return i, err
			}
			r.resident[w.Name] = k
		}
	}
	return -1, nil
}

// allocateFrames makes two frames for the layers that are paged, or one if only one fits
// and no layer is left to demote.
func (r *Runner) allocateFrames() error {
	lens := map[snug.DType]int{}
	for i, l := range r.layers {
		if !r.paged(i) {
			continue
		}
		own := map[snug.DType]int{}
		for _, w := range l.Weights {
			dt := r.dtypes[w.Name]
			own[dt] += padded(r.weights[w.Name].Len(), dt) / dt.Size()
			lens[dt] = max(lens[dt], own[dt])
		}
	}
	for range 2 {
		f := frame{}
		r.frames = append(r.frames, f)
		for dt, n := range lens {
			k, err := allocate(r.movers[0].dev, dt, n)
			if err == nil {
				f[dt] = k
				continue
			}
			if errors.Is(err, snug.ErrNoMemory) && len(r.frames) == 2 && r.largest() < 0 {
				r.frames = r.frames[:1]
				return f.free()
			}
			return fmt.Errorf("a frame for layers that are paged: %w", err)
		}
	}
	return nil
}

// largest returns the largest layer that stays on the first device, -1 if none does.
func (r *Runner) largest() int {
	found, most := -1, int64(0)
	for i, l := range r.layers {
		if b := l.Bytes(); r.tierOf[i] == 0 && b > most {
			found, most = i, b
		}
	}
	return found
}

func allocate(dev *snug.Device, dt snug.DType, n int) (k kept, err error) {
	k.view, k.free, err = snug.MakeView(dev, dt, n)
	return k, err
}

// demote moves a layer, and the layers that are tied to it, to the next tier that pages.
func (r *Runner) demote(layer int, why error) error {
	from, to := r.tierOf[layer], -1
	for t := from + 1; t < len(r.tiers) && to < 0; t++ {
		if r.tiers[t].Rate > 0 {
			to = t
		}
	}
	if to < 0 {
		return fmt.Errorf("layer %q does not fit in %s, and there is no tier to page it from: %w", r.layers[layer].Name, r.tiers[from].Name, why)
	}
	for i := range r.layers {
		if r.group[i] == r.group[layer] {
			r.tierOf[i] = to
			r.demoted = append(r.demoted, Demotion{r.layers[i].Name, r.tiers[from].Name, r.tiers[to].Name, why})
		}
	}
	return nil
}

// loadResident copies the weights that stay.
func (r *Runner) loadResident() error {
	done := map[string]bool{}
	for i, l := range r.layers {
		if r.paged(i) {
			continue
		}
		for _, w := range l.Weights {
			if done[w.Name] {
				continue
			}
			done[w.Name] = true
			move, err := r.weights[w.Name].LoadTo(r.movers[r.tierOf[i]], r.resident[w.Name].view, 0)
			if err == nil {
				err = move.Await()
			}
			if err != nil {
				return in(err, "load layer %q", l.Name)
			}
		}
	}
	return nil
}

// Reload copies the weights that stay from the store again, after they changed there without
// a binding. Kernels that are queued see the old weights, later kernels the new ones. It
// returns errors of the store and the devices.
func (r *Runner) Reload() error {
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.loadResident(); err != nil {
		return in(err, "runner")
	}
	return nil
}

// free gives all vectors back.
func (r *Runner) free() error {
	var errs []error
	for _, k := range r.resident {
		errs = append(errs, k.free())
	}
	for _, f := range r.frames {
		errs = append(errs, f.free())
	}
	r.resident, r.frames = nil, nil
	return errors.Join(errs...)
}

func (f frame) free() error {
	var errs []error
	for _, k := range f {
		errs = append(errs, k.free())
	}
	return errors.Join(errs...)
}

// movable is a Tensor of any element type.
type movable interface {
	Len() int
	LoadTo(m *Mover, dst snug.View, off int) (Move, error)
	loadAfter(m *Mover, dst snug.View, off int, after after) (Move, error)
	dtype() snug.DType
	writable() error
	// put rounds src into the elements that begin at off.
	put(src []float32, off int) error
}

func (t *Tensor[T]) dtype() snug.DType { return t.obj.dtype }

func (t *Tensor[T]) writable() error {
	if t.obj.source != nil {
		return fmt.Errorf("offload: tensor %q is attached, and so read-only: %w", t.obj.name, snug.ErrConfig)
	}
	return nil
}

func (t *Tensor[T]) put(src []float32, off int) error {
	return t.walk(off, len(src), true, func(page Page[T], part []T, done int) error {
		page.p.elements.Lock()
		roundTask.Run(chunksOf(len(part)), roundArgs{snug.SliceView(part), src[done : done+len(part)]})
		page.p.elements.Unlock()
		return page.Unpin(true)
	})
}

// lookup returns the tensor of a name.
func lookup(s *Store, name string) (movable, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	obj := s.objects[name]
	if obj == nil || obj.dtype == 0 {
		return nil, fmt.Errorf("the store has no tensor %q: %w", name, snug.ErrConfig)
	}
	switch obj.dtype {
	case snug.F32:
		return &Tensor[float32]{s, obj}, nil
	case snug.F16:
		return &Tensor[snug.Float16]{s, obj}, nil
	case snug.BF16:
		return &Tensor[snug.BFloat16]{s, obj}, nil
	case snug.I32:
		return &Tensor[int32]{s, obj}, nil
	case snug.F8E4M3:
		return &Tensor[snug.Float8E4M3]{s, obj}, nil
	case snug.F8E5M2:
		return &Tensor[snug.Float8E5M2]{s, obj}, nil
	}
	return &Tensor[uint8]{s, obj}, nil
}
