package quant8

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/ortho"
)

// MuonScale is the factor by which [Muon] multiplies the learning rate of a matrix. It
// depends on the rows and columns.
type MuonScale uint8

const (
	// MuonOriginal is √max(1, rows/cols), as in the original implementation.
	MuonOriginal MuonScale = iota
	// MuonMatchAdamW is 0.2·√max(rows, cols), so that the learning rate and the weight
	// decay of the default rule suit Muon (Liu et al. 2025, arXiv:2502.16982).
	MuonMatchAdamW
)

// factor returns the scale of a matrix that is not empty.
func (s MuonScale) factor(rows, cols int) float64 {
	if s == MuonMatchAdamW {
		return 0.2 * math.Sqrt(float64(max(rows, cols)))
	}
	return math.Sqrt(max(1, float64(rows)/float64(cols)))
}

// Muon is the rule of Jordan et al. 2024, "Muon: An optimizer for hidden
// layers in neural networks", https://kellerjordan.github.io/posts/muon/, as
// torch.optim.Muon computes it, but in float32. Parameters are matrices
// only, with rows for outputs: see [Optimizer.AddMatrix]. With momentum μ it computes
//
//	m ← μ·m + (1-μ)·g
//	x = (1-μ)·g + μ·m        without Nesterov: x = m
//	x ← x/max(|x|, 1e-7)     |x|² the sum of the squares
//	five times:  x ← 3.4445·x - 4.7750·(x·xᵀ)·x + 2.0315·(x·xᵀ)²·x
//	p ← p·(1 - lr·wd) - lr·scale·x
//
// which replaces x by nearly U·Vᵀ of its singular value decomposition. Leave embeddings,
// the last layer and vectors to another optimizer, such as [Default].
//
// The state is m, with a sign. With 8 bits it takes n + 4·⌈n/Block⌉ bytes for n elements.
// A parameter element takes 1.02 bytes with 8 bits and blocks of 256, 0.53 with 4 bits
// and blocks of 128, 2 with 16 bits and 4 with 32. Below MinSize elements it always takes
// 4.
//
// The workspace, see [Optimizer.WorkspaceBytes], has x in float32 and two products: with
// the smaller side k, 4·(n + k² + min(n, max(k², k·⌊65536/k⌋))) bytes for the largest
// matrix; 12·n if that is square. Tiles of the products take 2.02 MiB more, and 643 KiB a
// worker. A step takes 20·n·k + 10·k³ floating-point operations. The last bits of the
// products, and so of p, depend on the instructions of the CPU or on the device, not on
// the number of workers; m does not. In the tests elements of x differ from the
// definition by at most 2e-5, on the CPU and in emulated kernels, with smaller sides of
// up to 100. Devices other than the CPU have the workspace and need no tiles; there a
// step waits only for the check of g.
//
// A step updates a whole parameter. An error of the [Storage] leaves p as it was, but the
// chunks of m before the chunk it names are stepped. If there are such chunks, the
// optimizer cannot be used until a state is restored. The failure of a device during the
// step has the same effect.
type Muon struct {
	Momentum    float32   // in (0,1), default 0.95
	NoNesterov  bool      // orthogonalize the momentum itself
	Scale       MuonScale // factor of the learning rate, default MuonOriginal
	WeightDecay float32   // a step multiplies p by 1-lr·WeightDecay; default 0
}

func (r Muon) equation() equation {
	e := equation{
		Traits: Traits{Name: "muon", Title: "Muon", Unit: Matrix, Devices: true, Shaped: true, MatricesOnly: true},
		hyper:  optim.Hyper{Rule: optim.Muon, Nesterov: !r.NoNesterov, WeightDecay: float64(r.WeightDecay), DecayFirst: true},
		method: orthogonalizing{by: r.Scale},
	}
	if r.Scale > MuonMatchAdamW {
		e.refuse("scale %d is not known", r.Scale)
	}
	e.number("Momentum", &e.hyper.Beta1, r.Momentum, 0.95, 1)
	return e
}

// orthogonalizing is the method of Muon: all parameters are matrices.
type orthogonalizing struct {
	plain
	by MuonScale
}

func (m orthogonalizing) engine(_ *options, p added) (engine, error) {
	if p.rows|p.cols == 0 && p.n > 0 {
		return nil, fmt.Errorf("of %d elements, want a matrix: %w", p.n, snug.ErrConfig)
	}
	e := &orthogonal{by: m.by}
	if e.shape = (shape{p.rows, p.cols}); p.n > 0 {
		e.workspace.nFloats = p.n + ortho.Work(p.rows, p.cols)
	}
	return e, nil
}

// orthogonal is the engine of a matrix.
type orthogonal struct {
	elements
	by MuonScale
}

// step writes the matrix to orthogonalize in one pass over the gradient and the state, and the parameter in another.
func (e *orthogonal) step(a *Optimizer, dev *snug.Device, q *param, _ int, h optim.Hyper, j stepJob, _ float32) error {
	if err := a.work.lock(dev); err != nil {
		return err
	}
	defer a.work.mu.Unlock()
	h.Size = h.LR * e.by.factor(q.rows, q.cols)
	j.prepare(h)
	last, floats := applyJob{stepJob: j}, a.work.floats.View()
	var err error
	if last.x, err = floats.Slice(0, q.n); err != nil {
		return err
	}
	work, err := floats.Slice(q.n, floats.Len())
	if err != nil {
		return err
	}
	j.p = last.x
	if err := a.run(dev, q, 0, j); err != nil {
		return err
	}
	if err := ortho.NewtonSchulz(last.x, q.rows, q.cols, work); err != nil {
		return err
	}
	if !dev.IsCPU() {
		return device.Queue(dev, last)
	}
	last.Run()
	return nil
}

// applyJob subtracts x from p.
type applyJob struct {
	stepJob
	x snug.View
}

func (j *applyJob) Kernel() string { return "quant8.apply" }

// Join is not that of the stepJob: nothing joins.
func (*applyJob) Join(driver.Job) bool { return false }

func (j *applyJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.p, &j.g, &j.x) }

func (j *applyJob) Run() { applyTask.Run(cpu.Chunks(j.p.Len(), grain), *j) }

var applyTask = cpu.NewTask(func(j *applyJob, item int) {
	lo, hi := cpu.Chunk(j.p.Len(), grain, item)
	tile := tiles.Get(2 * half.Chunk)
	defer tiles.Put(tile)
	j.rule.Apply(j.operands(), lo, hi, j.x.Float32s()[lo:], *tile)
})
