package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
)

// pagedJob is a run with pages.
type pagedJob struct {
	Model, Data, Out string
	Full             bool
}

// tuning returns the run, with a plan that has the most pages of all that fit somewhere.
func (j pagedJob) tuning(t testing.TB) *tuning {
	f := tuneFlags{dir: j.Model, files: j.Data, output: j.Out, full: j.Full, batch: 4, compute: "bf16", adapterFlags: adapterFlags{rank: 4}, seed: 1, saveEvery: 1, disk: 1 << 30,
		rate: 1e-3, steps: 4, held: 0.1}
	if !j.Full {
		f.form = "nf4"
	}
	require.NoError(t, f.check())
	m, err := f.gather()
	require.NoError(t, err)
	r := &tuning{tuneFlags: f, material: m, call: &call{stdout: new(bytes.Buffer), stderr: new(bytes.Buffer)}}
	stop, release := console.OnSignals(console.Options{Name: "snug", Stderr: r.call.stderr})
	t.Cleanup(release)
	r.stop = stop
	task, err := r.task()
	require.NoError(t, err)
	if j.Full {
		task.Gradients = []plan.Gradient{plan.SumF32}
	}
	fits := func(limit int) bool {
		r.plan, err = plan.Best(task.Fit(int64(limit)))
		return err == nil
	}
	require.True(t, fits(sort.Search(1<<24, fits)))
	if j.Full { // whose state is so small that the cache holds it
		r.plan.Run.StateOn, r.plan.Run.Cache = meter.OnDisk, 1<<16
		r.plan.Prediction, err = task.Predict(r.plan.Run)
		require.NoError(t, err)
	}
	return r
}

// runPaged does what tune does after it has a plan.
func (r *tuning) runPaged() (err error) {
	clean, err := r.open()
	defer func() { err = r.pagesError(errors.Join(err, r.writeTrace(), r.close(), clean())) }()
	if err != nil {
		return err
	}
	if _, err := r.train(); err != nil {
		return err
	}
	return r.save()
}

// outputs returns the weights that a run wrote.
func (j pagedJob) outputs(t testing.TB) []byte {
	name := "adapter_model.safetensors"
	if j.Full {
		name = "model.safetensors"
	}
	text, err := os.ReadFile(filepath.Join(j.Out, name))
	require.NoError(t, err)
	return text
}

func pagedJobs(t testing.TB) (list []pagedJob) {
	model, data := publish(t), chats(t, 40)
	for _, full := range []bool{false, true} {
		list = append(list, pagedJob{model, data, filepath.Join(t.TempDir(), "out"), full})
	}
	return list
}

// TestTunePages: weights in 4 bits, or the state of all weights, lie in pages beside the output, which are
// gone at the end, and the results have the bits of a run in memory.
//
//check:not bits32
func TestTunePages(t *testing.T) {
	for _, j := range pagedJobs(t) {
		r := j.tuning(t)
		require.Equal(t, meter.OnDisk, map[bool]meter.Tier{false: r.plan.Run.WeightsOn, true: r.plan.Run.StateOn}[j.Full])
		require.NoError(t, r.runPaged())
		require.NoDirExists(t, r.pagesDir())
		m := j
		m.Out = filepath.Join(t.TempDir(), "out")
		memory := m.tuning(t)
		memory.plan.Run.WeightsOn, memory.plan.Run.StateOn, memory.plan.Run.LayersHeld, memory.plan.Run.Cache = meter.OnDevice, meter.OnDevice, 0, 0
		require.NoError(t, memory.runPaged())
		require.Equal(t, m.outputs(t), j.outputs(t))
	}
}

// TestTunePagesLinked: where the folder of pages is a link, as to another disk, nothing stays in that folder.
//
//check:not bits32
func TestTunePagesLinked(t *testing.T) {
	j, other := pagedJobs(t)[0], t.TempDir()
	r := j.tuning(t)
	if err := os.Symlink(other, r.pagesDir()); err != nil {
		t.Skip(err)
	}
	require.NoError(t, r.runPaged())
	left, err := os.ReadDir(other)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = os.Lstat(r.pagesDir())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestTunePagesRefused: another's folder, another's files and a full disk are one sentence and status 2.
//
//check:not bits32
func TestTunePagesRefused(t *testing.T) {
	j := pagedJobs(t)[0]
	refused := func(want string, err error) {
		t.Helper()
		status := run2(err)
		require.Equal(t, 2, status, err)
		require.Contains(t, oneLine(err), want)
		require.NotContains(t, oneLine(err), "\n")
		require.NoDirExists(t, j.Out)
	}
	r := j.tuning(t)
	s, err := offload.Open(r.pagesDir(), offload.Options{})
	require.NoError(t, err)
	refused("snug.lock", j.tuning(t).runPaged())
	require.NoError(t, s.Close())
	foreign := filepath.Join(r.pagesDir(), "thesis.txt")
	require.NoError(t, os.WriteFile(foreign, []byte("text"), 0o600))
	refused("it has other files, such as thesis.txt", j.tuning(t).runPaged())
	require.FileExists(t, foreign)

	require.NoError(t, os.RemoveAll(r.pagesDir()))
	require.NoError(t, os.WriteFile(r.pagesDir(), nil, 0o600))
	refused("tune: "+r.pagesDir()+" is where the pages of this run go: ", j.tuning(t).runPaged())

	r.store = &offload.Store{}
	full := fmt.Errorf("train: write page: %w", syscall.ENOSPC)
	refused("out.pages: the disk is full: the pages of this run take up to ", r.pagesError(full))
	r.store = nil
	require.Equal(t, full, r.pagesError(full), "it was another file")
}

// run2 returns the status of an error.
func run2(err error) int {
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// A plan that fits the disk to the byte fits in fact.
func TestTuneDiskLimit(t *testing.T) {
	for _, j := range pagedJobs(t) {
		r := j.tuning(t)
		r.disk = r.plan.Peak[meter.OnDisk].Total()
		require.Less(t, r.disk, int64(8<<20))
		require.NoError(t, r.runPaged(), strings.Repeat("full ", map[bool]int{true: 1}[j.Full]))
	}
}
