package fused

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// CrossEntropy is the output layer of a model and its losses, computed for a chunk of rows at a time
// so that the logits of all rows never exist. The loss of [CrossEntropyLoss] and
// [CrossEntropyBackward] is the softmax cross-entropy. For row i of x with the target class t and the
// weight ω
//
//	z = x[i]·wᵀ + Bias
//	z becomes Cap·tanh(z/Cap)                  with a Cap
//	z becomes z/Temperature                    with a Temperature
//	lse = log Σ exp(z[j])
//	loss[i] = ω·(lse − z[t])
//
// With Smoothing the target is not one class: z[t] becomes (1−Smoothing)·z[t] + Smoothing·mean(z).
// With ZLoss the loss has the further term ω·ZLoss·lse².
//
// [LogProbs] and [LogProbsBackward] use the same layer for losses that a caller computes from the
// log-probabilities of targets, [Distill] and [DistillBackward] for the divergence from another
// model.
//
// A negative target, such as the −1 of nanoGPT or the −100 of PyTorch, is
// ignored: its row has no loss and a zero gradient. A NaN in such a row of x
// still reaches dw, as 0·NaN.
//
// The idea of forming the gradients in the forward pass, chunk by chunk, is
// that of the fused linear cross-entropy in Hsu et al., "Liger Kernel:
// Efficient Triton Kernels for LLM Training" (2024).
//
// Logits and their gradients are float32, whatever the type of x and w; but
// processors that multiply bfloat16 in hardware (AMX, AVX512_BF16, GPUs) round the
// gradients to bfloat16 where x and w hold it, before they multiply them or add them to DBias. A
// row's maximum is subtracted before exp; the exponentials are added in
// float32 in blocks of at most 1024, the blocks in float64, or as pairs of float32
// on GPUs. The losses of rows are added in float64, in the order of the rows. A
// row with a NaN among its logits, or whose largest is infinite, has the loss
// NaN. The probability of a logit more than 42 below the largest of its row, less than 1e-18, counts as
// 0 in the gradients.
//
// # Memory
//
// The workspace holds the logits of Chunk rows and Tile classes. A tile of all classes is fastest:
// the cross-entropy computes the logits once. With smaller tiles it computes them twice where
// gradients are wanted, first for the statistics of the rows by an online softmax, then for the
// gradients, as in Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models" (2024). That is four
// products in place of three, or three in place of two with a frozen w; the loss alone costs the
// same. The workspace does not grow with Vocab then, but holds the float32 sums of dx: Chunk·Cols
// elements.
//
// With 512 rows, 256 Ki classes and 2,304 columns in bfloat16, on a processor of Zen 4, the tiles
// of the default take a workspace of 1.7 MB in place of 134 MB, and 1.2 times the processor's time;
// with a frozen w 1.4 times.
//
// On the CPU the loss of a row and its dx have the same bits in every chunk of 9 to 224 rows: products
// with fewer rows, or more, may add in another order. On GPUs that order may depend on Chunk too. dw is
// a sum over chunks, so its rounding always depends on Chunk. The rounding of all depends on Tile, and
// nothing on the number of workers.
type CrossEntropy struct {
	Vocab, Cols int // the shape of w, both at least 1
	// Chunk is the number of rows whose logits exist at a time; 0 means 128. Large chunks pass
	// over w and dw less often. On a GPU 128 rows are too few for the multiprocessors, and every
	// chunk launches each kernel once more: see DeviceChunk.
	Chunk int
	// Tile is the number of classes whose logits exist at a time; Vocab or more means all. 0 means all
	// where Vocab is up to 65,536, and 1,024 where it is larger. The default depends on Vocab alone, so that
	// the results of a row do not depend on how many rows there are. On a GPU, whose
	// multiprocessors a tile of 1 Ki classes does not fill, Tile: Vocab is faster where the
	// memory allows it.
	Tile int
	// Cap, unless 0, caps the logits, as final_logit_softcapping does in Gemma 2. It may be 2^-100
	// to 2^100.
	Cap float32
	// Temperature, unless 0, divides the logits, after the cap. It may be 2^-100 to 2^100, and so may
	// Cap/Temperature.
	Temperature float32
	// Bias, unless empty, has an element for each class, of the type of x and w. DBias, unless
	// empty, is float32 and receives its gradient as dw does: ← applies into, in every function
	// that computes gradients.
	Bias, DBias snug.View
	// Smoothing, from 0 to 1, is the share of the probability 1 that is taken from the target and given
	// to all classes in equal parts, the target included: label smoothing, after Szegedy et al., "Rethinking the Inception Architecture
	// for Computer Vision" (2016), as torch's label_smoothing.
	Smoothing float32
	// ZLoss, 0 or more, is the factor of the squares of lse in the loss, which keep the logits
	// from drifting: 1e-4 in Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways"
	// (2022).
	ZLoss float32
	// Weights, unless nil, has for each row the factor of its loss and so of its gradients, finite
	// and 0 or more. A call reads it, and keeps it no longer.
	Weights []float32
	// Losses, unless nil, collects the sum of the losses, and the Loss that the call returns has a Sum
	// of 0. On a device the call does not wait then.
	Losses *Losses
}

