package plan

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

// Task says what to train and on which device. The zero value of an option is its
// default.
type Task struct {
	Model  Model
	Device Device
	Batch  int // samples of a step, over all its micro-batches; with Ranks those of one rank

	// Ranks is the number of processes that make a step together, each with a Device of its own; 0 is 1. The gradients
	// are then SumF32, on the device. Bucket is Options.Bucket of package train; 0 is 1048576.
	Ranks, Bucket int

	// Optimizer is the Name of a rule of package quant8, see [Optimizers]; default "adamw".
	Optimizer string
	// OptimizerRank is the Rank of an optimizer that projects gradients; 0 is its default.
	OptimizerRank int
	// LossRows is the number of rows of logits that exist at a time. The default is 128 in unified memory. On a device with a
	// memory of its own it is DeviceChunk of fused.CrossEntropy, 128 to 2048, and [Task.Fit] takes fewer, at least 128,
	// where no fastest run fits otherwise.
	LossRows int
	// LossClasses is the number of classes whose logits exist at a time. The default is all of them on a device with a
	// memory of its own, and else the default of Tile of fused.CrossEntropy.
	LossClasses int
	Chunk       int // elements of a page of paged state; default 65536
	// Micro, unless 0, is the most samples of a micro-batch, for a run that goes on as it began: its
	// sums are rounded by it. Else [Task.Fit] chooses.
	Micro int
	// Rank, unless 0, trains a pair of matrices of that rank for every matrix in the
	// chain (Hu et al. 2022, "LoRA", arXiv:2106.09685), and nothing else. In a
	// transformer these are the layers of PEFT's target "all-linear", and in a [CNN] its
	// convolutions, which nothing in this module trains: the figure is for a program of one's own. For a model without matrices Rank must be 0. As in PEFT the adapters
	// are float32, whatever the weights are, and have no master weights.
	Rank int
	// DoRA gives each adapter trained magnitudes of the rows of its matrix (Liu et al. 2024,
	// arXiv:2402.09353), with their norms and quotients in float32. Dropout drops elements of the
	// inputs of adapters. Both want a Rank.
	DoRA, Dropout bool
	// FrozenA trains the second matrix of each adapter alone (Zhang et al. 2023, "LoRA-FA", arXiv:2308.03303). It
	// wants a Rank, and does not go with DoRA.
	FrozenA bool
	// Init is the Init of the adapters, as package qlora names it. With "pissa" and "olora" package transformer keeps
	// their first values in memory, and to make these, of a matrix that was read, takes memory. It wants what FrozenA
	// wants. "loftq" makes up for what NF4 loses, and wants it as the Base.
	Init string
	// VeRA trains two vectors for each matrix, of Rank elements and of as many as its outputs, and all share a frozen
	// pair of matrices in float32 (Kopiczko et al. 2023, arXiv:2310.11454). It wants a Rank, and none of DoRA, FrozenA
	// and Init.
	VeRA bool
	// Beside are the shapes of parameters of the model that train beside the adapters, such as an embedding: PEFT's
	// modules_to_save. They have the compute type, gradients, state and master weights. A tied head comes once. Shapes of three
	// dimensions, such as [1, out, in], are of a module beside the model, such as a projector of images, and not weights of the Model.
	Beside [][]int
	// Teacher, unless nil, is a frozen model from which the model learns.
	Teacher *Teacher
	// Base is the form of frozen weights of fewer than 16 bits; 0 is qlora.NF4. FP8 has scales by block.
	Base qlora.Type
	// Own is for a program of one's own on the primitives. It allows what packages transformer and train do not do:
	// all weights off the device, gradients on the host, sums of gradients in bfloat16, and master weights beside updates
	// in the backward pass. Without Own, what [Run.CheckStep] and [Run.CheckWeights] refuse is an error, and [Task.Fit]
	// does not offer it.
	Own bool
	// Process, unless nil, is the process that trains on the CPU. The limit of [Task.Fit] is then of its resident memory.
	Process *Process

	// Lists that Fit chooses from. Lossy values change the arithmetic of a step and are
	// not among the defaults.
	Compute   []snug.DType     // types of weights and activations; default BF16 and F32
	Masters   []amp.MasterForm // default FullMaster and SplitMaster; Split24Master, of 1 byte, and NoMaster are lossy
	Gradients []Gradient       // default SumF32 and, for optimizers that take it, InBackward; SumBF16 and Folded are lossy, and Folded is for optimizers that fold
	StateBits []int            // default 32 and 8; 16 and 4 are lossy
	Frozen    []int            // bits of the weights under adapters: 16, and 8 or 4 of Base; default both
	Shard     []Sharding       // with Ranks; default Replicate and, for optimizers that can update parts of parameters, the others
	Tiles     []int            // numbers of tiles of rows of layers that have [Tiles]; default 1; more are lossy: sums over rows are rounded differently
}

