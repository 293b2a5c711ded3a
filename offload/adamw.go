package offload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/adam"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
)

// AdamWOptions are the constants of [AdamW].
type AdamWOptions struct {
	Beta1       float32 // decay of the first moment, in [0, 1); 0 means 0.9
	Beta2       float32 // decay of the second moment, in [0, 1); 0 means 0.999
	Eps         float32 // added to the root of the second moment; 0 means 1e-8
	WeightDecay float32 // decoupled: p is multiplied by 1 - lr·WeightDecay; 0 means none
	PageLen     int     // elements of a page; 0 means 65536, 256 KiB
}

func (o AdamWOptions) check() (AdamWOptions, error) {
	if o.Beta1 == 0 {
		o.Beta1 = 0.9
	}
	if o.Beta2 == 0 {
		o.Beta2 = 0.999
	}
	if o.Eps == 0 {
		o.Eps = 1e-8
	}
	if o.PageLen == 0 {
		o.PageLen = 1 << 16
	}
	switch {
	case !(o.Beta1 > 0 && o.Beta1 < 1):
		return o, fmt.Errorf("offload: adamw: Beta1 is %g, want 0 to 1: %w", o.Beta1, snug.ErrConfig)
	case !(o.Beta2 > 0 && o.Beta2 < 1):
		return o, fmt.Errorf("offload: adamw: Beta2 is %g, want 0 to 1: %w", o.Beta2, snug.ErrConfig)
	case !(o.Eps > 0) || !finite(o.Eps):
		return o, fmt.Errorf("offload: adamw: Eps is %g, want more than 0: %w", o.Eps, snug.ErrConfig)
	case !(o.WeightDecay >= 0) || !finite(o.WeightDecay):
		return o, fmt.Errorf("offload: adamw: WeightDecay is %g, want 0 or more: %w", o.WeightDecay, snug.ErrConfig)
	case o.PageLen < 1 || o.PageLen > MaxPage/4:
		return o, fmt.Errorf("offload: adamw: PageLen is %d elements, want 1 to %d: %w", o.PageLen, MaxPage/4, snug.ErrConfig)
	}
	return o, nil
}

func finite(x float32) bool { return !math.IsInf(float64(x), 0) && x == x }

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter 2019,
// arXiv:1711.05101) in torch.optim.AdamW's order, its float32 moments in a
// [Store]. With gradient g·gradScale, step t and rate lr, each element becomes
//
//	p ← p·(1 - lr·wd)
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·m̂/(√v̂ + ε),   m̂ = m/(1-β1^t), v̂ = v/(1-β2^t)
//
// computed in float32; the result does not depend on the page length, the host
// limit or GOMAXPROCS. The state takes 8 bytes a parameter, of which 2·PageLen
// elements are pinned at a time, or up to 16·PageLen where that is an eighth of
// the host limit at most.
//
// A page has a byte of memory more, which says whether the step has updated it.
//
// Steps of different parameters, and of different ranges of one, may run in
// several goroutines, though the store foresees the order of one goroutine
// best. Advance, Add and UnmarshalBinary run alone.
type AdamW struct {
	s      *Store
	opts   AdamWOptions
	step   int
	lr     float32
	rate   error    // why there is no lr: the last Advance was refused
	names  []string // in the order of Add
	params map[string]moments

	mu   *sync.Mutex // guards all marks, and
	half string      // the parameter whose step stopped half-way, or empty
}

// moments are the state of one parameter. Its marks are of pages.
type moments struct {
	m, v  *Tensor[float32]
	marks optim.Marks
}

// moment names, torch's.
const (
	firstMoment  = "/exp_avg"
	secondMoment = "/exp_avg_sq"
)

// NewAdamW returns an optimizer without parameters whose state lies in s. The
// error wraps [snug.ErrConfig].
func NewAdamW(s *Store, o AdamWOptions) (*AdamW, error) {
	o, err := o.check()
	if err == nil && !s.made() {
		err = errNoStore
	}
	if err != nil {
		return nil, err
	}
	return &AdamW{s: s, opts: o, params: map[string]moments{}, mu: new(sync.Mutex)}, nil
}

