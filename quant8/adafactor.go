package quant8

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
)

// Adafactor is the rule of Shazeer and Stern 2018, arXiv:1804.04235, as
// torch.optim.Adafactor computes it for float32; where gradients are near 1e14 torch is off
// by percents, this package is not. rms is the root of the mean square, β =
// 1 - t^τ at step t, and R and C are the means of every row and column of a matrix. It
// computes
//
//	ρ = min(lr, 1/√t)
//	α = max(ε2, rms(p))·ρ
//	matrices (AddMatrix):  R ← β·R + (1-β)·mean of g² over a row
//	                       C ← β·C + (1-β)·mean of g² over a column
//	                       v = R·C/max(mean(R), ε1)
//	others (Add):          v ← β·v + (1-β)·g²
//	u = g/max(√v, ε1)
//	s = α/max(1, rms(u)/d)·u
//	p ← p·(1 - lr·wd) - s
//
// With Beta1 a first moment m ← β1·m + (1-β1)·s takes the place of s in the last line, as
// in the Tensor2Tensor of the paper's authors; torch has no first moment here. An
// optimizer with Beta1 has another state, and its name in errors, saved states and keys
// is "AdafactorMomentum".
//
// R and C are float32: 4·(rows+cols) bytes for a matrix, with all options. v, which has
// no sign, and m, which has one, have the width of the options: with 8 bits each takes n
// + 4·⌈n/Block⌉ bytes for n elements. A parameter element takes 1.02 bytes with 8 bits
// and blocks of 256, 0.53 with 4 bits and blocks of 128, 2 with 16 bits and 4 with 32.
// Below MinSize elements it always takes 4. Sums are in float64 and do not depend on the
// number of workers. The sums for rms(p) and rms(u) depend on Block and Chunk, unlike R
// and C.
//
// A step of a matrix reads g four times and p twice. Its workspace, see
// [Optimizer.WorkspaceBytes], is 8 bytes for every row and column; 8·⌈cols/16384⌉ bytes
// for every row; and for every column 8 bytes for each band of rows. There are at most 16
// bands, each of 16384 elements or more.
//
// On devices other than the CPU such a step reads g five times. It waits for the check of g,
// which [Optimizer.Within] saves, and for the norms. On Metal, which has no float64, it also
// waits for the sums of rows and columns: the host makes R and C from these sums, and needs
// 16 bytes for every row and column of the largest matrix. R, C and the roots of v have the
// same bits as on the CPU. The sums for rms(p)
// and rms(u) are added in another order, so that the size of a step can differ in its
// last bit.
//
// Each process must hold the whole parameter: [Optimizer.AddShard] of a part is an error,
// also with Options.SumNorms, and so is [Optimizer.StepRange] of a part. A p that is not
// finite is an error, as with trust ratios.
type Adafactor struct {
	Beta1       float32 // decay of the first moment, in (0,1); default 0: no first moment
	Beta2Decay  float32 // τ, -1 or more and below 0; default -0.8
	Eps1        float32 // ε1, the smallest root of the second moment, default 2^-23
	Eps2        float32 // ε2, the smallest rms(p) that the step follows, default 1e-3
	Clip        float32 // d, 1 or more; default 1
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

func (r Adafactor) equation() equation {
	tau, clip := cmp.Or(r.Beta2Decay, -0.8), cmp.Or(r.Clip, 1)
	e := equation{
		Traits: Traits{Name: "adafactor", Unit: Parameter, Devices: true, Shaped: true},
		hyper:  optim.Hyper{Rule: optim.Adafactor, Tau: float64(tau), Clip: float64(clip), WeightDecay: float64(r.WeightDecay), DecayFirst: true},
		method: factoring{},
	}
	if r.Beta1 != 0 {
		e.hyper.Rule = optim.AdafactorMomentum
		e.number("Beta1", &e.hyper.Beta1, r.Beta1, 0, 1)
	}
	e.Title = e.hyper.Rule.String()
	switch {
	case !(tau >= -1 && tau < 0):
		e.refuse("Beta2Decay is %g, want a number from -1 to 0", tau)
	case !(clip >= 1 && clip < math.MaxFloat32):
		e.refuse("Clip is %g, want a finite number from 1 on", clip)
	}
	e.number("Eps1", &e.hyper.Eps, r.Eps1, 0x1p-23, math.MaxFloat32)
	e.number("Eps2", &e.hyper.Eps2, r.Eps2, 1e-3, math.MaxFloat32)
	return e
}

// factoring is the method of Adafactor: matrices have R and C.
type factoring struct{ plain }

func (factoring) engine(_ *options, p added) (engine, error) {
	if p.rows|p.cols == 0 {
		return new(elements), nil
	}
	s, sides := shape{p.rows, p.cols}, p.rows+p.cols
	e := &factored{elements{form{shape: s, factors: 4 * int64(sides), replaced: 1}}}
	if p.n > 0 {
		e.workspace = scratch{nSides: sides, nFloats: 2 * sides, nSums: partsOf(s).sums(s)}
	}
	return e, nil
}

// factored is the engine of a matrix.
type factored struct{ elements }

// sumsOf returns the job that sums the squares of a step's gradient.
func (w *workspace) sumsOf(q *param, h optim.Hyper, j *stepJob) squareSumsJob {
	return squareSumsJob{g: j.g, all: w.sums.View(), shape: q.shape, parts: partsOf(q.shape), scale: h.GradScale, skip: h.Skip}
}

// step makes the new factors in the workspace, and keeps them when all checks have passed.
func (e *factored) step(a *Optimizer, dev *snug.Device, q *param, _ int, h optim.Hyper, j stepJob, _ float32) error {
	if err := a.work.lock(dev); err != nil {
		return err
	}
	defer a.work.mu.Unlock()
	if !dev.IsCPU() && device.HasDoubles(dev) {
		return a.stepFactoredThere(dev, q, h, j)
	}
	w, sides := &a.work, q.rows+q.cols
	both, roots := w.near[:sides], w.near[sides:2*sides]
	if err := a.copyFactors(dev, q, both, false); err != nil {
		return err
	}
	rowSums, colSums, err := w.sumsOf(q, h, &j).on(dev, w)
	if err != nil {
		return err
	}
	h.Average(both[:q.rows], rowSums, q.cols)
	h.Average(both[q.rows:], colSums, q.rows)
	h.Roots(roots, both, q.rows)
	if dev.IsCPU() {
		w.factors = optim.NewFactors(roots, q.rows, h.RootLimit())
		h.Factors = &w.factors
	} else {
		j.shape, j.rootLimit = q.shape, h.RootLimit()
		if j.roots, err = w.put(roots); err != nil {
			return err
		}
	}
	if h, err = a.limit(dev, q, h, j); err != nil {
		return err
	}
	if err := a.copyFactors(dev, q, both, true); err != nil {
		return err
	}
	j.prepare(h)
	return a.run(dev, q, 0, j)
}

// copyFactors copies the factors of q on dev to both, or both to the factors.
func (a *Optimizer) copyFactors(dev *snug.Device, q *param, both []float32, save bool) error {
	x := bytesOfFloats(both)
	if a.o.Storage != nil {
		return a.withBlob(q, factors, save, func(blob []byte) error {
			if save {
				a.note(a.claimOf(q, 0, q.n), optim.Begun)
				x, blob = blob, x
			}
			copy(x, blob)
			return nil
		})
	}
	state, err := a.stateOn(dev, q)
	switch {
	case err != nil:
		return err
	case save:
		a.note(a.claimOf(q, 0, q.n), optim.Begun)
		return state.CopyIn(x)
	}
	return state.CopyOut(x)
}

// put copies the roots to the workspace on a device.
func (w *workspace) put(roots []float32) (snug.View, error) {
	there, err := w.floats.Slice(0, len(roots))
	if err != nil {
		return snug.View{}, err
	}
	return there.View(), there.CopyIn(roots)
}

// parts says how a matrix is cut for its sums: into bands of rows and strips of columns.
type parts struct{ height, bands, width, strips int }

// maxBands bounds the memory of the columns' sums.
const maxBands = 16

// partsOf depends on the shape alone.
func partsOf(s shape) parts {
	p := parts{height: max(cpu.Chunks(s.rows, maxBands), cpu.Chunks(grain, s.cols)), width: min(s.cols, grain)}
	p.bands, p.strips = cpu.Chunks(s.rows, p.height), cpu.Chunks(s.cols, p.width)
	return p
}

// sums returns the number of sums: one of each row for every strip, then one of each
// column for every band.
func (p parts) sums(s shape) int { return p.strips*s.rows + p.bands*s.cols }

// squareSumsJob sums the squares of g·scale by rows and by columns, see
// [optim.RowsAndColumns]: the sums of strip 0 and of band 0 become the totals.
type squareSumsJob struct {
	g, all snug.View
	shape
	parts
	scale float32
	skip  uint32 // see [optim.Hyper]
}

func (j *squareSumsJob) Kernel() string { return "quant8.square_sums" }

func (j *squareSumsJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.all, &j.g) }

