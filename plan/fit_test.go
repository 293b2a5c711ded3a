package plan

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
)

// checkPlan holds a plan against its limits, its batch and the formulas.
func checkPlan(t require.TestingT, p Plan) {
	r, task := p.Run, p.Task
	require.LessOrEqual(t, p.Peak[meter.OnDevice].Total(), p.Limit)
	require.LessOrEqual(t, p.Peak[meter.OnHost].Total(), task.Device.Host)
	require.LessOrEqual(t, p.Peak[meter.OnDisk].Total(), task.Device.Disk)
	require.GreaterOrEqual(t, r.Micro*r.Window, task.Batch)
	require.Less(t, (r.Window-1)*r.Micro, task.Batch, "no micro-batch is empty")
	again, err := task.Predict(r)
	require.NoError(t, err)
	require.Equal(t, again.Peak, p.Peak)
	require.InEpsilon(t, again.Seconds, p.Seconds, 1e-9)

	// What is anywhere is what there is of it.
	n := task.Model.Parameters()
	elsewhere := func(c meter.Component) int64 { return p.Peak[meter.OnHost][c] + p.Peak[meter.OnDisk][c] }
	if task.Rank == 0 {
		weights := p.Peak[meter.OnDevice][meter.Weights]
		if r.WeightsOn != meter.OnDevice {
			weights = elsewhere(meter.Weights)
			if r.LayersHeld > 0 {
				weights += task.pagedWeights(r).held[r.LayersHeld-1]
			}
		}
		require.Equal(t, n*r.elem(), weights)
		require.Equal(t, n*task.masterBytes(r), p.Peak[meter.OnDevice][meter.Masters]+elsewhere(meter.Masters))
		if task.Optimizer == "adamw" {
			require.GreaterOrEqual(t, p.Peak[meter.OnDevice][meter.State]+elsewhere(meter.State), n)
		}
	}
	require.Len(t, p.reasons(), len(p.Choices))
	for _, c := range p.Choices {
		require.Equal(t, c.Without.Peak[meter.OnDevice].Total()-p.Peak[meter.OnDevice].Total(), c.Saves)
		if c.Without.Peak[meter.OnDevice].Total() <= p.Limit && c.Without.Peak[meter.OnHost].Total() <= task.Device.Host && c.Without.Peak[meter.OnDisk].Total() <= task.Device.Disk {
			require.GreaterOrEqual(t, c.Without.Seconds, p.Seconds*(1-1e-9), "%s: undone it would be faster", c.Name)
		}
	}
}

// checkChoices holds what a plan says of each choice against a prediction of the run without
// it, and against a plan of a task that allows nothing else.
func checkChoices(t require.TestingT, p Plan) {
	task := p.Task
	for _, c := range p.Choices {
		alone, err := task.Predict(c.Other)
		require.NoError(t, err, c.Name)
		require.Equal(t, alone, c.Without, c.Name)
		fits := alone.Peak[meter.OnDevice].Total() <= p.Limit && alone.Peak[meter.OnHost].Total() <= task.Device.Host && alone.Peak[meter.OnDisk].Total() <= task.Device.Disk
		require.Equal(t, fits, c.Fits, c.Name)
		if strings.HasPrefix(c.Reason, "it fits") {
			require.True(t, c.Fits, c.Name)
			continue
		}
		require.Equal(t, fits, strings.HasPrefix(c.Reason, "it would fit without it"), "%s: %s", c.Name, c.Reason)
		if !fits {
			continue
		}
		only := task
		o := c.Other
		only.Compute, only.Masters, only.Gradients = []snug.DType{o.Compute}, []amp.MasterForm{o.Masters}, []Gradient{o.Gradients}
		only.StateBits = []int{o.StateBits}
		if o.Frozen != 0 {
			only.Frozen = []int{o.Frozen}
		}
		_, err = Best(only.Fit(p.Limit))
		require.NoError(t, err, "%s: %s", c.Name, c.Reason)
	}
}