// Gradient says how gradients are held.
type Gradient int

const (
	// SumF32 adds up the gradients of the micro-batches in float32, as package accum
	// does.
	SumF32 Gradient = iota
	// SumBF16 adds them up in bfloat16.
	SumBF16
	// InBackward steps each parameter as soon as its gradient is complete, as
	// StepInBackward of package quant8 does: about one gradient is held at a time, see the
	// package comment, and a step is one micro-batch.
	InBackward
	// Folded is InBackward with any number of micro-batches, as FoldInBackward of package
	// quant8 does: each gradient is folded into the optimizer's state.
	Folded
)

var gradientNames = [...]string{"f32", "bf16", "in-backward", "folded"}

// onePer says whether one gradient is held at a time.
func (g Gradient) onePer() bool { return g == InBackward || g == Folded }

// String returns "f32", "bf16", "in-backward" or "folded".
func (g Gradient) String() string {
	if g < 0 || int(g) >= len(gradientNames) {
		return fmt.Sprintf("Gradient(%d)", int(g))
	}
	return gradientNames[g]
}

// Run is one way to do a [Task]. The zero value of all fields except the counts is
// training without techniques.
type Run struct {
	Micro     int            // maximum number of samples of a micro-batch
	Window    int            // micro-batches of a step
	Compute   snug.DType     // type of weights and activations; 0: F32
	Masters   amp.MasterForm // master weights for trained weights of 16 bits
	Gradients Gradient
	StateBits int        // bits of the optimizer's state; 0: 32
	Frozen    int        // bits of the weights under adapters, 16, 8 or 4; 0: the bits of Compute
	Shard     Sharding   // what the ranks divide
	Tiled     bool       // attention with tiles, which keeps a number for each row instead of all probabilities
	Tiles     int        // tiles of rows of layers that have [Tiles], fewer in small micro-batches; 0: 1
	Remat     remat.Plan // recomputation in the chain's layers; without operations: keep all

	WeightsOn   meter.Tier // OnHost or OnDisk: two layers at a time are on the device
	LayersHeld  int        // number of first layers whose weights stay on the device nevertheless
	GradientsOn meter.Tier // OnHost: the gradients of one layer are on the device
	StateOn     meter.Tier // tier of masters and state
	// Cache is the maximum number of bytes of pages of the disk that the host holds.
	Cache int64
}

const maxBatch = 1 << 24

