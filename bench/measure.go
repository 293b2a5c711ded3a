package main

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/snug-ml/snug"
)

// work is one kernel at one shape: what it must move and do, and how.
type work struct {
	kernel, dtype, shape string

	reads, writes float64 // bytes that one run must move
	ops           float64 // operations on elements, for the chart
	products      float64 // those of them that are multiply-adds, two each
	bf16          bool    // the products are of bfloat16
	inPlace       bool    // what it writes, it has read there

	peers []string // that can do the same
	host  bool     // it works in host memory only

	// prepare allocates the operands. run is the kernel; done, if not nil,
	// frees what is not memory.
	prepare preparation
	step    *preset    // instead of prepare: a whole training step
	chain   *chainSize // instead of prepare: training passes under budgets of memory
	tune    *tuneWork  // instead of prepare: fine-tuning in processes

	note func(text string) // says what a slow part has found; nil: nobody listens
}

// preparation allocates the operands of a kernel where mem does. run is the kernel; done, if
// not nil, frees what is not memory.
type preparation func(mem *memory) (run, done func() error, err error)

// name is what -only is matched with.
func (w *work) name() string { return w.kernel + " " + w.dtype + " " + w.shape }

// timed does one piece of work for the time of warm and then repeat times, and returns the seconds of one
// of the latter.
type timed func(repeat int, warm time.Duration) (seconds float64, err error)

// side is one of those that are compared, and what came of it.
type side struct {
	name    string
	run     timed
	missing error // why there are no samples
	samples []float64
	before  []float64 // of the first side, just before each of samples
	repeat  int
}

// ratios returns how many times as long as the first side each sample took.
func (s *side) ratios() []float64 {
	r := make([]float64, min(len(s.samples), len(s.before)))
	for i := range r {
		r[i] = s.samples[i] / s.before[i]
	}
	return r
}

// pace says how long to measure.
type pace struct {
	sample time.Duration // the shortest sample
	total  time.Duration // of all samples of one side, if the fewest rounds allow
	fewest int           // rounds
	most   int
	warm   time.Duration // before each sample: the system may let threads that slept share a core at first
	cold   bool          // every run is slow and begins anew: do not warm up
}

func (o options) pace() pace {
	switch {
	case o.emulated():
		return pace{cold: true, fewest: 1, most: 1}
	case o.short:
		return pace{sample: time.Millisecond, total: 20 * time.Millisecond, fewest: 3, most: 5}
	}
	return pace{sample: 5 * time.Millisecond, total: time.Second, fewest: o.pairs, most: max(o.pairs, 15), warm: 50 * time.Millisecond}
}

// alternate runs the sides in turn: first, second, first, third, ... so that
// the first, which all others are compared with, has run just before each. A
// side other than the first that fails is missing.
func alternate(ctx context.Context, p pace, sides []*side) error {
	own, others := sides[0], sides[1:]
	rounds, err := own.warm(p)
	if err != nil {
		return err
	}
	for _, s := range others {
		if s.missing == nil {
			var most int
			most, s.missing = s.warm(p)
			if s.missing == nil {
				rounds = min(rounds, most)
			}
		}
	}
	for range rounds {
		for _, s := range others {
			if s.missing == nil {
				if err := own.sample(p.warm); err != nil {
					return err
				}
				if s.missing = s.sample(p.warm); s.missing == nil {
					s.before = append(s.before, own.samples[len(own.samples)-1])
				}
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	for len(own.samples) < rounds { // alone, or left alone
		if err := errors.Join(own.sample(p.warm), ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// warm runs once for the caches and pools, and once to find how often to
// repeat for a sample. It returns how many samples to take.
func (s *side) warm(p pace) (rounds int, err error) {
	s.repeat = 1
	if p.cold {
		return p.most, nil
	}
	for range 2 {
		if err := s.sample(0); err != nil {
			return 0, err
		}
	}
	one := max(s.samples[1], 1e-9)
	s.samples = nil
	s.repeat = max(1, min(1<<20, int(p.sample.Seconds()/one)))
	return min(p.most, max(p.fewest, int(p.total.Seconds()/(one*float64(s.repeat))))), nil
}

func (s *side) sample(warm time.Duration) error {
	seconds, err := s.run(s.repeat, warm)
	if err == nil {
		s.samples = append(s.samples, seconds)
	}
	return err
}

// reuse makes goroutines end, so that the kernels' loops find ended ones to use
// again and their creation does not count as allocations.
func reuse() {
	var wg sync.WaitGroup
	wait := make(chan struct{})
	for range 64 * (runtime.GOMAXPROCS(0) + 1) {
		wg.Go(func() { <-wait })
	}
	close(wait)
	wg.Wait()
}

// local times a function of this process and counts its allocations.
type local struct {
	f      func() error
	wait   func() error // for what f queued, nil if it queues nothing
	allocs []int64      // a run, of each sample
}

func (l *local) run(repeat int, warm time.Duration) (float64, error) {
	for start := time.Now(); time.Since(start) < warm; {
		if err := l.once(); err != nil {
			return 0, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range repeat {
		if err := l.f(); err != nil {
			return 0, err
		}
	}
	if l.wait != nil {
		if err := l.wait(); err != nil {
			return 0, err
		}
	}
	d := time.Since(start)
	runtime.ReadMemStats(&after)
	l.allocs = append(l.allocs, int64(after.Mallocs-before.Mallocs)/int64(repeat))
	return d.Seconds() / float64(repeat), nil
}

// once runs f to its end.
func (l *local) once() error {
	err := l.f()
	if err == nil && l.wait != nil {
		err = l.wait()
	}
	return err
}

// perRun returns the allocations that every run makes. Some runs make more:
// they fill pools, and every core has its own.
func (l *local) perRun() int64 { return slices.Min(l.allocs) }

// measure runs w, against the peers that can do the same if there are any,
// and returns a result for each of those, or one.
func (w *work) measure(ctx context.Context, o options, m *machine, against *opponents) (rows []result, err error) {
	if w.step != nil {
		return w.measureStep(ctx, m, against)
	}
	if w.chain != nil {
		return w.measureRemat(ctx, o, m)
	}
	if w.tune != nil {
		return w.measureTune(ctx, m, against)
	}
	err = w.on(m.dev, func(own *local) error {
		sides := append([]*side{{name: "snug", run: own.run}}, against.sides(w)...)
		if err := alternate(ctx, o.pace(), sides); err != nil {
			return err
		}
		allocs := own.perRun()
		rows = w.results(m, sides, &allocs)
		return nil
	})
	return rows, err
}

// on prepares w on a device and hands its kernel, which has run once, to use.
func (w *work) on(dev *snug.Device, use func(own *local) error) (err error) {
	runtime.GC() // the operands of the work before
	mem := &memory{dev: dev}
	defer func() { err = errors.Join(err, mem.close()) }()
	run, done, err := w.prepare(mem)
	if done != nil {
		defer func() { err = errors.Join(err, done()) }()
	}
	if err = cmp.Or(mem.err, err); err != nil {
		return err
	}
	if err := errors.Join(run(), dev.Sync()); err != nil { // fills pools
		return err
	}
	return use(&local{f: run, wait: dev.Sync})
}

// fastest returns the seconds of the best sample of w.
func (w *work) fastest(ctx context.Context, dev *snug.Device) (seconds float64, err error) {
	err = w.on(dev, func(own *local) error {
		s := &side{run: own.run}
		err := alternate(ctx, pace{sample: time.Millisecond, fewest: 5, most: 5}, []*side{s})
		if err == nil {
			seconds = slices.Min(s.samples)
		}
		return err
	})
	return seconds, err
}