// TestHostAndDiskCountInChoices: state that would fit on the device's limit but not on the
// host is not said to fit, whichever tier is too small.
func TestHostAndDiskCountInChoices(t *testing.T) {
	m, err := ModelNamed("llama-7b", 0)
	require.NoError(t, err)
	d, err := DeviceNamed("24GB")
	require.NoError(t, err)
	said := map[meter.Tier]bool{}
	for _, host := range []int64{32 * gib, 56 * gib, 72 * gib} {
		for _, disk := range []int64{0, 40 * gib} {
			d.Host, d.Disk = host, disk
			p, err := Best(Task{Model: m, Device: d, Batch: 32, Own: true, StateBits: []int{8}, Gradients: []Gradient{SumF32, SumBF16}}.Fit(0))
			if errors.Is(err, snug.ErrNoMemory) {
				continue
			}
			require.NoError(t, err)
			checkChoices(t, p)
			for _, c := range p.Choices {
				for tier, limit := range p.Task.limits(p.Limit) {
					if c.Without.Peak[meter.OnDevice].Total() <= p.Limit && c.Without.Peak[tier].Total() > limit {
						require.Contains(t, c.Reason, fmt.Sprintf("without it the %v would hold ", meter.Tier(tier)))
						said[meter.Tier(tier)] = true
					}
				}
			}
		}
	}
	require.Equal(t, map[meter.Tier]bool{meter.OnHost: true, meter.OnDisk: true}, said)
}

// TestChoicesThatFit: the same for small tasks of all kinds, under limits of all tiers.
func TestChoicesThatFit(t *testing.T) {
	fewDraws(t)
	rapid.Check(t, propertyChoices)
}

// fewDraws lets the properties of a test draw 30 times, unless a flag says how often: each searches for up to a second.
func fewDraws(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() == checks.DefValue {
		require.NoError(t, checks.Value.Set("30"))
		t.Cleanup(func() { require.NoError(t, checks.Value.Set(checks.DefValue)) })
	}
}

func FuzzChoices(f *testing.F) { f.Fuzz(rapid.MakeFuzz(propertyChoices)) }

func propertyChoices(t *rapid.T) {
	task := drawTask(t)
	free, err := Best(task.Fit(1 << 40))
	require.NoError(t, err)
	whole := free.Peak[meter.OnDevice].Total()
	share := func(name string) int64 { return whole * rapid.Int64Range(0, 120).Draw(t, name) / 100 }
	task.Device.Host, task.Device.Disk = share("host share"), share("disk share")
	p, err := Best(task.Fit(max(1, share("limit share"))))
	var miss *MissError
	if !errors.As(err, &miss) {
		require.NoError(t, err)
		checkPlan(t, p)
		checkChoices(t, p)
		return
	}
	minimum, err := meter.ParseBytes(strings.ReplaceAll(meter.FormatBytesUp(miss.Minimum), " ", ""))
	require.NoError(t, err)
	_, err = Best(task.Fit(minimum))
	require.NoError(t, err, "%s is said to be enough", meter.FormatBytesUp(miss.Minimum))
	if n := len(miss.Changes); n > 0 {
		one := rapid.IntRange(0, n-1).Draw(t, "change")
		checkChanges(t, task, &MissError{Limit: miss.Limit, Changes: miss.Changes[one : one+1]})
	}
}

// checkChanges requires that a task fits with each change that a miss proposes, under the limits
// of all tiers.
func checkChanges(t require.TestingT, task Task, miss *MissError) {
	rows := task.LossRows
	task, err := task.check()
	require.NoError(t, err)
	task.LossRows = rows // with 0 they are fewer where that fits
	for _, c := range miss.Changes {
		p, err := Best(changed(t, task, c.What).Fit(miss.Limit))
		require.NoError(t, err, c.What)
		checkPlan(t, p)
		require.LessOrEqual(t, p.Seconds, c.Seconds*(1+1e-9), c.What) // of a size that is rounded up
	}
}

