package offload

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// Accumulate adds weight·g to the gradient of elements lo to lo+g.Len()-1 of a parameter,
// in float32: the product and the sum are both rounded. g is of any floating-point type,
// on any device, and may be reused when Accumulate returns. When g is the gradient of a
// mean over the n targets of a micro-batch, and its window has N targets, weight is n/N.
//
// Errors that add nothing: [snug.ErrConfig] for a name that was not added or a weight that is
// not finite, [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice]. After an error of the store
// or the device the pages before the error have their gradient added.
func (u *Updater) Accumulate(name string, lo int, g snug.View, weight float32) error {
	if err := u.begun(); err != nil {
		return err
	}
	p, err := u.param(name)
	switch {
	case err != nil:
		return err
	case !finite(weight):
		return fmt.Errorf("offload: updater: gradient of %q with weight %g, want a finite number: %w", name, weight, snug.ErrConfig)
	case g.Len() > 0 && !g.DType().IsFloat():
		return fmt.Errorf("offload: updater: gradient of %q is %s, want a floating-point type: %w", name, g.DType(), snug.ErrDType)
	}
	if _, err := snug.CommonDevice(g); err != nil {
		return in(err, "updater: gradient of %q", name)
	}
	onHost := g.Device().IsCPU()
	return p.grads[u.set].walk(lo, g.Len(), false, func(page Page[float32], acc []float32, done int) error {
		var err error
		if onHost {
			addTask.Run(chunksOf(len(acc)), addArgs{acc, g, done, weight})
		} else {
			err = u.addStaged(acc, g, done, weight)
		}
		return errors.Join(err, page.Unpin(true))
	})
}

// addStaged is addTask for the elements of g that begin at done. g lies on a device.
func (u *Updater) addStaged(acc []float32, g snug.View, done int, weight float32) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	host := u.staged(g.DType(), len(acc))
	from, err := g.Slice(done, done+len(acc))
	if err == nil && u.moves(from) {
		var move Move
		if move, err = u.o.Mover.Save(host, from); err == nil {
			err = move.Wait()
		}
	} else if err == nil {
		err = snug.Copy(host, from)
	}
	if err != nil {
		return err
	}
	addTask.Run(chunksOf(len(acc)), addArgs{acc, host, 0, weight})
	return nil
}

// moves reports whether the Mover copies to and from v's device.
func (u *Updater) moves(v snug.View) bool { return u.o.Mover != nil && u.o.Mover.dev == v.Device() }

// staged returns the stage as n elements of dt.
func (u *Updater) staged(dt snug.DType, n int) snug.View {
	if u.stage == nil {
		u.stage = make([]float32, u.o.PageLen)
	}
	bytes := snug.SliceView(u.stage)
	return viewOf(device.Mem(&bytes).Bytes()[:n*dt.Size()], dt)
}

// put writes weights lo to lo+len(w)-1 to the model's vector and tensor, and adds the
// moves that it starts to moves.
func (u *Updater) put(p *updated, lo int, w []float32, moves *Move) error {
	if p.copied != nil {
		if err := p.copied.put(w, lo); err != nil {
			return err
		}
	}
	if p.target.Len() == 0 {
		return nil
	}
	to, err := p.target.Slice(lo, lo+len(w))
	if err != nil {
		return err
	}
	if to.Device().IsCPU() {
		roundTask.Run(chunksOf(len(w)), roundArgs{to, w})
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	host := snug.ViewOf(w)
	if to.DType() != snug.F32 {
		host = u.staged(to.DType(), len(w))
		roundTask.Run(chunksOf(len(w)), roundArgs{host, w})
	}
	if !u.moves(to) {
		return snug.Copy(to, host)
	}
	move, err := u.o.Mover.Load(to, host)
	moves.join(move)
	return err
}

// Norm returns the Euclidean norm of all gradients together, in float64. The squares are
// added in an order that depends only on the lengths. If a gradient is not finite, the
// norm is not finite: skip the step, see Drop. It returns errors of the store.
func (u *Updater) Norm() (float64, error) {
	if err := u.usable(); err != nil {
		return 0, err
	}
	sum := 0.0
	for _, p := range u.params {
		err := u.eachGradient(p, func(page Page[float32]) error {
			u.squares(page.Data, &sum)
			return page.Unpin(false)
		})
		if err != nil {
			return 0, err
		}
	}
	return math.Sqrt(sum), nil
}

// squares adds the squares of x to sum.
func (u *Updater) squares(x []float32, sum *float64) {
	n := chunksOf(len(x))
	squareTask.Run(n, squareArgs{x, u.sums})
	for _, part := range u.sums[:n] {
		*sum += part
	}
}

// Drop clears the gradients that were accumulated since the last step, for example when a
// step is skipped after an overflow. It returns errors of the store.
func (u *Updater) Drop() error {
	if err := u.usable(); err != nil {
		return err
	}
	for _, p := range u.params {
		if err := u.eachGradient(p, Page[float32].forget); err != nil {
			return err
		}
	}
	return nil
}

// eachGradient calls do with each page of p's gradient. The page is pinned, and do unpins
// it.
func (u *Updater) eachGradient(p *updated, do func(page Page[float32]) error) error {
	t := p.grads[u.set]
	for i := range t.Pages() {
		t.Prefetch(i+1, i+2)
		page, err := t.Pin(context.Background(), i)
		if err == nil {
			err = do(page)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chunkLen is the number of elements that one worker computes at a time.
const chunkLen = 8 << 10

// chunksOf returns how many chunks n elements are cut into for the workers.
func chunksOf(n int) int { return cpu.Chunks(n, chunkLen) }

type addArgs struct {
	acc    []float32
	g      snug.View
	at     int // the element of g that is added to acc[0]
	weight float32
}

var addTask = cpu.NewTask(func(a *addArgs, item int) {
	lo, hi := cpu.Chunk(len(a.acc), chunkLen, item)
	sweep.Accumulate(a.acc[lo:hi], a.g, a.at+lo, a.weight, 1)
})

type roundArgs struct {
	dst snug.View
	src []float32
}

var roundTask = cpu.NewTask(func(a *roundArgs, item int) {
	lo, hi := cpu.Chunk(len(a.src), chunkLen, item)
	half.Store(a.dst, lo, a.src[lo:hi])
})

type squareArgs struct {
	x    []float32
	sums []float64
}

var squareTask = cpu.NewTask(func(a *squareArgs, item int) {
	lo, hi := cpu.Chunk(len(a.x), chunkLen, item)
	a.sums[item] = sweep.Squares(snug.ViewOf(a.x), lo, hi)
})
