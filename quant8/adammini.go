package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/sweep"
)

// AdamMini is the rule of Zhang et al. 2024, "Adam-mini: Use Fewer Learning Rates To Gain More", arXiv:2406.16793, as
// the authors' package adam-mini computes it: the rule of [Default] with one second moment for each block of consecutive elements.
// With c1 = 1-β1^t and c2 = √(1-β2^t) at step t it computes
//
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·mean of g² over a block
//	p ← p·(1 - lr·wd)
//	p ← p - lr·c2/c1 · m/(√v + ε·c2)
//
// ParamOptions.Shared is the size of the blocks of a parameter. The authors' blocks are a head of q and k; a row of
// embeddings, of the output layer, of v, of the attention's output and of the matrices of an MLP; an element of a bias;
// and the whole of any other vector, such as the scale of a norm. If Shared is 0, a block is a row of a matrix that
// [Optimizer.AddMatrix] added, or the whole of a parameter that [Optimizer.Add] added. For a head adam-mini 1.1.1 takes
// Dim·Dim/Heads elements, which are those of a head only where HeadDim is Dim/Heads; package train takes HeadDim·Dim.
// Decay is decoupled; the authors have none for norms and biases, see ParamOptions.NoDecay.
//
// The state is m, which is signed: n + 4·⌈n/Options.Block⌉ bytes for n elements with 8 bits. An element takes 1.02 bytes
// with 8 bits and an Options.Block of 256, 0.53 with 4 bits and 128, 2 with 16 bits and 4 with 32. Below MinSize
// elements it always takes 4. v takes 4 bytes more for each block, with any width; a [Storage] has it under the key
// "<optimizer>/<name>/factors". Sums of squares are in float64, so that with blocks of one element m and p are those of
// the default rule up to rounding. [SkipElement] sets m of an element to 0, and its square counts as 0 in the mean.
//
// Steps run on the CPU, one after another, and read g twice. Their workspace, see [Optimizer.WorkspaceBytes], is 4 bytes
// for each block and 8 bytes for each 16384 elements of a block begun. [Optimizer.StepRange] takes whole blocks. Each
// process must hold the whole parameter: [Optimizer.AddShard] of a part is an error. [Optimizer.FoldInBackward] is an
// error too, because v needs the whole gradient.
type AdamMini struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moments, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

func (r AdamMini) equation() equation {
	e := equation{
		Traits: Traits{
			Name: "adam-mini", Title: "AdamMini", About: "its state is about half as large", Unit: Parameter, Shaped: true, Blocks: true, Full: Setting{AdamMini{WeightDecay: 0.01}, 1e-5, 1e-6},
		},
		hyper:  optim.Hyper{Rule: optim.Momentum, Shares: true, WeightDecay: float64(r.WeightDecay)},
		method: sharing{},
	}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}

// sharing is the method of Adam-mini: the elements of a block share a second moment.
type sharing struct{ plain }

// engine takes blocks of the size of ParamOptions.Shared, or else rows, or else all elements. The number of blocks of a saved
// parameter follows from the number of its bytes.
func (sharing) engine(o *options, p added) (engine, error) {
	if p.n == 0 {
		return new(elements), nil
	}
	each := cmp.Or(p.shared, p.cols, p.n)
	if p.saved > 0 {
		bytes := p.saved - o.layoutOf(p.bits, &form{}).bytes(p.n)
		if bytes <= 0 || bytes%4 != 0 || bytes/4 > int64(p.n) {
			return nil, fmt.Errorf("of %d elements in %d bits and %d bytes: %w", p.n, p.bits, p.saved, snug.ErrCorrupt)
		}
		each = p.n / int(bytes/4)
		if each*int(bytes/4) != p.n {
			return nil, fmt.Errorf("of %d elements with %d second moments: %w", p.n, bytes/4, snug.ErrCorrupt)
		}
	}
	if p.n%each != 0 {
		return nil, fmt.Errorf("of %d elements, where each %d are to share a second moment: %w", p.n, each, snug.ErrShape)
	}
	e := &shared{moments: p.n / each, parts: cpu.Chunks(each, grain)}
	e.alone, e.multiple, e.factors = true, each, 4*int64(e.moments)
	e.workspace = scratch{nFloats: e.moments, nSums: e.moments * e.parts}
	return e, nil
}