// changed makes a change by its words.
func changed(t require.TestingT, task Task, what string) Task {
	if what == fmt.Sprintf("train adapters of rank %d", adapterRank) {
		task.Rank = adapterRank
		return task
	}
	size, of, found := strings.Cut(what, " of ")
	if n, err := meter.ParseBytes(strings.ReplaceAll(size, " ", "")); found && err == nil {
		switch of {
		case "host memory":
			task.Device.Host = n
		case "disk":
			task.Device.Disk = n
		default:
			require.Equal(t, "disk, and 1.00 GiB of host memory for its pages", of)
			task.Device.Host, task.Device.Disk = gib, n
		}
		return task
	}
	for name := range strings.SplitSeq(what, ", ") {
		known := false
		for _, r := range relaxations {
			if r.what == name {
				r.allow(&task)
				known = true
			}
		}
		require.True(t, known, "%q of %q", name, what)
	}
	return task
}

// TestChangesOnEveryTier: what a miss proposes is kept where the host or the disk is too small,
// and in unified memory.
func TestChangesOnEveryTier(t *testing.T) {
	m, err := ModelNamed("gpt-34m", 0)
	require.NoError(t, err)
	const mib = 1 << 20
	fits, said := 0, map[string]bool{}
	for _, device := range []string{"8GB", "16GB-unified"} {
		d, err := DeviceNamed(device)
		require.NoError(t, err)
		for _, d.Host = range []int64{0, 100 * mib, 250 * mib} {
			for _, d.Disk = range []int64{0, 150 * mib} {
				task := Task{Model: m, Device: d, Batch: 8, Own: d.Disk > 0, StateBits: []int{32}, Gradients: []Gradient{SumF32}}
				_, err := Best(task.Fit(200 * mib))
				var miss *MissError
				if !errors.As(err, &miss) {
					require.NoError(t, err)
					fits++
					continue
				}
				checkChanges(t, task, miss)
				for _, c := range miss.Changes {
					said[c.What] = true
				}
			}
		}
	}
	require.Less(t, fits, 6)
	require.Greater(t, len(said), 5)
}

// TestPlansOfGuides: models of 34 M, 2 B and 7 B parameters on devices of 8 to 80 GB, with
// 32 sequences a step, in device memory alone, with a host of 64 GiB, and with a disk.
func TestPlansOfGuides(t *testing.T) {
	t.Parallel()
	type free struct{ host, disk int64 }
	spaces := []free{{}, {64 * gib, 0}, {64 * gib, 1 << 40}}
	fits := map[string]int{ // in how many of those
		"gpt-34m 8GB": 3, "gpt-34m 12GB": 3, "gpt-34m 16GB": 3, "gpt-34m 24GB": 3, "gpt-34m 40GB": 3, "gpt-34m 80GB": 3, "gpt-34m 16GB-unified": 3,
		"llama-2b 8GB": 2, "llama-2b 12GB": 2, "llama-2b 16GB": 2, "llama-2b 24GB": 3, "llama-2b 40GB": 3, "llama-2b 80GB": 3, "llama-2b 16GB-unified": 1,
		"llama-7b 8GB": 2, "llama-7b 12GB": 2, "llama-7b 16GB": 2, "llama-7b 24GB": 2, "llama-7b 40GB": 2, "llama-7b 80GB": 3, "llama-7b 16GB-unified": 1,
	}
	for _, model := range []string{"gpt-34m", "llama-2b", "llama-7b"} {
		m, err := ModelNamed(model, 0)
		require.NoError(t, err)
		for _, d := range Devices() {
			if !kerneltest.Full() && d.Name != "24GB" {
				continue
			}
			found := 0
			for _, r := range spaces {
				d.Host, d.Disk = r.host, r.disk
				p, err := Best(Task{Model: m, Device: d, Batch: 32, Own: true}.Fit(0))
				var miss *MissError
				if errors.As(err, &miss) {
					require.ErrorIs(t, err, snug.ErrNoMemory)
					require.Positive(t, miss.Missing())
					continue
				}
				require.NoError(t, err)
				found++
				checkPlan(t, p)
				checkChoices(t, p)
			}
			name := model + " " + d.Name
			require.Equal(t, fits[name], found, name)
		}
	}
}

