package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
)

// changeFile rewrites a file.
func changeFile(t *testing.T, path string, change func(text []byte) []byte) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, change(bytes.Clone(text)), 0o600))
}

// otherWeights changes an element of the last tensor of a shard, so that the shapes stay.
func otherWeights(t *testing.T, dir, shard string) {
	changeFile(t, filepath.Join(dir, shard), func(b []byte) []byte { b[len(b)-1] ^= 0x40; return b })
}

// setField returns a function that sets a field of config.json.
func setField(name string, value any) func(t *testing.T, model string) {
	return func(t *testing.T, model string) {
		changeFile(t, filepath.Join(model, "config.json"), func(text []byte) []byte {
			fields := map[string]any{}
			require.NoError(t, json.Unmarshal(text, &fields))
			fields[name] = value
			text, err := json.Marshal(fields)
			require.NoError(t, err)
			return text
		})
	}
}

// tensorData returns a safetensors file without its header, which may have a checksum of the path of the base.
func tensorData(t *testing.T, path string) []byte {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b[8+binary.LittleEndian.Uint64(b):]
}

// A run does not go on with another model in the folder of its own, and it does with its own model in another folder.
//
//check:not bits32
func TestTuneKeepsItsModel(t *testing.T) {
	const first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	model, data, dir := publish(t), chats(t, 30), t.TempDir()
	args := func(model, out, saved string) []string {
		return []string{"tune", "-model", model, "-data", data, "-steps", "4", "-batch", "6", "-lora", "2", "-save-every", "2", "-checkpoint", filepath.Join(dir, saved), "-o", filepath.Join(dir, out)}
	}
	status, _, errs := snugged(args(model, "whole", "saved")...)
	require.Zero(t, status, errs)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "saved", "step-00000004")))
	for _, c := range []struct {
		name   string
		change func(t *testing.T, model string)
		want   string // empty: the run goes on
	}{
		{"weights of the first shard", func(t *testing.T, m string) { otherWeights(t, m, first) }, "it is of another run: checksum of the weights is "},
		{"weights of the second shard", func(t *testing.T, m string) { otherWeights(t, m, second) }, "it is of another run: checksum of the weights is "},
		{"epsilon", setField("rms_norm_eps", 1e-3), "it is of another run: checksum of config.json is "},
		{"harmless field", setField("initializer_range", 0.5), ""},
		{"same model in another folder", func(*testing.T, string) {}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			other := t.TempDir()
			require.NoError(t, os.CopyFS(other, os.DirFS(model)))
			c.change(t, other)
			saved := "saved " + c.name
			require.NoError(t, os.CopyFS(filepath.Join(dir, saved), os.DirFS(filepath.Join(dir, "saved"))))
			status, out, errs := snugged(args(other, c.name, saved)...)
			if c.want != "" {
				require.Equal(t, 1, status)
				require.Contains(t, errs, c.want)
				require.Equal(t, 1, strings.Count(errs, "\n"), errs)
				require.NoDirExists(t, filepath.Join(dir, c.name))
				return
			}
			require.Zero(t, status, errs)
			require.Contains(t, out, "going on from step 2 of 4")
			want, got := tensorData(t, filepath.Join(dir, "whole", "adapter_model.safetensors")), tensorData(t, filepath.Join(dir, c.name, "adapter_model.safetensors"))
			require.True(t, bytes.Equal(want, got))
		})
	}
}

// vector is a model of one parameter.
type vector struct{ w []float32 }

func (m vector) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield("w", snug.ViewOf(m.w)) }
}
func (vector) Weight(int) float64 { return 1 }
func (vector) Evaluate(context.Context, int) (fused.Loss, error) {
	return fused.Loss{Sum: 1, Targets: 1}, nil
}
func (vector) Backprop(_ context.Context, _ int, _ float32, w train.Window) (fused.Loss, error) {
	g, _, err := w.Into("w")
	clear(g.Float32s())
	return fused.Loss{Sum: 1, Targets: 1}, err
}

// A checkpoint without the checksums, as versions before had them, is refused with what to do.
//
//check:not bits32
func TestTuneOfAnOlderCheckpoint(t *testing.T) {
	model, data, dir := publish(t), chats(t, 30), t.TempDir()
	saved := filepath.Join(dir, "saved")
	f, err := train.OpenFolder(saved, 0)
	require.NoError(t, err)
	trainer, err := train.New(vector{make([]float32, 4)}, train.Options{Checkpoints: train.Checkpoints{Folder: f, About: map[string]any{"model": model, "steps": 4}}})
	require.NoError(t, err)
	_, err = trainer.Train(t.Context(), []int{1})
	require.NoError(t, err)
	require.NoError(t, trainer.Save(t.Context()))
	require.NoError(t, trainer.Close())
	require.NoError(t, f.Close())
	status, _, errs := snugged("tune", "-model", model, "-data", data, "-steps", "4", "-checkpoint", saved, "-o", filepath.Join(dir, "out"))
	require.Equal(t, 1, status)
	require.Contains(t, errs, "did not bind a run to the weights of its model")
	require.Contains(t, errs, "another -checkpoint")
}

// Ranks whose paths lead to other models or teachers end with an error each, before they choose a plan.
func TestRanksWithOtherModels(t *testing.T) {
	model, other, eps := publish(t), publish(t), publish(t)
	otherWeights(t, other, "model-00002-of-00002.safetensors")
	setField("rms_norm_eps", 1e-3)(t, eps)
	for _, c := range []struct {
		name  string
		dirs  [2]string
		teach [2]string
		want  string
	}{
		{"same", [2]string{model, model}, [2]string{}, ""},
		{"copies", [2]string{model, publish(t)}, [2]string{other, other}, ""},
		{"weights", [2]string{model, other}, [2]string{}, model + ": the weights: not the same"},
		{"epsilon", [2]string{model, eps}, [2]string{}, model + ": config.json: not the same"},
		{"weights of the teacher", [2]string{model, model}, [2]string{model, other}, model + ": the weights: not the same"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks, err := accum.Local(t.Context(), 2)
			require.NoError(t, err)
			errs := make(chan error, 2)
			for i, r := range ranks {
				m := &material{}
				m.modelSums, err = checksumsOf(c.dirs[i])
				require.NoError(t, err)
				if c.teach[i] != "" {
					m.teacherSums, err = checksumsOf(c.teach[i])
					require.NoError(t, err)
				}
				one := &tuning{tuneFlags: tuneFlags{dir: model, teacher: teacherFlags{dir: model}}, material: m, ranks: r}
				go func() { errs <- one.sameModel() }()
			}
			for range ranks {
				if err := <-errs; c.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.want)
				}
			}
		})
	}
}

// A dry run of some ranks only is an error on all of them.
func TestDryRunOfSomeRanks(t *testing.T) {
	for _, c := range []struct {
		dry  [2]bool
		want string
	}{{[2]bool{false, false}, ""}, {[2]bool{true, true}, ""}, {[2]bool{true, false}, "tune: -dry-run is given to 1 of 2 ranks, want all or none"}} {
		ranks, err := accum.Local(t.Context(), 2)
		require.NoError(t, err)
		errs := make(chan error, 2)
		for i, r := range ranks {
			one := &tuning{tuneFlags: tuneFlags{dryRun: c.dry[i]}, ranks: r}
			go func() { errs <- one.sameEnd() }()
		}
		for range ranks {
			if err := <-errs; c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		}
	}
}