// Loss is the loss, in nats, of the rows that have a target.
type Loss struct {
	Sum     float64 // over rows that are not ignored, each times its weight
	Targets int     // the number of those rows; rows of weight 0 count, but not in Distill
	Weight  float64 // the sum of their weights, which is Targets without Weights
}

// Mean returns the mean that training reports, Sum / Weight. A Loss whose Weight is 0,
// as of a train.Model that sets Sum and Targets alone, is divided by Targets.
func (l Loss) Mean() float64 {
	if l.Weight == 0 {
		return l.Sum / float64(l.Targets)
	}
	return l.Sum / l.Weight
}

// Plus returns the loss of the rows of both.
func (l Loss) Plus(more Loss) Loss {
	return Loss{l.Sum + more.Sum, l.Targets + more.Targets, l.Weight + more.Weight}
}

const (
	// defaultChunk balances the workspace against passes over dw: with 128 rows
	// the product for dw does 32 operations a byte of dw moved.
	defaultChunk = 128
	// maxDeviceChunk rows fill a GPU with products of any width that models have.
	maxDeviceChunk = 2048
	// wholeVocab is the most classes that one tile has by default.
	wholeVocab = 64 << 10
	// defaultTile classes of 128 rows take half a MiB, which leaves room for dx in the second-level
	// caches.
	defaultTile = 1 << 10
)

// WorkspaceLen returns the workspace for rows rows, in float32 elements. With n = min(Chunk, rows)
// it is n·(Vocab+5) where Tile has all classes: the logits, statistics and the losses. Else it is
// n·(Tile+Cols+5), with sums of dx. It is 0 when c is not valid.
func (c CrossEntropy) WorkspaceLen(rows int) int {
	if rows <= 0 || !c.valid() {
		return 0
	}
	return product(c.chunk(rows), c.rowLen())
}

// rowLen returns the workspace of a row, and MaxInt where that overflows.
func (c CrossEntropy) rowLen() int {
	tile := c.tile()
	row := 1 + statsLen + min(tile, math.MaxInt-1-statsLen)
	if tile < c.Vocab {
		row += min(c.Cols, math.MaxInt-row)
	}
	return row
}

func (c CrossEntropy) valid() bool {
	return c.Vocab >= 1 && c.Cols >= 1 && c.Chunk >= 0 && c.Tile >= 0 && inRange(c.Cap) && inRange(c.Temperature) && c.quotientInRange() &&
		c.Smoothing >= 0 && c.Smoothing <= 1 && c.ZLoss >= 0 && c.ZLoss <= math.MaxFloat32
}

// inRange reports whether a divisor of logits is 0, for none, or such that float32 has its inverse.
func inRange(x float32) bool { return x == 0 || x >= 0x1p-100 && x <= 0x1p100 }

// quotientInRange is inRange for Cap/Temperature, which may be too small for a float32.
func (c CrossEntropy) quotientInRange() bool {
	return c.Cap == 0 || c.Cap*c.scale() != 0 && inRange(c.Cap*c.scale())
}

// scale returns what the logits are multiplied by last.
func (c CrossEntropy) scale() float32 {
	if c.Temperature == 0 {
		return 1
	}
	return 1 / c.Temperature
}

// chunk returns the number of rows in a chunk of rows rows.
func (c CrossEntropy) chunk(rows int) int {
	if c.Chunk == 0 {
		return min(rows, defaultChunk)
	}
	return min(rows, c.Chunk)
}

// DeviceChunk returns the Chunk that suits GPUs, a multiple of 128 from 128 to 2048: as many rows as
// have 64 MiB of logits, or as have logits of an eighth of the bytes of dw, whichever is more. It
// depends on the shapes alone. Package transformer takes it on all devices but the CPU, and package
// plan predicts it. It is 0 when c is not valid.
func (c CrossEntropy) DeviceChunk() int {
	if !c.valid() {
		return 0
	}
	const logits = 64 << 20 / 4
	rows := logits / c.tile()
	if c.tile() == c.Vocab {
		rows = max(rows, c.Cols/8)
	}
	return min(max(rows/defaultChunk*defaultChunk, defaultChunk), maxDeviceChunk)
}