// TestEffectiveBatch: 32 sequences a step stay 32, in whatever micro-batches, on a card of
// 12 GB, on 16 GB of unified memory, and for images.
func TestEffectiveBatch(t *testing.T) {
	for _, c := range []struct{ model, device string }{
		{"gpt2", "12GB"}, {"gpt2", "16GB-unified"}, {"vit-b16", "12GB"}, {"resnet-50", "12GB"}, {"gpt2-xl", "16GB-unified"},
	} {
		m, err := ModelNamed(c.model, 0)
		require.NoError(t, err)
		d, err := DeviceNamed(c.device)
		require.NoError(t, err)
		p, err := Best(Task{Model: m, Device: d, Batch: 32, Own: true}.Fit(0))
		require.NoError(t, err, "%v", c)
		checkPlan(t, p)
		require.Equal(t, 32, p.Task.Batch)
	}
}

// TestMicro: a task may say its micro-batch, also where another one is faster or the only one that fits.
func TestMicro(t *testing.T) {
	m, err := GPT{Vocab: 512, Dim: 64, Layers: 3, Heads: 4, Context: 64}.Model()
	require.NoError(t, err)
	d, err := DeviceNamed("8GB")
	require.NoError(t, err)
	free, err := Best(Task{Model: m, Device: d, Batch: 8}.Fit(0))
	require.NoError(t, err)
	require.Equal(t, 8, free.Run.Micro)
	for _, micro := range []int{1, 3, 8} {
		p, err := Best(Task{Model: m, Device: d, Batch: 8, Micro: micro}.Fit(0))
		require.NoError(t, err)
		require.Equal(t, "it is given", p.Choices[0].Reason)
		require.Equal(t, []int{micro, (8 + micro - 1) / micro}, []int{p.Run.Micro, p.Run.Window})
	}
	one, err := Best(Task{Model: m, Device: d, Batch: 8, Micro: 1}.Fit(0))
	require.NoError(t, err)
	_, err = Best(Task{Model: m, Device: d, Batch: 8, Micro: 8}.Fit(one.Peak[meter.OnDevice].Total()))
	require.ErrorIs(t, err, snug.ErrNoMemory)
	_, err = Best(Task{Model: m, Device: d, Batch: 8, Micro: 4, Gradients: []Gradient{InBackward}, Compute: []snug.DType{snug.F32}}.Fit(0))
	require.ErrorIs(t, err, snug.ErrNoMemory, "a step in the backward pass has one micro-batch")
	folded, err := Best(Task{Model: m, Device: d, Batch: 8, Micro: 4, Gradients: []Gradient{Folded}, Masters: []amp.MasterForm{amp.NoMaster}}.Fit(0))
	require.NoError(t, err)
	require.Equal(t, 2, folded.Run.Window)
	_, err = Best(Task{Model: m, Device: d, Batch: 8, Optimizer: "lion", Gradients: []Gradient{Folded}}.Fit(0))
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, micro := range []int{-1, 9} {
		_, err = Best(Task{Model: m, Device: d, Batch: 8, Micro: micro}.Fit(0))
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "Micro is")
	}
}

// TestLimitWithHostAndDisk: 13 B parameters under 39 GiB, with a host and a disk.
func TestLimitWithHostAndDisk(t *testing.T) {
	m, err := ModelNamed("llama-2b", 0)
	require.NoError(t, err)
	d, err := DeviceNamed("8GB")
	require.NoError(t, err)
	const limit = 7 * gib
	d.Host, d.Disk = 64*gib, 1<<40
	p, err := Best(Task{Model: m, Device: d, Batch: 32, Own: true}.Fit(limit))
	require.NoError(t, err)
	checkPlan(t, p)
	require.Positive(t, p.Peak[meter.OnHost].Total()+p.Peak[meter.OnDisk].Total())
	require.Equal(t, int64(limit), p.Limit)
	d.Host, d.Disk = 0, 0
	_, err = Best(Task{Model: m, Device: d, Batch: 32, Own: true}.Fit(limit))
	require.ErrorIs(t, err, snug.ErrNoMemory)
}

