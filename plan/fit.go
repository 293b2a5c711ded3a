package plan

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"sort"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Plan is a way to do a task under a limit.
type Plan struct {
	Task       Task  // with its defaults filled in
	Limit      int64 // bytes of the device that may be used
	Run        Run
	Prediction            // prediction for Run
	Without    Prediction // prediction for training without techniques
	Choices    []Choice
}

// Fit yields plans of t that take at most limit bytes of the device, Host bytes of the host and Disk bytes of the disk,
// the one with the shortest predicted time first; a limit of 0 stands for all of the device's memory that is not
// reserved. Each later plan takes less of the device than the one before, by 1/128 of the limit or more, and is the fastest
// that does; the last one takes the least. [Best] returns the first.
//
// With Task.Process the limit is that of the resident memory of the process, as [Task.Resident] predicts it, and
// [Plan.Limit] is the part of it that the run itself may use. Not counted is [RuntimeBytes]: a program whose measured memory
// is to stay at or below a limit gives limit - RuntimeBytes. More garbage than that of the model's own steps, such as that of
// reading data, comes on top of it; debug.SetMemoryLimit bounds that.
//
// Fit tries all combinations of the choices that t allows with every micro-batch and with plans of recomputation, so
// that more memory never gives a slower plan. The batch never changes. Of equally fast
// runs it prefers runs that compute nothing again, then the run that comes first in the
// task's lists and keeps most on the device. If weights are paged, as many of the first
// layers as fit stay on the device (with an offload.DeviceMap), and the host's free bytes
// cache pages of the disk. The loss has as many rows of logits at a time as fit beside a run, up to the default
// of LossRows, unless LossRows is given. The first plan takes up to a few seconds for 100 layers.
//
// If nothing fits, Fit yields a [*MissError]. Other errors are the same as for [Task.Predict].
func (t Task) Fit(limit int64) iter.Seq2[Plan, error] {
	return func(yield func(Plan, error) bool) {
		if err := t.walk(limit, func(p Plan) bool { return yield(p, nil) }); err != nil {
			yield(Plan{}, err)
		}
	}
}

// Best returns the first of some plans, such as those of [Task.Fit], or the error in its place.
func Best(plans iter.Seq2[Plan, error]) (Plan, error) {
	if plans != nil {
		for p, err := range plans {
			return p, err
		}
	}
	return Plan{}, invalid("there are no plans")
}

// walk calls use with the plans of Fit, until it returns false.
func (t Task) walk(limit int64, use func(Plan) bool) error {
	rows := t.LossRows
	t, err := t.check()
	if err != nil {
		return err
	}
	if limit < 0 || limit > 1<<60 {
		return invalid("a limit of %d bytes, want 0 to 2^60", limit)
	}
	limit = cmp.Or(limit, t.Device.Memory-t.Device.Reserved)
	counted := limit
	if t.Process != nil {
		counted -= t.Process.Base
	}
	if rows == 0 {
		if rows = t.LossRows; t.Process != nil {
			rows = fewestLossRows
		}
		t.LossRows = fewestLossRows
	}
	s, step, found := &search{task: t, limit: max(counted, 1), known: newKnown()}, max(counted/128, 1), false
	for {
		if err := s.run(); err != nil {
			return err
		}
		if !s.found {
			break
		}
		size, total, err := t.size(s.best)
		if err != nil {
			return err
		}
		if size <= limit {
			p, err := t.withRows(rows, s.limit, s.best)
			if err != nil {
				return err
			}
			if found = true; !use(p) {
				return nil
			}
			total = p.Peak[meter.OnDevice].Total()
		}
		// What waits in a process differs between runs, so a run that counts a little less may fit.
		s.limit = max(min(s.limit, total)-step, 1)
	}
	if found && t.Process != nil {
		return nil
	}
	least, err := t.least(limit, *s, use)
	if err != nil || found || least <= limit {
		return err
	}
	return t.miss(limit, least, counted, s.known)
}

// least calls use with a plan that takes the least, if it takes at most limit, and returns what it takes. s has found nothing.
func (t Task) least(limit int64, s search, use func(Plan) bool) (least int64, err error) {
	least = s.minimum
	if least == math.MaxInt64 {
		if s.allowed {
			return least, nil
		}
		return least, s.refused
	}
	quarters := []int64{4}
	if t.Process != nil {
		quarters, least = []int64{4, 5, 6, 8}, math.MaxInt64 // the run that counts the least need not make the smallest process
	}
	var best Run
	for _, n := range quarters {
		s.limit = s.minimum/4*n + s.minimum%4
		if err := s.run(); err != nil {
			return 0, err
		}
		size, _, err := t.size(s.best)
		if err != nil {
			return 0, err
		}
		if size < least || best.Micro == 0 {
			best, least = s.best, size
		}
	}
	if least <= limit {
		p, err := t.explain(s.limit, best)
		if err != nil {
			return 0, err
		}
		use(p)
	}
	return least, nil
}