// check fills in defaults of t and validates it.
func (t Task) check() (Task, error) {
	if err := t.Model.Validate(); err != nil {
		return t, err
	}
	if err := t.Device.Validate(); err != nil {
		return t, err
	}
	t.Optimizer = cmp.Or(t.Optimizer, "adamw")
	t.LossRows = cmp.Or(t.LossRows, t.lossRows())
	t.Chunk = cmp.Or(t.Chunk, 1<<16)
	setDefault(&t.Compute, snug.BF16, snug.F32)
	if t.forwardOnly() {
		setDefault(&t.Masters, amp.FullMaster)
		setDefault(&t.StateBits, 32)
	}
	setDefault(&t.Masters, amp.FullMaster, amp.SplitMaster)
	t.Ranks = cmp.Or(t.Ranks, 1)
	t.Bucket = cmp.Or(t.Bucket, 1<<20)
	if !t.takes(quant8.InBackward) || t.Ranks > 1 {
		setDefault(&t.Gradients, SumF32)
	}
	if t.Ranks > 1 && t.takes(quant8.Sharded) {
		if all := []Sharding{Replicate, ShardState, ShardGradients, ShardWeights}; t.Own || t.Device.Unified {
			setDefault(&t.Shard, all...)
		} else { // pages of weights are for the CPU
			setDefault(&t.Shard, all[:3]...)
		}
	}
	setDefault(&t.Shard, Replicate)
	setDefault(&t.Gradients, SumF32, InBackward)
	setDefault(&t.StateBits, 32, 8)
	if t.Init == "loftq" {
		setDefault(&t.Frozen, 4)
	}
	setDefault(&t.Frozen, 16, t.baseBits())
	setDefault(&t.Tiles, 1)
	for _, n := range []struct {
		name       string
		n, lo, top int
	}{{"Batch", t.Batch, 1, maxBatch}, {"LossRows", t.LossRows, 1, maxBatch}, {"LossClasses", t.LossClasses, 0, 1 << 28}, {"Micro", t.Micro, 0, t.Batch}, {"Chunk", t.Chunk, 32, 1 << 27}, {"Ranks", t.Ranks, 1, 1 << 20}, {"Bucket", t.Bucket, 1, 1 << 30}, {"Rank", t.Rank, 0, 1 << 16}} {
		if n.n < n.lo || n.n > n.top {
			return t, invalid("%s is %d, want %d to %d", n.name, n.n, n.lo, n.top)
		}
	}
	beside := t.besideLen(true)
	switch {
	case t.Rank == 0 && (t.DoRA || t.Dropout):
		return t, invalid("DoRA is %t and Dropout %t, which are for adapters, and Rank is 0", t.DoRA, t.Dropout)
	case (t.FrozenA || t.Init != "") && (t.Rank == 0 || t.DoRA):
		return t, invalid("FrozenA is %t and Init %.40q, which are for adapters without magnitudes, and Rank is %d and DoRA %t", t.FrozenA, t.Init, t.Rank, t.DoRA)
	case t.Init != "" && t.Init != "loftq" && !t.keepsFirst():
		return t, invalid("Init is %.40q, want pissa, pissa_niter_N, olora or loftq", t.Init)
	case t.Init == "loftq" && t.Base != 0 && t.Base != qlora.NF4:
		return t, invalid("Init is loftq, which makes up for what NF4 loses, and Base is %s", t.Base)
	case t.VeRA && (t.Rank == 0 || t.DoRA || t.FrozenA || t.Init != ""):
		return t, invalid("VeRA wants a Rank, and is without DoRA, FrozenA and Init: Rank is %d", t.Rank)
	case len(t.Beside) > 0 && (t.Rank == 0 || beside < 1 || t.besideLen(false) > t.Model.Parameters()):
		return t, invalid("Beside has %d parameters of %d elements, want some of the model's %d beside adapters, and Rank is %d", len(t.Beside), beside, t.Model.Parameters(), t.Rank)
	case t.Ranks > 1 && t.Device.Network == 0:
		return t, invalid("%d ranks, and the Network of device %.40q is 0", t.Ranks, t.Device.Name)
	}
	var err error
	if t.Process, err = t.Process.check(); err != nil {
		return t, err
	}
	for _, check := range []func() error{func() error { return t.Teacher.check(t) }, t.checkChoices, t.checkSizes, t.checkOptimizer} {
		if err = check(); err != nil {
			return t, err
		}
	}
	return t, nil
}

// checkWith is check, and that of a run.
func (t Task) checkWith(r Run) (Task, error) {
	t, err := t.check()
	if err == nil {
		err = t.checkRun(r)
	}
	return t, err
}

