package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

// runIn saves steps of a run in a folder, as a trainer does.
func runIn(t *testing.T, dir string, steps ...int) {
	f, err := checkpoint.OpenPath(dir, checkpoint.Options{})
	require.NoError(t, err)
	all := savedStates(t)
	part := func(name string, b []byte) checkpoint.Part {
		return checkpoint.Part{Name: name, Write: func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		}}
	}
	about := map[string]any{"preset": "tiny\x1b[2J", "steps": []int{20}}
	for _, step := range steps {
		parts := []checkpoint.Part{part("weights", make([]byte, 40*step)), part("optimizer", all["adamw8"]), part("scaler", all["scaler"])}
		require.NoError(t, f.Save(step, about, parts))
	}
	require.NoError(t, f.Close())
}

// TestVerifyCheckpoints: a line for each checkpoint, of the folders of runs, of one
// checkpoint, and of its files.
func TestVerifyCheckpoints(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	runIn(t, a, 1, 2)
	runIn(t, b, 1, 2)
	require.NoError(t, os.Mkdir(filepath.Join(a, "unfinished-0123456789abcdef0123456789abcdef-00000003"), 0o700))
	status, out, errs := snugged("verify", root)
	require.Zero(t, status, errs)
	require.Equal(t, 4, strings.Count(out, "ok\t"), out)
	require.Contains(t, out, filepath.Join(a, "step-00000001")+"\tcheckpoint of run ")
	require.Contains(t, out, "step 2, 3 parts, ")
	for _, path := range []string{"step-00000002", "step-00000002/run.json", "step-00000002/weights"} {
		status, out, errs := snugged("verify", filepath.Join(a, filepath.FromSlash(path)))
		require.Zero(t, status, errs)
		require.Equal(t, 1, strings.Count(out, "ok\t"), out)
	}
	t.Chdir(filepath.Join(a, "step-00000002"))
	status, out, errs = snugged("verify", ".")
	require.Zero(t, status, errs)
	require.Equal(t, 1, strings.Count(out, "ok\t"), out)

	// A checkpoint of another run lies among those of a.
	require.NoError(t, os.Rename(filepath.Join(a, "step-00000001"), filepath.Join(root, "aside")))
	require.NoError(t, os.Rename(filepath.Join(b, "step-00000001"), filepath.Join(a, "step-00000001")))
	status, out, errs = snugged("verify", "-q", root)
	require.Equal(t, 1, status)
	require.Equal(t, 1, strings.Count(out, "damaged\t"), out)
	require.Contains(t, out, "damaged\t"+filepath.Join(a, "step-00000001")+"\t")
	require.Equal(t, 1, strings.Count(errs, "\n"))
}

// TestVerifyMovedCheckpoints: one that was moved aside, as the error for a damaged one
// advises, or renamed by its user, is checked as one in any folder, whole or damaged.
func TestVerifyMovedCheckpoints(t *testing.T) {
	dir := t.TempDir()
	runIn(t, dir, 1, 2)
	backup := filepath.Join(dir, "backup")
	require.NoError(t, os.Rename(filepath.Join(dir, "step-00000001"), backup))
	status, out, errs := snugged("verify", dir)
	require.Zero(t, status, "%s%s", out, errs)
	require.Equal(t, 2, strings.Count(out, "ok\t"), out)
	require.Equal(t, 2, strings.Count(out, "\n"), out)
	require.Contains(t, out, "ok\t"+backup+"\tcheckpoint of run ")
	for _, path := range []string{backup, filepath.Join(backup, "run.json")} {
		status, out, errs := snugged("verify", path)
		require.Zero(t, status, errs)
		require.Equal(t, 1, strings.Count(out, "\n"), out)
		require.Contains(t, out, "step 1, 3 parts")
		status, out, errs = snugged("inspect", path)
		require.Zero(t, status, errs)
		require.Contains(t, out, "step 1")
	}
	require.NoError(t, os.Remove(filepath.Join(backup, "scaler")))
	status, out, _ = snugged("verify", "-q", dir)
	require.Equal(t, 1, status)
	require.Contains(t, out, "damaged\t"+backup+"\t"+filepath.Join(backup, "scaler")+" is missing")
	require.Equal(t, 1, strings.Count(out, "\n"), out)
}

