package train

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// A folder says what its newest checkpoint is of before there is a model, and a run goes on from it.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	open := func() *Folder {
		f, err := OpenFolder(dir, 3)
		require.NoError(t, err)
		return f
	}
	first := open()
	step, notes, path := first.Newest()
	require.Equal(t, 0, step)
	require.Nil(t, notes)
	require.Empty(t, path)
	pages, err := first.Scratch()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(pages, 0o700))
	_, err = OpenFolder(dir, 0)
	require.ErrorContains(t, err, "train: OpenFolder: ")
	require.ErrorContains(t, err, "in use")

	type run struct {
		Data string `json:"data"`
		Seed int    `json:"seed"`
	}
	o := Options{Checkpoints: Checkpoints{Folder: first, About: run{"sum", 1}, SaveEvery: 1}, StateBits: 8}
	require.NoError(t, first.Matches(run{"other", 2}), "there is no checkpoint yet")
	tr := newTrainer(t, newToy(t, snug.BF16, snug.F32), o)
	require.Nil(t, tr.Notes())
	tr.SetNotes(map[string]float64{"first": 2.5})
	trainTo(t, tr, 5)
	require.NoError(t, tr.Close())
	require.DirExists(t, pages, "the folder stays the caller's")
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	require.NoDirExists(t, pages)
	kept, err := filepath.Glob(filepath.Join(dir, "step-*"))
	require.NoError(t, err)
	require.Len(t, kept, 3)

	again := open()
	step, notes, path = again.Newest()
	require.Equal(t, 5, step)
	require.JSONEq(t, `{"first":2.5}`, string(notes))
	require.NoError(t, again.Matches(run{"sum", 1}))
	for want, about := range map[string]any{
		`it is of another run: data is "sum" there, "mus" here; seed is 1 there, 3 here`: run{"mus", 3},
		`more is not set there, 2 here; seed is 1 there, not set here`:                   map[string]any{"data": "sum", "more": 2},
		`{"data":"sum","seed":1} there, null here`:                                       nil,
		`unsupported type`: func() {},
	} {
		t.Run(want, func(t *testing.T) {
			err := again.Matches(about)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
	require.Equal(t, kept[2], path)
	o.Folder = again
	resumed, straight := newToy(t, snug.BF16, snug.F32), newToy(t, snug.BF16, snug.F32)
	tr = newTrainer(t, resumed, o)
	require.Equal(t, 5, tr.Step())
	require.JSONEq(t, `{"first":2.5}`, string(tr.Notes()))
	trainTo(t, tr, 7)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = tr.Train(ended, steps(7))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 7, tr.Step(), "a step that is cancelled before its update is not made")
	require.NoError(t, again.Close())
	kept, err = filepath.Glob(filepath.Join(dir, "step-*"))
	require.NoError(t, err)
	require.Equal(t, "step-00000007", filepath.Base(kept[2]), "the one before is there")
	_, err = tr.Train(context.Background(), steps(7))
	require.ErrorIs(t, err, snug.ErrConfig, "the folder is closed")
	require.Equal(t, 8, tr.Step(), "an error of writing a checkpoint comes after the step")
	o.Folder, o.SaveEvery = nil, 0
	trainTo(t, newTrainer(t, straight, o), 8)
	require.Equal(t, straight.bits(), resumed.bits())

	_, err = OpenFolder(dir, -1)
	require.ErrorIs(t, err, snug.ErrConfig)
	var none *Folder
	require.NoError(t, none.Close())
	for _, f := range []*Folder{nil, {}} {
		_, err = f.Scratch()
		require.ErrorIs(t, err, snug.ErrConfig)
		step, notes, _ = f.Newest()
		require.Equal(t, 0, step)
		require.Nil(t, notes)
		require.NoError(t, f.Matches(1))
	}
}

// A checkpoint of SaveEvery waits for a step that updates parameters and has a finite loss; parameters that are not finite
// are not saved. The older checkpoint stays.
func TestCheckpointsOfSoundSteps(t *testing.T) {
	ctx, m := context.Background(), newToy(t, snug.F32, snug.F32)
	tr := newTrainer(t, m, Options{Checkpoints: Checkpoints{Dir: t.TempDir(), SaveEvery: 2}, SkipNonFinite: true})
	for step, want := range []int{0, 2, 2, 2, 5, 6} {
		b := batchesFor(Options{}, step)
		m.poison = nil
		if step == 3 { // whose step is skipped
			m.poison = map[int]string{b[0][0]: "w"}
		}
		report, err := tr.Train(ctx, b)
		require.NoError(t, err)
		require.Equal(t, step == 3, report.Skipped != "")
		require.Equal(t, want, tr.Saved(), "after step %d", step+1)
	}
	_, err := tr.Train(ctx, batchesFor(Options{}, 6))
	require.NoError(t, err)
	m.values["b"].Float32s()[3] = float32(math.Inf(1))
	err = tr.Save(ctx)
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "b[3] = +Inf")
	require.Equal(t, 6, tr.Saved())
	m.values["b"].Float32s()[3] = 0
	require.NoError(t, tr.Save(ctx))
	require.Equal(t, 7, tr.Saved())
}