// size returns what a run takes of the limit of Fit, and of the device.
func (t Task) size(r Run) (size, device int64, err error) {
	p, err := t.predict(r)
	if err != nil {
		return 0, 0, err
	}
	if size, device = p.Peak[meter.OnDevice].Total(), p.Peak[meter.OnDevice].Total(); t.Process != nil {
		size, err = t.Resident(r)
	}
	return size, device, err
}

// withRows returns the plan of a run, with as many rows of logits at a time as fit.
func (t Task) withRows(rows int, limit int64, r Run) (Plan, error) {
	for least := t.LossRows; rows > least; rows = rows / 2 / fewestLossRows * fewestLossRows {
		u := t
		u.LossRows = rows
		if _, device, err := u.size(r); err == nil && device <= limit {
			return u.explain(limit, r)
		}
	}
	return t.explain(limit, r)
}

// search finds the fastest run.
type search struct {
	task  Task
	limit int64

	again   bool // try plans that compute values again
	found   bool
	best    Run
	seconds float64
	minimum int64 // minimum bytes of the device of all runs whose other tiers fit
	refused error // why the first of the runs that cannot be done cannot
	allowed bool  // one can

	known *known
}

// known holds results that searches for tasks of one model share.
type known struct {
	plans  map[planKey][]remat.Plan
	ways   map[chainKey][]way
	states map[stateKey]stateSize
}

// The plans that are tried depend on planKey, and their bytes and times on chainKey.
// Types of 2 and of 4 bytes have the same plans.
type planKey struct {
	tiled, adapters, pages bool
	tiles                  int
	samples                int64 // see Run.unit
}

func (t Task) planKey(r Run) planKey {
	return planKey{r.Tiled, t.Rank > 0, t.Device.Disk > 0, max(1, r.Tiles), r.unit()}
}

type chainKey struct {
	planKey
	compute snug.DType
	all     bool // all ways, not only the way that computes nothing again
}

type stateKey struct{ bits, rank int }

func newKnown() *known {
	return &known{map[planKey][]remat.Plan{}, map[chainKey][]way{}, map[stateKey]stateSize{}}
}

func (k *known) plansOf(t Task, r Run) (list []remat.Plan, err error) {
	key := t.planKey(r)
	if list, found := k.plans[key]; found {
		return list, nil
	}
	r.Compute = snug.F32
	if list, err = plans(t.costs(r, key.samples), key.pages); err == nil {
		k.plans[key] = list
	}
	return list, err
}

// waysOf returns all ways to run the chain, or only the first.
func (k *known) waysOf(t Task, r Run, all bool) (ways []way, err error) {
	key := chainKey{t.planKey(r), r.Compute, all}
	if ways, found := k.ways[key]; found {
		return ways, nil
	}
	list := []remat.Plan{{}}
	if all && !t.forwardOnly() {
		list, err = k.plansOf(t, r)
	}
	if err == nil {
		ways, err = t.ways(r, list)
	}
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	k.ways[key] = ways
	return ways, nil
}

func (k *known) stateOf(t Task, r Run) (size stateSize, err error) {
	key := stateKey{r.StateBits, t.Rank}
	if size, found := k.states[key]; found {
		return size, nil
	}
	if size, err = t.stateBytes(r.StateBits); err == nil {
		k.states[key] = size
	}
	return size, err
}

// placements say on which tier state, gradients and weights lie. The first has all on the
// device.
var placements = []struct{ state, gradients, weights meter.Tier }{
	{meter.OnDevice, meter.OnDevice, meter.OnDevice},
	{meter.OnDevice, meter.OnDevice, meter.OnHost}, // of adapters
	{meter.OnDevice, meter.OnDevice, meter.OnDisk},
	{meter.OnHost, meter.OnDevice, meter.OnDevice},
	{meter.OnDisk, meter.OnDevice, meter.OnDevice},
	{meter.OnHost, meter.OnHost, meter.OnDevice},
	{meter.OnDisk, meter.OnHost, meter.OnDevice},
	{meter.OnHost, meter.OnDevice, meter.OnHost}, // with steps in the backward pass
	{meter.OnDisk, meter.OnDevice, meter.OnHost},
	{meter.OnDisk, meter.OnDevice, meter.OnDisk},
	{meter.OnHost, meter.OnHost, meter.OnHost},
	{meter.OnDisk, meter.OnHost, meter.OnHost},
	{meter.OnDisk, meter.OnHost, meter.OnDisk},
}