// TestMissIsExact: with the bytes that the error names it fits, with one less it does not,
// and each change that it names is one.
func TestMissIsExact(t *testing.T) {
	m, err := GPT{Vocab: 512, Dim: 64, Layers: 3, Heads: 4, Context: 64}.Model()
	require.NoError(t, err)
	task := Task{Model: m, Device: oneMemory(), Batch: 8}
	_, err = Best(task.Fit(1000))
	var miss *MissError
	require.ErrorAs(t, err, &miss)
	require.Equal(t, miss.Minimum-1000, miss.Missing())
	require.Contains(t, err.Error(), "nothing fits in 1000 B")
	p, err := Best(task.Fit(miss.Minimum))
	require.NoError(t, err)
	checkPlan(t, p)
	require.Equal(t, miss.Minimum, p.Peak[meter.OnDevice].Total())
	_, err = Best(task.Fit(miss.Minimum - 1))
	require.ErrorAs(t, err, &miss)
	require.EqualValues(t, 1, miss.Missing())
	require.NotEmpty(t, miss.Changes)
	require.Contains(t, err.Error(), "cheapest to change: "+miss.Changes[0].What)
	task.StateBits = append(task.StateBits, 32, 8, 4)
	task.Masters = []amp.MasterForm{amp.FullMaster, amp.SplitMaster, amp.NoMaster, amp.Split24Master}
	_, err = Best(task.Fit(miss.Limit))
	require.NoError(t, err, "one byte less, with what the error proposes")
}

// drawTask draws a small model and a device.
func drawTask(t *rapid.T) Task {
	heads := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "heads")
	g := GPT{
		Vocab: rapid.IntRange(2, 2000).Draw(t, "vocab"), Dim: heads * rapid.IntRange(1, 32).Draw(t, "head"), Heads: heads,
		Layers: rapid.IntRange(1, 6).Draw(t, "layers"), Context: rapid.IntRange(1, 200).Draw(t, "context"),
		Gated: rapid.Bool().Draw(t, "gated"), RMSNorm: rapid.Bool().Draw(t, "rms"), Rotary: rapid.Bool().Draw(t, "rotary"),
		Untied: rapid.Bool().Draw(t, "untied"), Bias: rapid.Bool().Draw(t, "bias"),
	}
	m, err := g.Model()
	require.NoError(t, err)
	d := rapid.SampledFrom(Devices()).Draw(t, "device")
	d.Host = rapid.SampledFrom([]int64{0, 1 << 20, 1 << 30}).Draw(t, "host")
	d.Disk = rapid.SampledFrom([]int64{0, 1 << 30}).Draw(t, "disk")
	task := Task{
		Model: m, Device: d, Batch: rapid.IntRange(1, 40).Draw(t, "batch"), Rank: rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "rank"),
		Chunk: 4096, Optimizer: rapid.SampledFrom(Optimizers()).Draw(t, "optimizer"), Own: rapid.Bool().Draw(t, "own"),
	}
	traits := task.traits()
	task.Own = task.Own || !d.Unified && !traits.Devices || traits.MatricesOnly && task.Rank == 0
	return task
}

// propertyMonotone: more memory never gives a slower plan, limits hold, and the batch stays.
func propertyMonotone(t *rapid.T) {
	task := drawTask(t)
	free, err := Best(task.Fit(1 << 40))
	require.NoError(t, err)
	checkPlan(t, free)
	top := free.Peak[meter.OnDevice].Total()
	slower := free.Seconds
	for share := 100; share > 0; share -= rapid.IntRange(5, 40).Draw(t, "step") {
		limit := max(1, top*int64(share)/100)
		p, err := Best(task.Fit(limit))
		var miss *MissError
		if errors.As(err, &miss) {
			require.Greater(t, miss.Minimum, limit)
			return
		}
		require.NoError(t, err)
		checkPlan(t, p)
		require.GreaterOrEqual(t, p.Seconds, slower*(1-1e-9), "less memory, and a faster plan")
		slower = p.Seconds
	}
}