// checkSizes reports whether all counts are far below the largest int64, and counts of
// rows and of logits below the largest int, which is smaller on 32-bit systems.
func (t Task) checkSizes() error {
	h, adapters, kept := t.Model.Head, 0.0, 0.0
	for _, l := range t.Model.Layers {
		for i, shape := range l.Params {
			if l.adapts(i) {
				adapters += (float64(t.Rank)*(float64(shape[0])+float64(shape[1])) + float64(t.magnitudes(shape))) * float64(l.repeat())
				kept += float64(int64(t.Rank)+t.magnitudes(shape)+int64(shape[1])) * float64(l.Rows) * float64(l.repeat())
			}
		}
	}
	logits := (float64(h.Classes) + 5) * float64(t.LossRows)
	size := 16 * ((t.Model.perSample()+kept)*float64(t.Batch) + logits)
	rows := t.Model.rows() * float64(t.Batch)
	switch {
	case t.Rank > 0 && adapters == 0:
		return invalid("Rank is %d, but the chain of model %.40q has no matrices for adapters", t.Rank, t.Model.Name)
	case !(adapters < 1<<50):
		return shapeless("adapters of rank %d have %.3g elements, want less than 2^50", t.Rank, adapters)
	case !(size < 1<<60):
		return shapeless("a batch of %d samples takes up to %.3g bytes, want less than 2^60", t.Batch, size)
	case rows > math.MaxInt:
		return shapeless("a batch of %d samples has %.3g rows, more than an int", t.Batch, rows)
	case logits > math.MaxInt:
		return shapeless("%d rows of logits have %.3g elements, more than an int", t.LossRows, logits)
	}
	return nil
}

// checkChoices checks the lists that Fit chooses from, one value at a time.
func (t Task) checkChoices() error {
	var all []Run
	for _, c := range t.Compute {
		if c == 0 {
			return invalid("Compute has an invalid type")
		}
		all = append(all, Run{Compute: c})
	}
	for _, m := range t.Masters {
		all = append(all, Run{Masters: m})
	}
	for _, g := range t.Gradients {
		all = append(all, Run{Gradients: g})
	}
	for _, bits := range t.StateBits {
		if bits == 0 {
			bits = -1
		}
		all = append(all, Run{StateBits: bits})
	}
	if t.Rank > 0 {
		for _, bits := range t.Frozen {
			all = append(all, Run{Frozen: bits})
		}
	}
	for _, n := range t.Tiles {
		all = append(all, Run{Tiles: n})
	}
	for _, s := range t.Shard {
		all = append(all, Run{Shard: s})
	}
	for _, r := range all {
		r.Micro, r.Window = t.Batch, 1
		if err := t.checkRun(r); err != nil {
			return err
		}
	}
	return nil
}

func setDefault[T any](list *[]T, values ...T) {
	if len(*list) == 0 {
		*list = values
	}
}