// TestVerifyDamagedCheckpoints: every bit of a header, 5,000 of the parts, lengths, swapped,
// missing and surplus files are found in the file that is named.
func TestVerifyDamagedCheckpoints(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	runIn(t, dir, 1, 2)
	runIn(t, other, 2)
	newest := filepath.Join(dir, "step-00000002")
	refused := func(path string) {
		t.Helper()
		status, out, errs := snugged("verify", "-q", dir)
		require.Equal(t, 1, status)
		require.Equal(t, 1, strings.Count(out, "damaged\t"), out)
		require.Equal(t, 1, strings.Count(out, "\n"), out)
		require.Contains(t, out, path)
		require.Equal(t, 1, strings.Count(errs, "\n"))
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, name := range []string{checkpoint.HeaderName, "weights", "optimizer", "scaler"} {
		path := filepath.Join(newest, name)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		bits := rng.Perm(8 * len(whole))
		if name != checkpoint.HeaderName {
			bits = bits[:min(len(bits), 5000/3)]
		}
		if !kerneltest.Full() {
			bits = bits[:200]
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
		for _, damaged := range [][]byte{nil, whole[:len(whole)/2], whole[:len(whole)-1], append(whole[:len(whole):len(whole)], 0)} {
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			refused(path)
		}
		for _, from := range []string{filepath.Join(dir, "step-00000001"), filepath.Join(other, "step-00000002")} {
			b, err := os.ReadFile(filepath.Join(from, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, b, 0o600))
			refused(newest)
		}
		require.NoError(t, os.Remove(path))
		refused(path)
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
	surplus := filepath.Join(newest, "more")
	require.NoError(t, os.WriteFile(surplus, nil, 0o600))
	refused(surplus)
}

// TestVerifyARunInUse: neither the lock nor the pages of a run that goes on matter, also
// before there is a checkpoint.
func TestVerifyARunInUse(t *testing.T) {
	root := t.TempDir()
	runIn(t, filepath.Join(root, "a"), 1)
	dir := filepath.Join(root, "b")
	f, err := checkpoint.OpenPath(dir, checkpoint.Options{})
	require.NoError(t, err)
	pages, err := f.Scratch()
	require.NoError(t, err)
	store, err := offload.Open(pages, offload.Options{})
	require.NoError(t, err)
	require.NoError(t, store.Commit())
	status, out, errs := snugged("verify", root)
	require.Zero(t, status, "%s%s", out, errs)
	require.Equal(t, 1, strings.Count(out, "\n"), out)
	status, out, _ = snugged("verify", pages)
	require.Equal(t, 1, status)
	require.Contains(t, out, "unread\t"+pages, "which was asked for")
	require.NoError(t, store.Close())
	require.NoError(t, f.Close())
}

func TestInspectCheckpoints(t *testing.T) {
	dir := t.TempDir()
	runIn(t, dir, 1, 2)
	step := filepath.Join(dir, "step-00000002")
	for path, want := range map[string][]string{
		dir:                                  {"folder of checkpoints, run ", "the newest of step 2", "step-00000001  checkpoint", "steps: [20]"},
		step:                                 {"checkpoint, version 1, run ", "step 2", "weights    part  ", `preset: tiny\x1b[2J`, "steps: [20]"},
		filepath.Join(step, "run.json"):      {"checkpoint, version 1, run ", "optimizer  part  "},
		filepath.Join(step, "weights"):       {"part weights of a checkpoint, run ", "step 2, SHA-256 right: "},
		filepath.Join(step, "optimizer"):     {"part optimizer of a checkpoint, ", "quant8 optimizer, version ", "AdamW, 8 bits", "layer.weight  8 bits   [5000]  9.92 KiB"},
		filepath.Join(step, ".", "scaler"):   {"part scaler", "loss scaler, version"},
		filepath.Join(dir, "step-00000001/"): {"step 1"},
	} {
		t.Run(path, func(t *testing.T) {
			status, out, errs := snugged("inspect", path)
			require.Zero(t, status, "%s: %s", path, errs)
			for _, part := range want {
				require.Contains(t, out, part, path)
			}
			require.NotContains(t, out, "\x1b")
			status, out, _ = snugged("inspect", "-json", path)
			require.Zero(t, status)
			var c content
			require.NoError(t, json.Unmarshal([]byte(out), &c))
			require.Len(t, c.Run, 32)
			require.Positive(t, c.Step)
			require.Positive(t, c.Bytes)
		})
	}
	require.NoError(t, os.WriteFile(filepath.Join(step, "run.json"), []byte("{}"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(step, "weights"), []byte("SNUGPART"), 0o600))
	for _, path := range []string{dir, step, filepath.Join(step, "run.json"), filepath.Join(step, "weights")} {
		status, out, errs := snugged("inspect", path)
		require.Equal(t, 1, status)
		require.Empty(t, out)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		require.Contains(t, errs, filepath.Base(path))
	}
}

// TestInspectBytesOfState: the bytes of the parameters are what the optimizer holds for
// them, whatever its rule, widths and matrices.
func TestInspectBytesOfState(t *testing.T) {
	type optimizer interface {
		Add(name string, n int) error
		AddMatrix(name string, rows, cols int) error
		StateBytes() int64
		AppendBinary(b []byte) ([]byte, error)
	}
	of := func(o optimizer, err error) optimizer {
		require.NoError(t, err)
		return o
	}
	var all []optimizer
	for _, bits := range []int{4, 8, 16, 32} {
		s := quant8.Options{Bits: bits}
		for _, make := range []func() (optimizer, error){
			func() (optimizer, error) { return quant8.New(quant8.AdamW{}, quant8.Options{Bits: bits}) },
			func() (optimizer, error) { return quant8.New(quant8.Lion{}, s) },
			func() (optimizer, error) { return quant8.New(quant8.AdEMAMix{}, s) },
			func() (optimizer, error) { return quant8.New(quant8.Adafactor{}, s) },
			func() (optimizer, error) { return quant8.New(quant8.Apollo{Rank: 5}, s) },
			func() (optimizer, error) { return quant8.New(quant8.GaLore{Rank: 5}, s) },
			func() (optimizer, error) {
				return quant8.New(quant8.Adafactor{Beta1: 0.9}, s)
			},
		} {
			o := of(make())
			require.NoError(t, o.Add("vector", 5001))
			require.NoError(t, o.Add("short", 3))
			all = append(all, o)
		}
		all = append(all, of(quant8.New(quant8.Muon{}, s)))
	}
	for _, o := range all {
		require.NoError(t, o.AddMatrix("matrix", 70, 81))
		b, err := o.AppendBinary(nil)
		require.NoError(t, err)
		c, err := inspectFile(bytes.NewReader(b), int64(len(b)), false)
		require.NoError(t, err)
		sum := int64(0)
		for _, e := range c.Entries {
			require.Positive(t, e.Bytes, "%s: %s", c.Note, e.Name)
			sum += e.Bytes
		}
		require.Equal(t, o.StateBytes(), sum, c.Note)
	}
}
