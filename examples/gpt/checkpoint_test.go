package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/text"
)

// stepsIn returns the names of the checkpoints of a folder, by ascending steps.
func stepsIn(t *testing.T, dir string) (names []string) {
	found, err := filepath.Glob(filepath.Join(dir, "step-*"))
	require.NoError(t, err)
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// waitForStep waits until a checkpoint of a step or a later one is there.
func waitForStep(t *testing.T, dir string, step int) {
	t.Helper()
	for range 4000 {
		if found := stepsIn(t, dir); len(found) > 0 && found[len(found)-1] >= fmt.Sprintf("step-%08d", step) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no checkpoint of step %d appeared", step)
}

// stateAt returns the payloads of the parts of a checkpoint.
func stateAt(t *testing.T, dir string, step int) map[string]string {
	state := map[string]string{}
	results, err := checkpoint.Verify(files.OS(dir))
	require.NoError(t, err)
	for _, r := range results {
		require.NoError(t, r.Err)
		if r.Checkpoint.Step != step {
			continue
		}
		for _, p := range r.Checkpoint.Parts {
			require.NoError(t, r.Checkpoint.Read(p.Name, func(in io.Reader) error {
				b, err := io.ReadAll(in)
				state[p.Name] = string(b)
				return err
			}))
		}
	}
	require.NotEmpty(t, state, "step %d", step)
	return state
}

// TestKilledRunResumes: a run that is killed, again and again, and resumed ends with the
// bits of one that was not.
func TestKilledRunResumes(t *testing.T) {
	text := textFile(t, 500)
	kills, steps := 4, 30
	if !kerneltest.Full() {
		kills, steps = 1, 10
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for _, off := range []string{"", "all"} {
		args := []string{"-preset", "tiny", "-steps", fmt.Sprint(steps), "-text", text, "-json", "-off", off, "-save-every", "1"}
		straight, dir := t.TempDir(), t.TempDir()
		_, out, errs := runArgs(append(args, "-checkpoint", straight)...)
		require.Empty(t, errs)
		require.NotContains(t, out, "resuming")
		first, last := finalLosses(t, out)

		args = append(args, "-checkpoint", dir)
		for kill := range kills {
			cmd := command(t, args...)
			require.NoError(t, cmd.Start())
			waitForStep(t, dir, 5*kill+3)
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait(), "it was killed")
		}
		status, out, errs := runArgs(args...)
		require.Zero(t, status, errs)
		require.Regexp(t, fmt.Sprintf(`(?m)^resuming from step [0-9]+ of %d$`, steps), out)
		gotFirst, gotLast := finalLosses(t, out)
		require.Equal(t, first, gotFirst)
		require.Equal(t, last, gotLast)
		require.Equal(t, stateAt(t, straight, steps), stateAt(t, dir, steps))
		require.Equal(t, []string{fmt.Sprintf("step-%08d", steps-1), fmt.Sprintf("step-%08d", steps)}, stepsIn(t, dir))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 2+1, "two checkpoints and the lock")
	}
}

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-preset", "tiny", "-off", "all", "-steps", "5", "-text", textFile(t, 500), "-checkpoint", dir, "-save-every", "1"}
	status, _, errs := runArgs(append(args, "-keep", "3")...)
	require.Zero(t, status, errs)
	require.Equal(t, []string{"step-00000003", "step-00000004", "step-00000005"}, stepsIn(t, dir))
}

// TestExtendedRun: a run goes on to more steps, with the same bits however often it was
// interrupted before and meanwhile, and never back to fewer.
func TestExtendedRun(t *testing.T) {
	text := textFile(t, 500)
	args := func(dir string, more ...string) []string {
		return append([]string{"-preset", "tiny", "-text", text, "-checkpoint", dir, "-save-every", "2"}, more...)
	}
	straight := t.TempDir()
	for _, steps := range []string{"6", "10"} {
		status, _, errs := runArgs(args(straight, "-steps", steps)...)
		require.Zero(t, status, errs)
	}
	status, out, errs := runArgs(args(straight)...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "resuming from step 10 of 10\n", "the steps are those of the checkpoint")

	dir := t.TempDir()
	status, _, errs = runArgs(args(dir, "-steps", "6")...)
	require.Zero(t, status, errs)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "step-00000006"))) // as if killed after step 4
	status, out, errs = runArgs(args(dir, "-steps", "10", "-json")...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "resuming from step 4 of 10\n")
	require.Contains(t, out, "step 10/10")
	require.Equal(t, stateAt(t, straight, 10), stateAt(t, dir, 10))

	before := snapshot(t, dir)
	status, out, errs = runArgs(args(dir, "-steps", "9")...)
	require.Equal(t, 2, status)
	require.Equal(t, fmt.Sprintf("gpt: -steps 9: the run in %s has 10 steps and 10 are done; want 10 or more\n", dir), errs)
	require.Empty(t, out)
	require.Equal(t, before, snapshot(t, dir))
}

// TestLearningRateOfExtensions: the rates of steps that are done stay, and each extension
// has those of a run of its length.
func TestLearningRateOfExtensions(t *testing.T) {
	rates := func(steps int, ends ...int) (rates []float32) {
		c := config{preset: preset{steps: steps, lr: 1}, ends: ends}
		for i := range steps {
			rates = append(rates, c.learningRate(i))
		}
		return rates
	}
	require.Equal(t, slices.Concat(rates(20), rates(40), rates(1)), rates(61, 20, 60))
	require.Equal(t, []float32{0.5, 1}, rates(20)[:2])
	require.InDelta(t, 0.15, rates(20)[19], 1e-6)
}