// checkRun reports whether r is a valid run of t.
func (t Task) checkRun(r Run) error {
	problem := ""
	switch {
	case r.Micro < 1 || r.Window < 1 || r.Micro > t.Batch || r.Window > t.Batch || int64(r.Window)*int64(r.Micro) < int64(t.Batch):
		problem = fmt.Sprintf("%d micro-batches of at most %d samples do not make a batch of %d", r.Window, r.Micro, t.Batch)
	case r.Compute != 0 && r.Compute != snug.F32 && r.Compute != snug.BF16 && r.Compute != snug.F16:
		problem = fmt.Sprintf("Compute is %v, want f32, bf16 or f16", r.Compute)
	case r.Masters > amp.Split24Master:
		problem = fmt.Sprintf("Masters is %v, want full, split, split24 or none", r.Masters)
	case r.Compute == snug.F16 && forBF16(r.Masters):
		problem = fmt.Sprintf("%v masters are for bf16", r.Masters)
	case r.Gradients < 0 || r.Gradients > Folded:
		problem = fmt.Sprintf("Gradients is %v, want f32, bf16, in-backward or folded", r.Gradients)
	case r.Gradients == InBackward && r.Window > 1:
		problem = fmt.Sprintf("a step during the backward pass has one micro-batch, not %d", r.Window)
	case r.Gradients.onePer() && r.GradientsOn != meter.OnDevice:
		problem = "gradients that are used during the backward pass stay on the device"
	case r.Shard < 0 || r.Shard > ShardWeights || r.Shard != Replicate && t.Ranks == 1:
		problem = fmt.Sprintf("Shard is %v with %d ranks, want replicate, or state, gradients or weights with more than one", r.Shard, t.Ranks)
	case r.Shard == ShardWeights && r.WeightsOn != meter.OnDevice:
		problem = fmt.Sprintf("Shard is %v, and they are on the %v", r.Shard, r.WeightsOn)
	case t.Ranks > 1 && r.GradientsOn != meter.OnDevice:
		problem = fmt.Sprintf("%d ranks add gradients on the device, and these are on the %v", t.Ranks, r.GradientsOn)
	case r.StateBits != 0 && r.StateBits != 4 && r.StateBits != 8 && r.StateBits != 16 && r.StateBits != 32:
		problem = fmt.Sprintf("StateBits is %d, want 4, 8, 16 or 32", r.StateBits)
	case t.Base != 0 && t.Base.String() == "invalid":
		problem = fmt.Sprintf("Base is %d, want a type of package qlora", t.Base)
	case r.Frozen != 0 && (t.Rank == 0 || r.Frozen != 16 && r.Frozen != t.baseBits()):
		problem = fmt.Sprintf("Frozen is %d, want 16 or %d with adapters, 0 without", r.Frozen, t.baseBits())
	case t.Init == "loftq" && r.Frozen == 16:
		problem = "Frozen is 16, and adapters of loftq are for weights in NF4"
	case r.WeightsOn < 0 || r.WeightsOn >= meter.Tiers || r.StateOn < 0 || r.StateOn >= meter.Tiers || r.GradientsOn < 0 || r.GradientsOn > meter.OnHost:
		problem = "weights and state are on the device, host or disk, gradients on the device or host"
	case r.LayersHeld < 0 || r.LayersHeld > t.Model.stages() || r.LayersHeld > 0 && r.WeightsOn == meter.OnDevice:
		problem = fmt.Sprintf("LayersHeld is %d, want 0 to %d, and 0 with all weights on the device", r.LayersHeld, t.Model.stages())
	case r.Tiles < 0 || r.Tiles > maxBatch:
		problem = fmt.Sprintf("Tiles is %d, want 0 to %d", r.Tiles, maxBatch)
	case r.Cache < 0 || r.Cache > 1<<60:
		problem = fmt.Sprintf("Cache is %d bytes, want 0 to 2^60", r.Cache)
	default:
		return t.checkDone(r)
	}
	return invalid("%s", problem)
}

// elem returns the bytes of an element of weights and activations.
func (r Run) elem() int64 {
	if r.Compute == 0 || r.Compute == snug.F32 {
		return 4
	}
	return 2
}

// trainedElem returns the bytes of an element of a trained parameter: adapters are float32.
func (t Task) trainedElem(r Run) int64 {
	if t.Rank > 0 {
		return 4
	}
	return r.elem()
}

// keepsFirst reports whether the first values of adapters stay in memory.
func (t Task) keepsFirst() bool {
	return t.Init == "olora" || t.Init == "pissa" || strings.HasPrefix(t.Init, "pissa_niter_")
}

// mastered returns how many of the trained elements have master weights, if they are in 16 bits: adapters have none.
func (t Task) mastered(trained int64) int64 {
	if t.Rank > 0 {
		return t.besideLen(true)
	}
	return trained
}

// masterBytes returns the bytes of a master weight.
func (t Task) masterBytes(r Run) int64 {
	if r.elem() == 4 || t.mastered(1) == 0 || t.forwardOnly() || r.Gradients.onePer() && !t.Own {
		return 0
	}
	return [...]int64{amp.FullMaster: 4, amp.SplitMaster: 2, amp.Split24Master: 1, amp.NoMaster: 0}[r.Masters]
}

// forBF16 reports whether a form of master weights is for bfloat16 alone.
func forBF16(m amp.MasterForm) bool { return m == amp.SplitMaster || m == amp.Split24Master }

// besideLen returns the number of elements of Beside, -1 for a shape that is not valid; without others, of the model's own.
func (t Task) besideLen(others bool) (n int64) {
	for _, shape := range t.Beside {
		if !others && len(shape) > 2 {
			continue
		}
		for _, d := range shape {
			if d < 1 || int64(d) > maxCount {
				return -1
			}
		}
		n = saturate.Add(n, tensor{shape: shape}.len())
	}
	return n
}