// Tiles returns the number of tiles that the vocabulary is cut into, 0 when c is not valid. The
// cross-entropy computes the logits once with one tile, and with more of them twice where gradients are wanted.
func (c CrossEntropy) Tiles() int {
	if !c.valid() {
		return 0
	}
	return (c.Vocab-1)/c.tile() + 1
}

// tile returns the number of classes in a tile.
func (c CrossEntropy) tile() int {
	switch {
	case c.Tile > 0:
		return min(c.Tile, c.Vocab)
	case c.Vocab > wholeVocab:
		return defaultTile
	}
	return c.Vocab
}

// CrossEntropyLoss returns the loss without gradients, for evaluation.
//
// Shapes: x [len(targets), Cols]; w [Vocab, Cols]; ws at least
// c.WorkspaceLen(len(targets)) elements; c.Weights as long as targets, if there are any. A
// target of Vocab or more gives an error that wraps [snug.ErrShape] and names its index, a
// weight that is negative or not finite one that wraps [snug.ErrConfig]. The call waits for the
// device. Each worker holds the tiles of the matmul, less than 1 MiB, and the call
// its packed panels, less than 3 MiB.
func CrossEntropyLoss[V snug.Vector, L snug.Vector32](c CrossEntropy, x, w V, targets []int32, ws L) (Loss, error) {
	return c.loss(snug.ViewOf(x), snug.ViewOf(w), targets, snug.ViewOf(ws))
}

// CrossEntropyBackward returns the loss and computes the gradients of
// gradScale·Sum in the same pass. With p the softmax of a row's logits, c its logits after the cap and
// before the temperature, and g zero in ignored rows
//
//	g[j] = gradScale·ω·((1 + 2·ZLoss·lse)·p[j] − (1−Smoothing)·[j = t] − Smoothing/Vocab)
//	g[j] becomes g[j]·(1 − (c[j]/Cap)²)        with a Cap
//	g[j] becomes g[j]/Temperature              with a Temperature
//	dx = g·w
//	dw ← gᵀ·x
//	DBias ← Σ g over the rows
//
// where ← applies into, see [snug.Into]. For the mean loss gradScale is the loss scale divided by
// the sum of the weights of targets that are not ignored, Loss.Weight; it must be finite. With an
// accum.Window that sum is the weight of the micro-batch, n of Begin(n). Loss.Sum is not scaled. A
// micro-batch without targets has no backward pass.
//
// Shapes and errors are those of [CrossEntropyLoss], and dx is as x and dw as
// w; dw is float32. With a frozen w, dw may be empty, []float32(nil), which saves a third
// of the work; so may dx, where x is the input of the model.
//
// Aliasing: dx may be x, which then is lost.
func CrossEntropyBackward[V snug.Vector, G, L snug.Vector32](c CrossEntropy, dx V, dw G, x, w V, targets []int32, gradScale float32, into snug.Into, ws L) (Loss, error) {
	return c.backward(snug.ViewOf(dx), snug.ViewOf(dw), snug.ViewOf(x), snug.ViewOf(w),
		targets, gradScale, into, snug.ViewOf(ws))
}

func (c CrossEntropy) loss(x, w snug.View, targets []int32, ws snug.View) (Loss, error) {
	job := crossEntropyJob{head: head{config: c, x: x, w: w}, ws: ws}
	return job.launch("CrossEntropyLoss", targets)
}

func (c CrossEntropy) backward(dx, dw, x, w snug.View, targets []int32, gradScale float32, into snug.Into, ws snug.View) (Loss, error) {
	job := crossEntropyJob{head: head{config: c, dx: dx, dw: dw, x: x, w: w, into: into}, ws: ws, gradients: true, gradScale: gradScale}
	return job.launch("CrossEntropyBackward", targets)
}

// launch checks the operands, runs the job and waits for its loss.
func (j crossEntropyJob) launch(op string, targets []int32) (Loss, error) {
	check, c := &checks{op: op}, j.config
	c.check(check, "")
	j.checkGradients(check, j.gradients, j.gradScale)
	j.checkTypes(check, studentNames, j.gradients)
	check.f32(operand{"ws", j.ws})
	j.checkLens(check, studentNames, len(targets), j.gradients)
	check.workspace(j.ws, c.WorkspaceLen(len(targets)))
	c.checkWeights(check, len(targets), "targets")
	check.indices("targets", targets, "w", c.Vocab, true)
	dev := check.device(j.dx, j.dw, j.x, j.w, c.Bias, j.config.DBias, j.ws)
	if check.err != nil {
		return Loss{}, check.err
	}
	return launchLoss(op, dev, j, targets)
}

