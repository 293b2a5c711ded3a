package fused

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// LossForm is a loss of one prediction x and one target t, for [Elementwise]. The zero value is none.
//
//	            loss, with d = x − t, σ the logistic function and p = σ(x)   derivative by x
//	MSE         d²                                                           2·d
//	L1          |d|                                                          sign(d), 0 for d = 0
//	Huber       d²/2 for |d| ≤ δ, else δ·(|d| − δ/2)                         d, or δ·sign(d)
//	SmoothL1    d²/(2·δ) for |d| ≤ δ, else |d| − δ/2                         d/δ, or sign(d)
//	BCE         −(ω·t·log p + (1 − t)·log(1 − p))                            (1 + (ω − 1)·t)·p − ω·t
//	Focal       α'·q^γ·BCE(x, t), q = p·(1 − t) + (1 − p)·t                  of the product
//
// BCE is the binary cross-entropy of logits, PyTorch's BCEWithLogitsLoss, with ω the PosWeight. Focal is of Lin et al., "Focal
// Loss for Dense Object Detection" (2017), as torchvision's sigmoid_focal_loss has it, with α' = α·t + (1 − α)·(1 − t).
type LossForm uint8

// The losses of elements.
const (
	MSE LossForm = iota + 1
	L1
	Huber
	SmoothL1
	BCE
	Focal
)

// String returns the name.
func (f LossForm) String() string {
	if f < MSE || f > Focal {
		return fmt.Sprintf("LossForm(%d)", uint8(f))
	}
	return [...]string{"MSE", "L1", "Huber", "SmoothL1", "BCE", "Focal"}[f-MSE]
}

// Elementwise is a loss that is the sum over elements, each by itself, of predictions and targets of one length.
type Elementwise struct {
	Form LossForm
	// Delta is δ of Huber and SmoothL1, whose parameter PyTorch calls beta. It is finite and positive; 0 means 1.
	Delta float32
	// Alpha is α of Focal, up to 1; 0 means 0.25, and a negative number that α' is 1.
	Alpha float32
	// Gamma is γ of Focal, finite and positive; 0 means 2. With no γ the loss is BCE.
	Gamma float32
	// PosWeight, unless nil, has the ω of BCE for each class, finite and 0 or more. Classes follow one another, each for
	// Positions elements, and then repeat. Its length times Positions divides the number of elements.
	PosWeight []float32
	// Positions is how many elements of a class follow one another; 0 means 1: the classes are last.
	Positions int
	// Weights, unless nil, has the factors of the losses and so of the gradients, finite and 0 or more: one for each
	// element, or one for each row, where the number of them divides that of elements. An element of weight 0 is
	// ignored: whatever it is, it adds nothing and its gradient is 0.
	Weights []float32
	// Losses, unless nil, collects the sum of the losses, and the Loss that the call returns has a Sum of 0.
	Losses *Losses
}

// ElementwiseLoss returns the loss without gradients, for evaluation. Targets of the Loss counts elements that are not ignored, and
// Weight is the sum of their weights, so that its Mean is PyTorch's reduction='mean' where no Weights are given.
//
// x and targets have one length. NaN and infinities propagate by the equations. The loss of an element is float64 of a
// float32 exponential, and sums are float64, in an order that depends on the length alone. On other devices than
// the CPU both are float32 in parts, which are added with their rounding errors, for up
// to 2^32 − 2^24 elements, else [snug.ErrNotBuilt]. Each worker holds 24 KiB.
func ElementwiseLoss[V snug.Vector](c Elementwise, x, targets V) (Loss, error) {
	return c.launch("ElementwiseLoss", snug.View{}, snug.ViewOf(x), snug.ViewOf(targets), 0, false)
}