func TestCheckpointsOfAnotherRunAndDamagedOnes(t *testing.T) {
	text := textFile(t, 500)
	dir := t.TempDir()
	args := []string{"-preset", "tiny", "-steps", "2", "-text", text, "-checkpoint", dir}
	status, _, errs := runArgs(args...)
	require.Zero(t, status, errs)
	before := snapshot(t, dir)
	for what, more := range map[string][]string{
		"seed": {"-seed", "9"}, "steps": {"-steps", "1"}, "techniques": {"-off", "quant8"}, "text": {"-text", textFile(t, 600)}, "policy": {"-dtype", "f16"},
	} {
		t.Run(what, func(t *testing.T) {
			status, out, errs := runArgs(append(args, more...)...)
			require.Equal(t, 2, status)
			require.Contains(t, errs, what)
			require.Equal(t, 1, strings.Count(errs, "\n"))
			require.Empty(t, out)
			require.Equal(t, before, snapshot(t, dir))
		})
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		text := before[name]
		if filepath.Base(name) == "snug.lock" {
			continue
		}
		for _, damaged := range []string{"", text[:len(text)/2], text + "\n"} {
			require.NoError(t, os.WriteFile(name, []byte(damaged), 0o600))
			status, _, errs := runArgs(args...)
			require.Equal(t, 2, status, "%s", name)
			require.Contains(t, errs, name)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		}
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	status, _, errs = runArgs(args...)
	require.Zero(t, status, "a finished run can be opened again: %s", errs)
	require.Equal(t, before, snapshot(t, dir))
}

// TestDamagedCheckpoints: with any bit of the header changed, any of 5,000 elsewhere, and
// files of other steps in the place of its own, a run does not go on.
func TestDamagedCheckpoints(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-preset", "tiny", "-steps", "2", "-save-every", "1", "-text", textFile(t, 500), "-checkpoint", dir}
	status, _, errs := runArgs(args...)
	require.Zero(t, status, errs)
	refused := func(path string) {
		_, err := openCheckpoints(&options{checkpoint: dir, keep: 2})
		require.ErrorIs(t, err, snug.ErrCorrupt)
		require.ErrorContains(t, err, path)
	}
	older := filepath.Join(t.TempDir(), "older")
	require.NoError(t, os.Rename(filepath.Join(dir, "step-00000001"), older))
	newest := filepath.Join(dir, "step-00000002")
	for _, name := range []string{checkpoint.HeaderName, "masters", "optimizer", "scaler"} {
		path := filepath.Join(newest, name)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		bits := rand.New(rand.NewPCG(1, 1)).Perm(8 * len(whole))
		if name != checkpoint.HeaderName {
			bits = bits[:min(len(bits), 5000/3)]
			if !kerneltest.Full() {
				bits = bits[:100]
			}
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		require.NoError(t, err)
		for _, bit := range bits {
			at := bit / 8
			_, err := f.WriteAt([]byte{whole[at] ^ 1<<(bit%8)}, int64(at))
			require.NoError(t, err)
			refused(path)
			_, err = f.WriteAt(whole[at:at+1], int64(at))
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		other, err := os.ReadFile(filepath.Join(older, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, other, 0o600))
		refused(path)
		require.NoError(t, os.Remove(path))
		refused(path)
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
	saved, err := openCheckpoints(&options{checkpoint: dir, keep: 2})
	require.NoError(t, err)
	require.NoError(t, saved.Close())
}

// TestNotesAreChecked: a header with the right sums is not believed all it says.
func TestNotesAreChecked(t *testing.T) {
	good, err := json.Marshal(notes{Steps: []int{20}})
	require.NoError(t, err)
	parse := func(step int, text string) error {
		_, err := parseNotes(step, []byte(text))
		return err
	}
	require.NoError(t, parse(20, string(good)))
	for _, change := range [][2]string{
		{`[20]`, `[]`}, {`[20]`, `[0]`}, {`[20]`, `[-1,20]`}, {`[20]`, `[20,20]`}, {`[20]`, `[30,20]`}, {`[20]`, `[100000000]`},
		{`[20]`, `[19]`}, {`[20]`, `null`}, {`"steps":`, `"Steps":`}, {`"steps":`, `"steps":[1],"steps":`},
		{`"steps":[20],`, ``}, {`{`, `{"more":1,`}, {`"loss_first":0`, `"loss_first":1e999`}, {string(good), `null`},
	} {
		text := strings.Replace(string(good), change[0], change[1], 1)
		require.NotEqual(t, string(good), text, change)
		require.ErrorIs(t, parse(20, text), snug.ErrCorrupt, change)
	}
	require.ErrorIs(t, parse(20, strings.Replace(string(good), "[20]", "["+strings.Repeat("1,", maxExtensions)+"20]", 1)), snug.ErrCorrupt)
}

// TestAboutTellsRunsApart: whatever the losses depend on makes another run.
func TestAboutTellsRunsApart(t *testing.T) {
	all := allTechniques()
	c, data := config{preset: presets[0], policy: policyOf(all, snug.BF16), on: all}, words13(400)
	same := c.about(data)
	require.Equal(t, same, c.about(words13(400)))
	for what, change := range map[string]func(c *config) *text.Corpus{
		"preset":      func(c *config) *text.Corpus { c.preset = presets[1]; return data },
		"seed":        func(c *config) *text.Corpus { c.seed++; return data },
		"policy":      func(c *config) *text.Corpus { c.policy = policyOf(all, snug.F16); return data },
		"techniques":  func(c *config) *text.Corpus { c.on[useQuant8] = false; return data },
		"text":        func(*config) *text.Corpus { return words13(401) },
		"micro-batch": func(c *config) *text.Corpus { c.fit.Micro = 2; return data },
	} {
		other := c
		require.NotEqual(t, same, other.about(change(&other)), what)
	}
}