var errNoAdamW = fmt.Errorf("offload: adamw: it is nil, or was not made by NewAdamW: %w", snug.ErrConfig)

// made reports whether a was made by NewAdamW.
func (a *AdamW) made() bool { return a != nil && a.s != nil }

// Add makes a parameter of n elements known, with the tensors name/exp_avg
// and name/exp_avg_sq as its state: zeros, or what a store opened again has.
// Errors: [snug.ErrConfig] when name was added before, and those of [Create].
func (a *AdamW) Add(name string, n int) error {
	if !a.made() {
		return errNoAdamW
	}
	if _, ok := a.params[name]; ok {
		return fmt.Errorf("offload: adamw: parameter %q was added before: %w", name, snug.ErrConfig)
	}
	isNew := !a.s.Has(name + firstMoment)
	m, err := Create[float32](a.s, name+firstMoment, n, a.opts.PageLen)
	if err != nil {
		return err
	}
	v, err := Create[float32](a.s, name+secondMoment, n, a.opts.PageLen)
	if err != nil {
		if isNew {
			err = errors.Join(err, a.s.Delete(name+firstMoment))
		}
		return err
	}
	a.names = append(a.names, name)
	a.params[name] = moments{m, v, optim.NewMarks(m.Pages())}
	return nil
}

// Steps returns the number of steps that have begun, t.
func (a *AdamW) Steps() int {
	if !a.made() {
		return 0
	}
	return a.step
}

// StoredIn reports whether storage is the store that has the moments.
func (a *AdamW) StoredIn(storage any) bool { return a.made() && storage == any(a.s) }

// Advance begins the next step at learning rate lr, a finite number from 0 on. Each
// element is then updated once at most; a second update is an error. With another rate
// no step begins, and all updates until the next Advance are errors that say so.
func (a *AdamW) Advance(lr float32) {
	if !a.made() {
		return // the updates are errors
	}
	if a.rate = nil; !(lr >= 0) || !finite(lr) {
		a.rate = fmt.Errorf("learning rate %g, want a finite number from 0 on: %w", lr, snug.ErrConfig)
		return
	}
	a.step++
	a.lr = lr
	for _, p := range a.params {
		clear(p.marks)
	}
}

// Step updates parameter name: p, the whole of it, with the gradient g, which
// it multiplies by gradScale (1, or the inverse of the loss scale times the
// factor of clipping). p and g may be of any floating-point type; a p of 16
// bits is rounded to nearest after the update. p and g lie in host memory and
// do not overlap. NaNs and infinities of g go into p and the state: check
// before. While one page is computed the next is read.
//
// Errors: [snug.ErrConfig] when name is unknown, Advance was not called or refused its
// rate, an element was updated since, or gradScale is not finite; [snug.ErrDType];
// [snug.ErrShape] when p or g has another length; [snug.ErrDevice]. These
// leave everything as it was. An error of the store, as in [Store.Acquire],
// comes from one page; those before it are updated, and StepRange may go on from there
// if it came before anything of the page was written. After one that came later, or a
// panic, all further steps are errors, and the way back is the last commit.
func (a *AdamW) Step(name string, p, g snug.View, gradScale float32) error {
	st, coef, err := a.begin(name, p, g, gradScale)
	if err != nil {
		return err
	}
	if p.Len() != st.m.Len() {
		return fmt.Errorf("offload: adamw: p of %q has %d elements, want %d: %w", name, p.Len(), st.m.Len(), snug.ErrShape)
	}
	return a.claim(name, st, coef, 0, p, g)
}