func (j *squareSumsJob) Run() {
	all := doubles(j.all)[:j.sums(j.shape)]
	clear(all)
	squareSumsTask.Run(j.bands*j.strips, sideSums{*j, all})
	ofRows, ofCols := all[:j.strips*j.rows], all[j.strips*j.rows:]
	fold(ofRows[:j.rows], ofRows[j.rows:])
	fold(ofCols[:j.cols], ofCols[j.cols:])
}

// on runs the job on dev, waits for it, and returns the totals in the workspace.
func (j squareSumsJob) on(dev *snug.Device, w *workspace) (rows, cols []float64, err error) {
	behind := j.strips * j.rows
	if dev.IsCPU() {
		j.Run()
		return w.nearSums[:j.rows], w.nearSums[behind:][:j.cols], nil
	}
	if err := device.Queue(dev, j); err != nil {
		return nil, nil, err
	}
	there, err := w.sums.Slice(sizeofSum*behind, w.sums.Len())
	if err != nil {
		return nil, nil, err
	}
	rows, cols = w.nearSums[:j.rows], w.nearSums[j.rows:][:j.cols]
	if err := w.sums.CopyOut(bytesOfDoubles(rows)); err != nil {
		return nil, nil, err
	}
	return rows, cols, there.CopyOut(bytesOfDoubles(cols))
}

// fold adds the sums of the other strips or bands, which lie behind sums, to sums.
func fold(sums, others []float64) {
	for ; len(others) > 0; others = others[len(sums):] {
		for i := range sums {
			sums[i] += others[i]
		}
	}
}

type sideSums struct {
	squareSumsJob
	all []float64
}

var squareSumsTask = cpu.NewTask(func(j *sideSums, item int) {
	band, strip := item/j.strips, item%j.strips
	top, bottom := cpu.Chunk(j.rows, j.height, band)
	left, right := cpu.Chunk(j.cols, j.width, strip)
	tile := tiles.Get(half.Chunk)
	defer tiles.Put(tile)
	optim.RowsAndColumns(j.g, top*j.cols+left, j.cols, j.scale, j.skip,
		j.all[strip*j.rows:][top:bottom], j.all[j.strips*j.rows+band*j.cols:][left:right], *tile)
})
