package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
)

// MissError says that no run that the task allows fits. It wraps [snug.ErrNoMemory].
type MissError struct {
	Limit   int64    // bytes of the device, or of the process
	Minimum int64    // bytes with which a run fits
	Base    int64    // bytes of a Task.Process before there is a model, which Limit and Minimum include
	Changes []Change // each makes it fit: fastest plan first; adapters, which train other weights, come last
}

// Change is a change of the task.
type Change struct {
	What    string  // what to allow
	Seconds float64 // time of a step with the change
}

// Missing returns the number of bytes that are missing: Minimum minus Limit.
func (e *MissError) Missing() int64 { return e.Minimum - e.Limit }

// Error says how much memory is missing and which change is cheapest.
func (e *MissError) Error() string {
	text := fmt.Sprintf("plan: nothing fits in %s: the smallest plan takes %s, %s more", meter.FormatBytes(e.Limit), meter.FormatBytesUp(e.Minimum), meter.FormatBytesUp(e.Missing()))
	if e.Base > 0 {
		text += fmt.Sprintf("; the process itself takes %s", meter.FormatBytesUp(e.Base))
	}
	if len(e.Changes) > 0 {
		text += "; cheapest to change: " + e.Changes[0].What
	}
	return text
}

// Unwrap returns [snug.ErrNoMemory].
func (e *MissError) Unwrap() error { return snug.ErrNoMemory }

// inTiles is for models that have layers which can run in tiles, inBF16 for programs of one's own.
const inTiles, inBF16 = "layers in tiles of rows", "gradients added up in bf16"

// relaxations are further choices that a task could allow: each alone, and then all
// together.
var relaxations = []struct {
	what  string
	allow func(t *Task)
}{
	{"state in 8 bits", func(t *Task) { t.StateBits = append(t.StateBits, 8) }},
	{"state in 4 bits", func(t *Task) { t.StateBits = append(t.StateBits, 4) }},
	{"weights of bf16", func(t *Task) { t.Compute = append(t.Compute, snug.BF16) }},
	{"split master weights", func(t *Task) { t.Masters = append(t.Masters, amp.SplitMaster) }},
	{"master weights in 24 bits", func(t *Task) { t.Masters = append(t.Masters, amp.Split24Master) }},
	{"no master weights", func(t *Task) { t.Masters = append(t.Masters, amp.NoMaster) }},
	{inBF16, func(t *Task) { t.Gradients = append(t.Gradients, SumBF16) }},
	{"steps in the backward pass (no master weights)", allowUnheld(InBackward)},
	{"gradients folded into the state (no master weights)", allowUnheld(Folded)},
	{inTiles, func(t *Task) { t.Tiles = append(t.Tiles, 4, 16) }},
}

// allowUnheld allows gradients that are not held. Nothing but a program of one's own has master weights beside them.
func allowUnheld(g Gradient) func(t *Task) {
	return func(t *Task) {
		if t.Gradients = append(t.Gradients, g); !t.Own {
			t.Masters = append(t.Masters, amp.NoMaster)
		}
	}
}

// adapterRank is the rank of the proposed adapters.
const adapterRank = 16

// unlimited is more memory than any machine has.
const unlimited = 1 << 60

// misser looks for changes with which a task fits.
type misser struct {
	task  Task
	limit int64
	known *known
	all   []Change
}

// fit returns the fastest way to do t.
func (m *misser) fit(t Task) (r Run, seconds float64, found bool, err error) {
	s := &search{task: t, limit: m.limit, known: m.known}
	err = s.run()
	return s.best, s.seconds, s.found, err
}

// try notes a change if t fits.
func (m *misser) try(what string, t Task) error {
	_, seconds, found, err := m.fit(t)
	if found {
		m.all = append(m.all, Change{what, seconds})
	}
	return err
}

// miss returns the error for a limit in which nothing fits.
func (t Task) miss(limit, minimum, counted int64, k *known) error {
	t.Compute, t.Masters = slices.Clip(t.Compute), slices.Clip(t.Masters)
	t.Gradients, t.StateBits, t.Tiles = slices.Clip(t.Gradients), slices.Clip(t.StateBits), slices.Clip(t.Tiles)
	m := &misser{task: t, limit: counted, known: k}
	everything, names := t, []string(nil)
	for _, r := range relaxations {
		if r.what == inTiles && !t.canTile() || r.what == inBF16 && !t.Own {
			continue
		}
		u := t
		r.allow(&u)
		if _, err := u.check(); err != nil {
			continue // not with the optimizer of the task
		}
		if err := m.try(r.what, u); err != nil {
			return err
		}
		r.allow(&everything)
		names = append(names, r.what)
	}
	if err := m.elsewhere(); err != nil {
		return err
	}
	if len(m.all) == 0 {
		if err := m.try(strings.Join(names, ", "), everything); err != nil {
			return err
		}
	}
	slices.SortStableFunc(m.all, func(a, b Change) int { return cmp.Compare(a.Seconds, b.Seconds) })
	if matrices, _ := t.Model.matrices(); t.Rank == 0 && matrices > 0 {
		u := t
		u.Rank = adapterRank
		if err := m.try(fmt.Sprintf("train adapters of rank %d", adapterRank), u); err != nil {
			return err
		}
	}
	return &MissError{limit, minimum, limit - counted, m.all}
}

// elsewhere notes the smallest host memory, and the smallest disk, with which the task
// fits.
func (m *misser) elsewhere() error {
	if !m.task.Device.Unified {
		err := m.smallest("host memory", func(t *Task) *int64 { return &t.Device.Host }, m.task)
		if err != nil {
			return err
		}
	}
	u, what := m.task, "disk"
	const pages = 1 << 30 // bytes of pages of the disk in host memory
	if !u.Device.Unified && u.Device.Host < pages {
		u.Device.Host, what = pages, "disk, and "+meter.FormatBytes(pages)+" of host memory for its pages"
	}
	return m.smallest(what, func(t *Task) *int64 { return &t.Device.Disk }, u)
}

// smallest notes approximately the smallest number of bytes of a kind with which t fits.
func (m *misser) smallest(what string, of func(t *Task) *int64, t Task) error {
	low, high := *of(&t), int64(unlimited)
	fits := Change{}
	for step := 0; step < 60 && float64(high-low) > 0.02*float64(high); step++ {
		middle := high
		if step > 0 {
			middle = low + (high-low)/2
			if high > 4*low { // search near low in a large range
				middle = int64(math.Sqrt(float64(max(low, 1<<20)) * float64(high)))
			}
		}
		*of(&t) = middle
		_, seconds, found, err := m.fit(t)
		switch {
		case err != nil:
			return err
		case found:
			high, fits = middle, Change{fmt.Sprintf("%s of %s", meter.FormatBytesUp(middle), what), seconds}
		case step == 0:
			return nil // no amount is enough
		default:
			low = middle
		}
	}
	if fits.What != "" {
		m.all = append(m.all, fits)
	}
	return nil
}