// StepRange is Step for the elements from lo on that p and g hold: lo is a
// multiple of PageLen, and so is p's length unless it reaches the
// parameter's end. With it a parameter is stepped as parts of its gradient
// become ready.
func (a *AdamW) StepRange(name string, lo int, p, g snug.View, gradScale float32) error {
	st, coef, err := a.begin(name, p, g, gradScale)
	if err != nil {
		return err
	}
	n, pageLen := st.m.Len(), a.opts.PageLen
	if lo < 0 || lo > n || lo%pageLen != 0 {
		return fmt.Errorf("offload: adamw: range of %q from %d, want a multiple of %d up to %d: %w", name, lo, pageLen, n, snug.ErrShape)
	}
	if p.Len() > n-lo || p.Len()%pageLen != 0 && p.Len() != n-lo {
		return fmt.Errorf("offload: adamw: range of %q from %d has %d elements, want %d or a multiple of %d below: %w", name, lo, p.Len(), n-lo, pageLen, snug.ErrShape)
	}
	return a.claim(name, st, coef, lo, p, g)
}

// begin checks what Step and StepRange have in common.
func (a *AdamW) begin(name string, p, g snug.View, gradScale float32) (st moments, coef adam.Coef, err error) {
	if !a.made() {
		return st, coef, errNoAdamW
	}
	st, ok := a.params[name]
	switch {
	case !ok:
		err = fmt.Errorf("offload: adamw: parameter %q was not added: %w", name, snug.ErrConfig)
	case a.rate != nil:
		err = fmt.Errorf("offload: adamw: step of %q: %w", name, a.rate)
	case a.step == 0:
		err = fmt.Errorf("offload: adamw: step of %q before Advance: %w", name, snug.ErrConfig)
	case !finite(gradScale):
		err = fmt.Errorf("offload: adamw: gradScale %g, want a finite number: %w", gradScale, snug.ErrConfig)
	case !p.DType().IsFloat():
		err = fmt.Errorf("offload: adamw: p of %q is %s, want a floating-point type: %w", name, p.DType(), snug.ErrDType)
	case !g.DType().IsFloat():
		err = fmt.Errorf("offload: adamw: g of %q is %s, want a floating-point type: %w", name, g.DType(), snug.ErrDType)
	case p.Len() != g.Len():
		err = fmt.Errorf("offload: adamw: p of %q has %d elements, g has %d: %w", name, p.Len(), g.Len(), snug.ErrShape)
	case !p.Device().IsCPU():
		err = fmt.Errorf("offload: adamw: p of %q lies on %s, want host memory: %w", name, p.Device(), snug.ErrDevice)
	case !g.Device().IsCPU():
		err = fmt.Errorf("offload: adamw: g of %q lies on %s, want host memory: %w", name, g.Device(), snug.ErrDevice)
	}
	if err != nil {
		return st, coef, err
	}
	coef = adam.Hyper{
		LR: a.lr, Beta1: a.opts.Beta1, Beta2: a.opts.Beta2, Eps: a.opts.Eps, WeightDecay: a.opts.WeightDecay,
		Step: a.step, GradScale: gradScale, DecayFirst: true,
	}.Coef()
	return st, coef, nil
}

// claim has the pages that hold elements lo to lo+p.Len()-1 updated, once in a step.
func (a *AdamW) claim(name string, st moments, coef adam.Coef, lo int, p, g snug.View) error {
	first := lo / a.opts.PageLen
	last := first + pageCount(p.Len(), a.opts.PageLen)
	a.mu.Lock()
	taken, half := -1, a.half
	if half == "" {
		taken = st.marks.Claim(first, last)
	}
	a.mu.Unlock()
	switch {
	case half != "":
		return fmt.Errorf("offload: adamw: step %d of %q stopped half-way: open the store again at the last commit: %w", a.step, half, snug.ErrConfig)
	case taken >= 0:
		return fmt.Errorf("offload: adamw: element %d of %q already has an update in step %d: call Advance first: %w",
			taken*a.opts.PageLen, name, a.step, snug.ErrConfig)
	}
	ok := false
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if st.marks.Settle(first, last, ok) {
			a.half = name
		}
	}()
	err := a.update(st, coef, lo, p, g)
	ok = err == nil
	return err
}