// ElementwiseBackward returns the loss and computes the gradient of gradScale·Sum in the same pass: with ω the weight of an
// element, dx[i] = gradScale·ω·derivative. For the mean loss gradScale is the loss scale divided by Weight; it must be finite.
//
// All have one length; dx may be x. The rest is as for [ElementwiseLoss].
func ElementwiseBackward[V snug.Vector](c Elementwise, dx, x, targets V, gradScale float32) (Loss, error) {
	return c.launch("ElementwiseBackward", snug.ViewOf(dx), snug.ViewOf(x), snug.ViewOf(targets), gradScale, true)
}

// parameter checks one that has a default in place of 0.
func (c *checks) parameter(name string, x *float32, least, most, usual float32) {
	if *x == 0 {
		*x = usual
	}
	if !(*x >= least && *x <= most) {
		c.failf(snug.ErrConfig, "%s is %v, want a finite number from %v to %v, or 0 for %v", name, *x, least, most, usual)
	}
}

// weights wants factors that are finite and 0 or more.
func (c *checks) weights(name string, w []float32) {
	for i, x := range w {
		if !(x >= 0 && x <= math.MaxFloat32) {
			c.failf(snug.ErrConfig, "%s[%d] is %v, want a finite number of 0 or more", name, i, x)
			return
		}
	}
}

// divides wants a length that divides the number of elements.
func (c *checks) divides(name string, len, n int) {
	if len < 1 && n > 0 || len > 0 && n%len != 0 {
		c.failf(snug.ErrShape, "%s for %d elements, want a divisor of %d", name, len, n)
	}
}

// resolve checks the fields of c, and returns them with their defaults.
func (c Elementwise) resolve(check *checks) Elementwise {
	if c.Form < MSE || c.Form > Focal {
		check.failf(snug.ErrConfig, "there is no %v", c.Form)
	}
	if c.Positions < 0 {
		check.failf(snug.ErrConfig, "Positions is %d, want 0 or more", c.Positions)
	}
	if c.PosWeight != nil && c.Form != BCE {
		check.failf(snug.ErrConfig, "PosWeight is set, which only BCE has")
	}
	c.Positions = max(c.Positions, 1)
	check.parameter("Delta", &c.Delta, math.SmallestNonzeroFloat32, math.MaxFloat32, 1)
	check.parameter("Alpha", &c.Alpha, -math.MaxFloat32, 1, 0.25)
	check.parameter("Gamma", &c.Gamma, math.SmallestNonzeroFloat32, math.MaxFloat32, 2)
	check.weights("PosWeight", c.PosWeight)
	check.weights("Weights", c.Weights)
	return c
}

func (c Elementwise) launch(op string, dx, x, targets snug.View, gradScale float32, gradients bool) (Loss, error) {
	check := &checks{op: op}
	check.finite("gradScale", gradScale)
	c = c.resolve(check)
	check.floats(operand{"x", x}, operand{"targets", targets}, operand{"dx", dx})
	check.len(x.Len(), operand{"targets", targets})
	if gradients {
		check.len(x.Len(), operand{"dx", dx})
	}
	if c.PosWeight != nil {
		check.divides("PosWeight", product(len(c.PosWeight), c.Positions), x.Len())
	}
	if c.Weights != nil {
		check.divides("Weights", len(c.Weights), x.Len())
	}
	dev := check.device(dx, x, targets)
	if check.err != nil {
		return Loss{}, check.err
	}
	n := x.Len()
	j := elementwiseArgs{c: c, dx: dx, x: x, targets: targets, scale: gradScale, gradients: gradients, part: max(minLossPart, cpu.Chunks(n, maxParts))}
	if !dev.IsCPU() {
		return j.launch(op, dev)
	}
	j.weights, j.factors = c.Weights, c.PosWeight
	parts := cpu.Chunks(n, j.part)
	sums := scratch.Get(2 * parts)
	defer scratch.Put(sums)
	j.sums = *sums
	elementwiseTask.Run(parts, j)
	return collect(countWeights(n, c.Weights), c.Losses, j.sums), nil
}

// elementwiseJob is elementwiseArgs for a device, with the factors and weights there.
type elementwiseJob struct {
	elementwiseArgs
	lossParts
	factorsOn, weightsOn snug.View
}