// check reports what is wrong with c, whose names the owner of a field in an error.
func (c CrossEntropy) check(check *checks, whose string) {
	bad := func(name string, value any, want string) {
		check.failf(snug.ErrConfig, "%s%s is %v, want %s", whose, name, value, want)
	}
	switch {
	case c.Vocab < 1:
		bad("Vocab", c.Vocab, "at least 1")
	case c.Cols < 1:
		bad("Cols", c.Cols, "at least 1")
	case c.Chunk < 0:
		bad("Chunk", c.Chunk, "0 or more")
	case c.Tile < 0:
		bad("Tile", c.Tile, "0 or more")
	case !inRange(c.Cap):
		bad("Cap", c.Cap, "0 or 2^-100 to 2^100")
	case !inRange(c.Temperature):
		bad("Temperature", c.Temperature, "0 or 2^-100 to 2^100")
	case !c.quotientInRange():
		bad("Cap/Temperature", c.Cap*c.scale(), "2^-100 to 2^100")
	case !c.valid():
		check.failf(snug.ErrConfig, "%sSmoothing is %v and ZLoss %v, want 0 to 1, and a finite number of 0 or more", whose, c.Smoothing, c.ZLoss)
	}
	for i, x := range c.Weights {
		if !(x >= 0 && x <= math.MaxFloat32) {
			check.failf(snug.ErrConfig, "%sWeights[%d] is %v, want a finite number of 0 or more", whose, i, x)
		}
	}
}

// checkPlain reports fields of c, which is whose, that belong to the cross-entropy alone.
func (c CrossEntropy) checkPlain(check *checks, whose string, weights bool) {
	for _, f := range []struct {
		set  bool
		name string
	}{{c.Smoothing != 0, "Smoothing"}, {c.ZLoss != 0, "ZLoss"}, {c.Losses != nil, "Losses"}, {weights && c.Weights != nil, "Weights"}} {
		if f.set {
			check.failf(snug.ErrConfig, "%s%s is set, which only CrossEntropyLoss and CrossEntropyBackward have", whose, f.name)
		}
	}
}

// checkWeights reports weights that are not as many as the rows, which what names.
func (c CrossEntropy) checkWeights(check *checks, rows int, what string) {
	if c.Weights != nil && len(c.Weights) != rows {
		check.failf(snug.ErrShape, "Weights has %d elements, want one for each of %d %s", len(c.Weights), rows, what)
	}
}

// launchLoss runs the job on dev and waits for its loss, or lets the Losses collect it.
func launchLoss(op string, dev *snug.Device, job crossEntropyJob, targets []int32) (loss Loss, err error) {
	loss = count(targets, job.config.Weights)
	losses := job.config.Losses
	if dev.IsCPU() {
		job.targets, job.weights = snug.SliceView(targets), snug.SliceView(job.config.Weights)
		if loss.Sum = job.sumLosses(job.targets.Len(), job.chunk); losses != nil {
			losses.known, loss.Sum = losses.known+loss.Sum, 0
		}
		return loss, nil
	}
	queued := job
	uploads := weightsUpload([]upload{indices(targets, &queued.targets)}, job.config.Weights, &queued.weights)
	if losses == nil {
		loss.Sum, err = launchSum(dev, &queued, &queued.sum, uploads)
	} else if queued.sum, err = losses.next(op, dev); err == nil {
		if err = launchWith(dev, &queued, uploads); err == nil {
			losses.n++
		}
	}
	if err != nil {
		return Loss{}, err
	}
	return loss, nil
}

func weightsUpload(uploads []upload, weights []float32, view *snug.View) []upload {
	if weights == nil {
		return uploads
	}
	return append(uploads, upload{snug.SliceView(weights), view})
}

// launchSum runs a job whose operand sum is 8 bytes on the device, and brings them back.
func launchSum(dev *snug.Device, job driver.Job, at *snug.View, uploads []upload) (sum float64, err error) {
	result, err := device.Lend(dev, snug.U8, 8)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, device.Return(result)) }()
	*at = result
	if err := launchWith(dev, job, uploads); err != nil {
		return 0, err
	}
	var bits [8]byte
	if err := snug.Copy(snug.SliceView(bits[:]), result); err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(bits[:])), nil
}

// count returns the Loss of targets, without its sum.
func count(targets []int32, weights []float32) (l Loss) {
	for i, t := range targets {
		if t < 0 {
			continue
		}
		l.Targets++
		if weights != nil {
			l.Weight += float64(weights[i])
		}
	}
	if weights == nil {
		l.Weight = float64(l.Targets)
	}
	return l
}