// run looks for the fastest run that computes nothing again, and then for faster runs
// that compute values again. It can skip most of these: they are slower even without the
// recomputation.
func (s *search) run() error {
	s.minimum, s.seconds, s.found = math.MaxInt64, math.Inf(1), false
	for _, s.again = range []bool{false, true} {
		if err := s.combinations(); err != nil {
			return err
		}
	}
	return nil
}

// combinations tries the choices that the task allows.
func (s *search) combinations() error {
	t := s.task
	for _, compute := range t.Compute {
		masters := t.Masters
		switch {
		case t.masterBytes(Run{Compute: compute}) == 0:
			masters = []amp.MasterForm{amp.FullMaster} // there are none
		case compute == snug.F16:
			if masters = slices.DeleteFunc(slices.Clone(masters), forBF16); len(masters) == 0 {
				s.refused = cmp.Or(s.refused, invalid("%v masters are for bf16", t.Masters[0]))
			}
		}
		frozen := t.Frozen
		if t.Rank == 0 {
			frozen = []int{0}
		}
		for _, form := range masters {
			for _, bits := range t.StateBits {
				for _, f := range frozen {
					for _, tiles := range t.Tiles {
						if err := s.placed(Run{Compute: compute, Masters: form, StateBits: bits, Frozen: f, Tiles: tiles}); err != nil {
							return err
						}
					}
				}
			}
		}
	}
	return nil
}

// placed tries a run with all kinds of gradients in all placements.
func (s *search) placed(r Run) error {
	size, err := s.known.stateOf(s.task, r)
	if err != nil {
		return err
	}
	for _, r.Shard = range s.task.Shard {
		if err := s.sharded(r, size); err != nil {
			return err
		}
	}
	return nil
}