// note marks pages first to last-1.
func (a *AdamW) note(st moments, first, last int, m optim.Mark) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st.marks.Set(first, last, m)
}

// update steps the pages that hold elements lo to lo+p.Len()-1, together pages
// at a time.
func (a *AdamW) update(st moments, coef adam.Coef, lo int, p, g snug.View) error {
	pageLen, most := a.opts.PageLen, a.together()
	first := lo / pageLen
	last := first + pageCount(p.Len(), pageLen)
	for i := first; i < last; i += most {
		args := pageArgs{coef: coef, p: p, g: g, lo: (i - first) * pageLen, pageLen: pageLen, pages: min(most, last-i)}
		var pins [2 * maxTogether]Page[float32]
		err := args.pin(st, i, pins[:0])
		if err == nil {
			st.m.Prefetch(i+args.pages, min(i+args.pages+1, last))
			st.v.Prefetch(i+args.pages, min(i+args.pages+1, last))
			a.note(st, i, i+args.pages, optim.Begun)
			pageTask.Run(args.pages*args.chunks(), args)
		}
		for _, page := range pins {
			if page.Data != nil {
				err = errors.Join(err, page.Unpin(true))
			}
		}
		if err != nil {
			return err
		}
		a.note(st, i, i+args.pages, optim.Updated)
	}
	return nil
}

// maxTogether is the most pages of a moment that are stepped together, so that
// workers wait for one another less often.
const maxTogether = 8

// together returns how many pages of a moment to pin at a time: one, unless all
// of them are a small part of what the store may hold.
func (a *AdamW) together() int {
	if a.s.opts.HostLimit == 0 {
		return maxTogether
	}
	return int(max(1, min(maxTogether, a.s.opts.HostLimit/(16*4*int64(a.opts.PageLen)))))
}

// chunkLen is the elements that one worker updates at a time.
const chunkLen = 8 << 10

// pageArgs is the update of pages, whose elements are p[lo:], g[lo:].
type pageArgs struct {
	coef           adam.Coef
	p, g           snug.View
	lo             int
	pageLen, pages int
	m, v           [maxTogether][]float32 // of each page
}

// pin brings the pages of a moment from page i on into memory. It appends them to
// pins, also where it fails.
func (a *pageArgs) pin(st moments, i int, pins []Page[float32]) error {
	for k := range a.pages {
		m, err := st.m.Pin(context.Background(), i+k)
		if err != nil {
			return err
		}
		pins = append(pins, m)
		v, err := st.v.Pin(context.Background(), i+k)
		if err != nil {
			return err
		}
		pins = append(pins, v)
		a.m[k], a.v[k] = m.Data, v.Data
	}
	return nil
}

// chunks returns how many chunks a page has.
func (a *pageArgs) chunks() int { return cpu.Chunks(a.pageLen, chunkLen) }

var (
	pageTask = cpu.NewTask((*pageArgs).chunk)
	tiles    cpu.Scratch
)

// chunk updates chunk number item. Vectors of 16 bits pass through tiles of
// half.Chunk float32.
func (a *pageArgs) chunk(item int) {
	page := item / a.chunks()
	at, m, v := a.lo+page*a.pageLen, a.m[page], a.v[page]
	lo, hi := cpu.Chunk(len(m), chunkLen, item%a.chunks())
	tile := tiles.Get(2 * half.Chunk)
	defer tiles.Put(tile)
	pTile, gTile := (*tile)[:half.Chunk], (*tile)[half.Chunk:]
	for ; lo < hi; lo += half.Chunk {
		end := min(lo+half.Chunk, hi)
		p := half.Floats(a.p, at+lo, pTile[:end-lo])
		g := half.Floats(a.g, at+lo, gTile[:end-lo])
		a.coef.Update(p, m[lo:end], v[lo:end], g)
		half.Flush(a.p, at+lo, p)
	}
}