func (j elementwiseArgs) launch(op string, dev *snug.Device) (loss Loss, err error) {
	loss = countWeights(j.x.Len(), j.c.Weights)
	if j.x.Len() == 0 {
		return loss, nil
	}
	j.part = max(minLossPart, cpu.Chunks(j.x.Len(), deviceLossParts))
	job := &elementwiseJob{elementwiseArgs: j}
	uploads := weightsUpload(weightsUpload(nil, j.c.Weights, &job.weightsOn), j.c.PosWeight, &job.factorsOn)
	loss.Sum, err = launchParts(op, dev, job, &job.lossParts, cpu.Chunks(j.x.Len(), j.part), j.c.Losses, uploads)
	if err != nil {
		return Loss{}, err
	}
	return loss, nil
}

// deviceLossParts is how many parts a sum on a device has at most.
const deviceLossParts = 1024

func (*elementwiseJob) Kernel() string { return "fused.elementwise" }

func (j *elementwiseJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.x, &j.targets, &j.parts, &j.total, &j.factorsOn, &j.weightsOn)
}

func (j *elementwiseJob) Run() {
	a := j.elementwiseArgs
	a.weights, a.factors = j.weightsOn.Float32s(), j.factorsOn.Float32s()
	parts := cpu.Chunks(a.x.Len(), a.part)
	a.sums = make([]float32, 2*parts)
	elementwiseTask.Run(parts, a)
	j.putTotal(a.sums)
}

// countWeights returns the Loss of n elements, without its sum.
func countWeights(n int, weights []float32) (l Loss) {
	if weights == nil {
		return Loss{Targets: n, Weight: float64(n)}
	}
	for _, w := range weights {
		if w != 0 {
			l.Targets += n / len(weights)
			l.Weight += float64(w) * float64(n/len(weights))
		}
	}
	return l
}

// collect adds up sums in two parts each, for l or for what collects them.
func collect(l Loss, losses *Losses, sums []float32) Loss {
	for ; len(sums) > 0; sums = sums[2:] {
		l.Sum += float64(sums[0]) + float64(sums[1])
	}
	if losses != nil {
		losses.known, l.Sum = losses.known+l.Sum, 0
	}
	return l
}

// putSum puts a sum in two parts.
func putSum(sums []float32, item int, x float64) {
	hi := float32(x)
	sums[2*item], sums[2*item+1] = hi, rest(x, hi)
}

// minLossPart is the fewest elements of a part of a sum.
const minLossPart = 4096

type elementwiseArgs struct {
	c              Elementwise
	dx, x, targets snug.View
	scale          float32
	gradients      bool
	part           int
	sums           []float32

	weights, factors []float32 // those of c
}

// lossBlock is how many elements a loop does at a time.
const lossBlock = 1024

var elementwiseTask = cpu.NewTask(func(j *elementwiseArgs, item int) {
	lo, hi := cpu.Chunk(j.x.Len(), j.part, item)
	buf := scratch.Get(4 * lossBlock)
	defer scratch.Put(buf)
	sum := 0.0
	for ; lo < hi; lo += lossBlock {
		n := min(lossBlock, hi-lo)
		x, t := load(cut(buf, 0, n), j.x, lo), load(cut(buf, 1, n), j.targets, lo)
		grads := cut(buf, 2, n)
		if j.c.Form >= BCE {
			sum += j.logistic(lo, x, t, grads, cut(buf, 3, n))
		} else {
			sum += j.distances(lo, x, t, grads)
		}
		if j.gradients {
			dx := target(cut(buf, 1, n), j.dx, lo)
			rowwise.Registry.Best().Scale(dx, grads, j.scale)
			store(j.dx, lo, dx)
		}
	}
	putSum(j.sums, item, sum)
})

// weight returns that of element i.
func (j *elementwiseArgs) weight(i int) float32 {
	if j.c.Weights == nil {
		return 1
	}
	return j.weights[i/(j.x.Len()/len(j.weights))]
}