// shared is the engine of a parameter with so many second moments, each of multiple elements. The sum of the squares of a
// block has parts.
type shared struct {
	elements
	moments, parts int
}

func (e *shared) option() string { return fmt.Sprintf("%d second moments", e.moments) }

// step makes a step of whole blocks from element lo on.
func (e *shared) step(a *Optimizer, dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, _ float32) error {
	if j.p.Len() == 0 {
		return nil
	}
	if err := a.work.lock(dev); err != nil {
		return err
	}
	defer a.work.mu.Unlock()
	w := &a.work
	each, parts := e.multiple, e.parts
	from := lo / each
	v := w.near[:j.p.Len()/each]
	if err := e.copyMoments(a, q, from, v, false); err != nil {
		return err
	}
	sums := meanSquares{g: j.g, sums: w.nearSums[:len(v)*parts], each: each, parts: parts, scale: h.GradScale, skip: h.Skip}
	sums.together = max(1, grain/each)
	meanSquaresTask.Run(cpu.Chunks(len(sums.sums), sums.together), sums)
	h.SharedMoments(v, sums.sums, parts, each)
	if err := e.copyMoments(a, q, from, v, true); err != nil {
		return err
	}
	j.prepare(h)
	j.rule.SharedSizes(v)
	w.shared = optim.Shared{Sizes: v, Each: each, First: lo}
	j.rule.SetShared(&w.shared)
	return a.run(dev, q, lo, j)
}

// copyMoments copies the second moments of q, beginning with block from, to v, or with save v to them.
func (e *shared) copyMoments(a *Optimizer, q *param, from int, v []float32, save bool) error {
	if save {
		a.note(a.claimOf(q, from*e.multiple, len(v)*e.multiple), optim.Begun)
	}
	if a.o.Storage != nil {
		return e.copyStored(a, q, from, v, save)
	}
	state, err := a.stateOn(snug.CPU(), q)
	if err != nil {
		return err
	}
	copyEither(floats(state.Host(), e.moments)[from:][:len(v)], v, save)
	return nil
}

// copyStored is copyMoments with a Storage. It is a function of its own because its closure allocates memory.
func (e *shared) copyStored(a *Optimizer, q *param, from int, v []float32, save bool) error {
	return a.withBlob(q, factors, save, func(blob []byte) error {
		copyEither(floats(blob, e.moments)[from:][:len(v)], v, save)
		return nil
	})
}

// copyEither copies v to kept with save, and otherwise kept to v.
func copyEither(kept, v []float32, save bool) {
	if save {
		kept, v = v, kept
	}
	copy(v, kept)
}

// meanSquares sums the squares of g for blocks of each elements. A block has parts, each of at most grain elements.
type meanSquares struct {
	g           snug.View
	sums        []float64
	each, parts int
	together    int // sums of an item
	scale       float32
	skip        uint32
}

var meanSquaresTask = cpu.NewTask(func(a *meanSquares, item int) {
	lo, hi := cpu.Chunk(len(a.sums), a.together, item)
	for i := lo; i < hi; i++ {
		begin, end := cpu.Chunk(a.each, grain, i%a.parts)
		at := i / a.parts * a.each
		a.sums[i] = a.squares(at+begin, at+end)
	}
})

// squares returns the sum of the squares of elements lo to hi-1. Those that are skipped count as 0.
func (a *meanSquares) squares(lo, hi int) (sum float64) {
	if a.skip == 0 {
		return sweep.Squares(a.g, lo, hi)
	}
	tile := tiles.Get(half.Chunk)
	defer tiles.Put(tile)
	for ; lo < hi; lo += len(*tile) {
		x := (*tile)[:min(len(*tile), hi-lo)]
		half.Load(x, a.g, lo)
		optim.Leave(x, a.scale, a.skip)
		sum += sweep.Squares(snug.SliceView(x), 0, len(x))
	}
	return sum
}