// sharded is placed for what the ranks divide.
func (s *search) sharded(r Run, size stateSize) error {
	for _, r.Gradients = range s.task.Gradients {
		for _, p := range placements {
			r.StateOn, r.GradientsOn, r.WeightsOn, r.Cache = p.state, p.gradients, p.weights, 0
			if s.task.Device.Unified && (r.StateOn == meter.OnHost || r.GradientsOn == meter.OnHost || r.WeightsOn == meter.OnHost) {
				continue
			}
			if r.StateOn == meter.OnDevice && r.WeightsOn != meter.OnDevice && s.task.Rank == 0 {
				continue
			}
			if !s.task.Own && r.Gradients.onePer() && r.Masters != amp.NoMaster && s.task.roundsUpdates(r) {
				s.refused = cmp.Or(s.refused, invalid("Gradients is %v, which has no master weights for %v, and Masters has no NoMaster", r.Gradients, r.Compute))
				continue
			}
			r.Micro, r.Window = s.task.Batch, 1
			if err := s.task.checkRun(r); err != nil {
				s.refused = cmp.Or(s.refused, err)
				continue
			}
			s.allowed = true
			f := s.task.fixed(r, size)
			if r.StateOn == meter.OnDisk {
				r.Cache = s.task.cache(f.usage)
				f = s.task.fixed(r, size)
			}
			if !f.hold(r, s.task.limits(s.limit)) {
				continue
			}
			if err := s.batches(r, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// cache returns the bytes of pages on disk that a plan keeps in host memory: as many as
// the host has free, and at least eight pages of float32. In unified memory it is a
// sixteenth.
func (t Task) cache(u meter.Usage) int64 {
	paged := u[meter.OnDisk][meter.Masters] + u[meter.OnDisk][meter.State]
	free := t.Device.Host - u[meter.OnHost].Total()
	if t.Device.Unified {
		free = paged / 16
	}
	return min(paged, max(free, 8*4*int64(t.Chunk)))
}

// cacheOf returns the cache of a run.
func (t Task) cacheOf(r Run) (int64, error) {
	if r.StateOn != meter.OnDisk {
		return 0, nil
	}
	size, err := t.stateBytes(r.StateBits)
	if err != nil {
		return 0, err
	}
	r.Cache, r.LayersHeld = 0, 0
	return t.cache(t.fixed(r, size).usage), nil
}

// batches tries all micro-batches that the task allows.
func (s *search) batches(r Run, f fixed) error {
	tilings := []bool{false, true}
	switch {
	case !s.task.tiles():
		tilings = []bool{slices.ContainsFunc(s.task.Model.Layers, func(l Layer) bool { return l.Attention.Tiled })}
	case !s.task.Own && !s.task.Device.Unified: // PlainAttention of package transformer is for the CPU
		tilings = []bool{true}
	}
	for _, r.Tiled = range tilings {
		if err := s.windows(r, f); err != nil {
			return err
		}
	}
	return nil
}

// windows tries all micro-batches.
func (s *search) windows(r Run, f fixed) error {
	for window := 1; window <= s.task.Batch; {
		b, err := accum.NewBatch(s.task.Batch, cmp.Or(s.task.Micro, ceilDiv(s.task.Batch, window)), 1)
		if err != nil {
			return fmt.Errorf("plan: %w", err)
		}
		if r.Gradients == InBackward && b.Window > 1 {
			break
		}
		r.Micro, r.Window = b.Micro, b.Window
		if err := s.try(r, f); err != nil {
			return err
		}
		if r.Gradients == InBackward || b.Micro == 1 || s.task.Micro > 0 {
			break
		}
		window = ceilDiv(s.task.Batch, b.Micro-1) // the next window with a smaller micro-batch
	}
	return nil
}

// try keeps the fastest way that fits, if it is faster than the best run so far.
func (s *search) try(r Run, f fixed) error {
	ways, err := s.known.waysOf(s.task, r, false)
	if err != nil {
		return err
	}
	fastest := f
	if len(f.held) > 0 {
		fastest.pass = 0
	}
	if s.found && fastest.seconds(s.task, r, ways[0].work) >= s.seconds {
		return nil // and so are the others
	}
	if s.again {
		if ways, err = s.known.waysOf(s.task, r, true); err != nil {
			return err
		}
	}
	workspace := s.task.workspaceBytes(r)
	for _, w := range ways {
		times := int64(r.Micro) / r.unit()
		p := f.with(s.task, r, chainUse{w.bytes * times, w.disk * times, 0}, workspace, w.work)
		if d := s.task.Device; w.disk > 0 && (p.Peak[meter.OnDisk].Total() > d.Disk || !d.Unified && p.Peak[meter.OnHost].Total() > d.Host) {
			continue
		}
		total := p.Peak[meter.OnDevice].Total()
		if f.must > 0 {
			total += f.held[f.must-1]
		}
		s.minimum = min(s.minimum, total)
		if total > s.limit {
			continue
		}
		if len(f.held) > 0 {
			r.LayersHeld, p.Seconds = f.holding(s.task, r, s.limit-p.Peak[meter.OnDevice].Total(), w.work)
		}
		if p.Seconds < s.seconds {
			r.Remat = w.plan
			s.found, s.best, s.seconds = true, r, p.Seconds
		}
		if len(f.held) == 0 {
			break // the others are slower
		}
	}
	return nil
}

// hold reports whether the bytes on the host and on the disk fit there, when as many of
// the first layers stay on the device as their limits require.
func (f *fixed) hold(r Run, limits [meter.Tiers]int64) bool {
	f.must = 0
	for tier := meter.OnHost; tier < meter.Tiers; tier++ {
		over := f.usage[tier].Total() - limits[tier]
		switch {
		case over <= 0:
		case tier != r.WeightsOn || f.filed || len(f.held) == 0 || f.held[len(f.held)-1] < over:
			return false
		default:
			f.must = 1 + sort.Search(len(f.held)-1, func(i int) bool { return f.held[i] >= over })
		}
	}
	return true
}

// holding returns how many layers fit into the given number of additional bytes on the
// device when weights are paged, and the time of a step then.
func (f fixed) holding(t Task, r Run, free int64, w work) (layers int, step float64) {
	layers = sort.Search(len(f.held), func(i int) bool { return f.held[i] > free })
	if layers > 0 {
		f.pass -= float64(f.held[layers-1]) / t.Device.tierRate(r.WeightsOn)
	}
	return layers, f.seconds(t, r, w)
}

// tiles reports whether a layer has attention that is computed in tiles only if a run says so.
func (t Task) tiles() bool {
	return slices.ContainsFunc(t.Model.Layers, func(l Layer) bool { return l.Attention.Heads > 0 && !l.Attention.Tiled })
}

// canTile reports whether a layer can run in tiles of rows.
func (t Task) canTile() bool {
	return slices.ContainsFunc(t.Model.Layers, func(l Layer) bool { return l.Tiles.Whole > 0 })
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