// distances sets grads to the weighted derivatives of losses of x − t, and returns their sum.
func (j *elementwiseArgs) distances(at int, x, t, grads []float32) (sum float64) {
	delta := j.c.Delta
	for i, v := range x {
		w := j.weight(at + i)
		if w == 0 {
			grads[i] = 0
			continue
		}
		d := v - t[i]
		size := max(d, -d)
		near := min(size, delta)
		var loss float64
		var g float32
		switch j.c.Form { // without branches on d, which a processor could not predict
		case MSE:
			loss, g = float64(d)*float64(d), 2*d
		case L1:
			loss, g = float64(size), sign(d)
		case Huber:
			loss, g = float64(near)*(float64(size)-0.5*float64(near)), max(-delta, min(d, delta))
		case SmoothL1:
			loss, g = float64(near)*(float64(size)-0.5*float64(near))/float64(delta), max(-delta, min(d, delta))/delta
		}
		sum += float64(w) * loss
		grads[i] = w * g
	}
	return sum
}

// sign returns ±1, 0 for 0 and NaN for NaN.
func sign(d float32) float32 {
	if d == 0 || d != d {
		return d
	}
	return math.Float32frombits(math.Float32bits(1) | math.Float32bits(d)&(1<<31))
}

// logistic sets grads to the weighted derivatives of losses of logits, and returns their sum. e is for exponentials.
func (j *elementwiseArgs) logistic(at int, x, t, grads, e []float32) (sum float64) {
	exponentials(e, x)
	for i, v := range x {
		w := float64(j.weight(at + i))
		if w == 0 {
			grads[i] = 0
			continue
		}
		x, t := float64(v), float64(t[i])
		p, rest := probabilities(x, float64(e[i]))
		pos := 1.0
		if j.c.PosWeight != nil {
			pos = float64(j.factors[(at+i)/j.c.Positions%len(j.factors)])
		}
		// −log p and −log(1 − p) are logs + max(−x, 0) and logs + max(x, 0)
		logs := log1p(float64(e[i]))
		loss := pos*t*(logs+max(-x, 0)) + (1-t)*(logs+max(x, 0))
		g := (1-t)*p - pos*t*rest
		if j.c.Form == Focal {
			loss, g = j.c.focal(t, p, rest, loss, g)
		}
		sum += w * loss
		grads[i] = float32(w * g)
	}
	return sum
}

// exponentials sets e[i] to exp(−|x[i]|).
func exponentials(e, x []float32) {
	for i, v := range x {
		e[i] = min(v, -v)
	}
	rowwise.Registry.Best().ExpSum(e, e, 0)
}

// probabilities returns σ(x) and 1 − σ(x) for e = exp(−|x|).
func probabilities(x, e float64) (p, rest float64) {
	big := 1 / (1 + e)
	if small := e * big; x < 0 {
		return small, big
	} else {
		return big, small
	}
}

// focal makes of a BCE and its derivative those of the focal loss.
func (c *Elementwise) focal(t, p, rest, loss, g float64) (float64, float64) {
	q := p*(1-t) + rest*t
	factor, gamma := q*q, float64(c.Gamma)
	if gamma != 2 {
		factor = math.Pow(q, gamma)
	}
	slope := 0.0 // of the factor by x
	if q > 0 {
		slope = gamma * factor / q * p * rest * (1 - 2*t)
	}
	loss, g = factor*loss, factor*g+slope*loss
	if c.Alpha >= 0 {
		alpha := float64(c.Alpha)*t + (1-float64(c.Alpha))*(1-t)
		loss, g = alpha*loss, alpha*g
	}
	return loss, g
}

// log1p returns log(1 + e) for e from 0 to 1, by the series of 2·atanh(s), s = e/(2 + e) ≤ 1/3, to 1e-10 of itself.
func log1p(e float64) float64 {
	s := e / (2 + e)
	z := s * s
	return 2 * s * (1 + z*(1./3+z*(1./5+z*(1./7+z*(1./9+z*(1./11+z*(1./13+z*(1./15+z*(1./17+z*(1./19))))))))))
}