func TestMoreMemoryIsNeverSlower(t *testing.T) {
	t.Parallel() // with TestPlansOfGuides, the other test that takes long
	if !kerneltest.Full() {
		fewDraws(t)
	}
	rapid.Check(t, propertyMonotone)
}

func FuzzFit(f *testing.F) { f.Fuzz(rapid.MakeFuzz(propertyMonotone)) }

// TestWays: each plan is slower than the one before and takes less, and scales with samples.
func TestWays(t *testing.T) {
	for _, name := range []string{"gpt-34m", "resnet-18", "vit-b16"} {
		m, err := ModelNamed(name, 0)
		require.NoError(t, err)
		task, err := Task{Model: m, Device: devices[0], Batch: 8}.check()
		require.NoError(t, err)
		r := Run{Micro: 3, Window: 3, Compute: snug.BF16, Tiled: true}
		ways, err := newKnown().waysOf(task, r, true)
		require.NoError(t, err)
		require.Greater(t, len(ways), 1)
		for i, w := range ways {
			if i > 0 {
				require.Greater(t, w.seconds, ways[i-1].seconds)
				require.Less(t, w.bytes, ways[i-1].bytes)
			}
			u, err := task.peak(task.costs(r, 3), w.plan, 3)
			require.NoError(t, err)
			require.Equal(t, 3*w.bytes, u.bytes, fmt.Sprint(name, " ", w.plan.Name))
		}
	}
}

// TestLongChain plans a chain for which Rotor is too slow.
func TestLongChain(t *testing.T) {
	m := Model{Name: "long", Input: 100, Layers: []Layer{{Name: "l", Repeat: 1000, Params: [][]int{{10, 10}}, Output: 100, Kept: 300, MACs: 1000}}}
	task := Task{Model: m, Device: oneMemory(), Batch: 4, Chunk: 4096}
	free, err := Best(task.Fit(1 << 40))
	require.NoError(t, err)
	p, err := Best(task.Fit(free.Peak[meter.OnDevice].Total() * 8 / 10))
	require.NoError(t, err)
	checkPlan(t, p)
}

// TestLossRowsThatFit: on a device with a memory of its own the loss has as many rows of logits at a time as fit beside
// the fastest run, which they do not change. A number that is given stays.
func TestLossRowsThatFit(t *testing.T) {
	m, err := ModelNamed("gpt-34m", 0)
	require.NoError(t, err)
	d, err := DeviceNamed("8GB")
	require.NoError(t, err)
	task := Task{Model: m, Device: d, Batch: 8}
	fit := func(task Task, limit int64) Plan {
		p, err := Best(task.Fit(limit))
		require.NoError(t, err)
		checkPlan(t, p)
		return p
	}
	free := fit(task, 0)
	require.Equal(t, 1024, free.Task.LossRows)
	require.Equal(t, int64(4*1024*(16384+5)), free.Peak[meter.OnDevice][meter.Workspace])
	task.LossRows = 128
	few := fit(task, 0)
	require.Equal(t, 128, few.Task.LossRows)
	require.Equal(t, few.Run, free.Run)

	task.LossRows = 0
	least := few.Peak[meter.OnDevice].Total()
	for _, c := range []struct {
		limit int64
		rows  int
	}{
		{free.Peak[meter.OnDevice].Total(), 1024},
		{free.Peak[meter.OnDevice].Total() - 1, 512},
		{least, 128},
	} {
		p := fit(task, c.limit)
		require.Equal(t, c.rows, p.Task.LossRows)
		require.Equal(t, few.Run, p.Run)
		require.LessOrEqual(t, p.Peak[meter.OnDevice].Total(), c.limit)
	}
	task.Device.Unified = true
	require.Equal(t, 128, fit(task, 0).Task.LossRows)
}
