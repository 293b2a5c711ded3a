package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/state/statetest"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

// tensorFile returns a safetensors file.
func tensorFile(t testing.TB) []byte {
	h := safetensors.Header{
		Tensors:  []safetensors.Tensor{{Name: "w", DType: "BF16", Shape: []int{2, 3}, Begin: 0, End: 12}, {Name: "b\x1b[2J", DType: "F32", Shape: []int{1}, Begin: 12, End: 16}},
		Metadata: map[string]string{"format": "pt"},
	}
	b, err := h.Bytes()
	require.NoError(t, err)
	return append(b, make([]byte, 16)...)
}

// savedStates returns a state of every kind that is told apart.
func savedStates(t testing.TB) map[string][]byte {
	all := map[string][]byte{"tensors": tensorFile(t)}
	add := func(name string, b []byte, err error) {
		require.NoError(t, err)
		all[name] = b
	}
	scaler, err := amp.NewScaler(amp.ScalerOptions{})
	require.NoError(t, err)
	b, err := scaler.AppendBinary(nil)
	add("scaler", b, err)
	master, err := amp.NewMaster(amp.MasterOptions{})
	require.NoError(t, err)
	require.NoError(t, master.Add("layer.weight", 5, func(_ int, w []float32) error { clear(w); return nil }))
	b, err = master.AppendBinary(nil)
	add("masters", b, err)
	window, err := accum.New([]accum.Param{{Name: "w", Len: 4}}, accum.Options{})
	require.NoError(t, err)
	b, err = window.AppendBinary(nil)
	add("window", b, err)
	keep, err := remat.KeepAll(remat.Costs{Input: 1, Stages: slices.Repeat([]remat.Cost{{Output: 1, Saved: 1}}, 3)})
	require.NoError(t, err)
	b, err = keep.MarshalJSON()
	add("plan", b, err)
	noise, err := accum.NewNoiseScale(accum.NoiseOptions{Min: 1, Max: 2})
	require.NoError(t, err)
	b, err = noise.AppendBinary(nil)
	add("noise", b, err)
	for name, bits := range map[string]int{"adamw8": 8, "adamw4": 4} {
		opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: bits})
		require.NoError(t, err)
		require.NoError(t, opt.Add("layer.weight", 5000))
		require.NoError(t, opt.Add("layer.bias", 3))
		opt.Advance(1e-3)
		b, err = opt.AppendBinary(nil)
		add(name, b, err)
	}
	ada, err := quant8.New(quant8.Adafactor{}, quant8.Options{})
	require.NoError(t, err)
	require.NoError(t, ada.AddMatrix("matrix", 30, 40))
	b, err = ada.AppendBinary(nil)
	add("adafactor", b, err)
	return all
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	want := map[string][]string{
		"tensors":   {"safetensors, 2 tensors", "BF16", "[2 3]", `"b\x1b[2J"`, `format: "pt"`},
		"scaler":    {"loss scaler, version 1, a scale of 65536, 0 finite steps of 2000, checksum right"},
		"masters":   {"master weights, version 1, 1 parameters", "layer.weight", "f32", "[5]", "20 B"},
		"window":    {"accum's window, version 1, step 0", "w  f32  [4]  0 B"},
		"plan":      {"plan of recomputation, version 1, ", "3 stages in", "checksum right"},
		"noise":     {"accum's noise scale, version 1"},
		"adamw8":    {"AdamW, 8 bits in blocks of 256, after step 1", "layer.weight  8 bits   [5000]  9.92 KiB", "layer.bias    32 bits  [3]     24 B"},
		"adamw4":    {"4 bits in blocks of 128", "layer.weight"},
		"adafactor": {"matrix", "[30 40]"},
	}
	for name, b := range savedStates(t) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		status, out, errs := snugged("inspect", path)
		require.Zero(t, status, "%s: %s", name, errs)
		for _, part := range want[name] {
			require.Contains(t, out, part, name)
		}
		require.NotContains(t, out, "\x1b")
		status, out, _ = snugged("inspect", "-json", "-sum", path)
		require.Zero(t, status)
		var c content
		require.NoError(t, json.Unmarshal([]byte(out), &c))
		require.EqualValues(t, len(b), c.Bytes)

		// Cut short or changed anywhere, it is an error of one line, or for safetensors other data.
		for at := 0; at < len(b); at += 1 + len(b)/40 {
			for _, damaged := range [][]byte{b[:at], flipped(b, at)} {
				_, err := inspectFile(bytes.NewReader(damaged), int64(len(damaged)), false)
				if name == "tensors" && err == nil {
					continue
				}
				require.ErrorIs(t, err, snug.ErrCorrupt, "%s at %d", name, at)
			}
		}
	}
}

// TestStatesInARow: a file of several states is described state by state, and verified to
// its end.
func TestStatesInARow(t *testing.T) {
	all := savedStates(t)
	row := slices.Concat(all["masters"], all["adamw8"], all["scaler"])
	path := filepath.Join(t.TempDir(), "training")
	write := func(b []byte) {
		require.NoError(t, os.WriteFile(path, b, 0o600))
	}
	write(row)
	status, out, errs := snugged("verify", path)
	require.Zero(t, status, errs)
	require.Contains(t, out, "3 states, of amp's master weights, a quant8 optimizer, amp's loss scaler")
	status, out, errs = snugged("inspect", path)
	require.Zero(t, status, errs)
	for _, part := range []string{"3 states", "state of amp's master weights, version 1, 1 parameters", "AdamW, 8 bits", "layer.bias", "a scale of 65536"} {
		require.Contains(t, out, part)
	}
	status, out, _ = snugged("inspect", "-json", path)
	require.Zero(t, status)
	var c content
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.EqualValues(t, len(row), c.Bytes)
	require.Len(t, c.States, 3)
	require.EqualValues(t, len(all["adamw8"]), c.States[1].Bytes)

	for damage, b := range map[string][]byte{
		"4 bytes follow the state": append(bytes.Clone(row), "tail"...),
		"checksum":                 flipped(row, len(all["masters"])+len(all["adamw8"])/2),
		"a quant8 optimizer":       row[:len(all["masters"])+len(all["adamw8"])-1],
	} {
		t.Run(damage, func(t *testing.T) {
			write(b)
			for _, command := range []string{"verify", "inspect"} {
				status, out, errs := snugged(command, path)
				require.Equal(t, 1, status, damage)
				require.Contains(t, out+errs, damage)
			}
		})
	}
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func TestInspectWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	empty, text := filepath.Join(dir, "empty"), filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.NoError(t, os.WriteFile(text, []byte("this is a text and no more than that"), 0o600))
	for _, path := range []string{empty, text, dir, filepath.Join(dir, "none"), os.DevNull} {
		for _, command := range []string{"inspect", "verify"} {
			status, out, errs := snugged(command, path)
			require.Equal(t, 1, status, path)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			require.Contains(t, errs, filepath.Base(path))
			require.Empty(t, out)
		}
	}
}

// folderOf writes a folder with a store, states and notes.
func folderOf(t *testing.T) string {
	dir := t.TempDir()
	store, err := offload.Open(filepath.Join(dir, "pages"), offload.Options{})
	require.NoError(t, err)
	page, err := store.Acquire("adamw/w/0", 1000)
	require.NoError(t, err)
	page[7] = 9
	require.NoError(t, store.Release("adamw/w/0", true))
	require.NoError(t, store.Commit())
	require.NoError(t, store.Close())
	for name, b := range savedStates(t) {
		if name == "tensors" {
			name += ".safetensors"
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	for name, text := range map[string]string{"notes.txt": "of another kind", "run.json": `{"of": "another program"}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestVerify(t *testing.T) {
	dir := folderOf(t)
	status, out, errs := snugged("verify", dir)
	require.Zero(t, status, errs)
	require.Contains(t, out, "store of pages, 1 pages, 1000 B")
	require.NotContains(t, out, "notes.txt")
	require.NotContains(t, out, "run.json")
	require.Equal(t, 9, strings.Count(out, "ok\t"))
	status, out, _ = snugged("verify", "-q", dir)
	require.Zero(t, status)
	require.Empty(t, out)

	status, out, _ = snugged("inspect", filepath.Join(dir, "pages"))
	require.Zero(t, status)
	require.Contains(t, out, "adamw/w/0  blob  [1000]  1000 B")
	status, same, _ := snugged("inspect", filepath.Join(dir, "pages", storeIndex))
	require.Zero(t, status)
	require.Equal(t, out, same)
	status, out, _ = snugged("verify", filepath.Join(dir, "pages"))
	require.Zero(t, status)
	require.Contains(t, out, "store of pages")
	status, same, _ = snugged("verify", filepath.Join(dir, "pages", storeIndex))
	require.Zero(t, status)
	require.Equal(t, out, same)

	for _, c := range []struct {
		file  string
		at    int
		found string
	}{
		{"pages/snug.pages", 7, "pages"},
		{"pages/snug.index", 20, "pages"},
		{"adamw8", 60, "adamw8"},
		{"window", 9, "window"},
		{"tensors.safetensors", 3, "tensors.safetensors"},
	} {
		t.Run(c.file, func(t *testing.T) {
			path := filepath.Join(dir, filepath.FromSlash(c.file))
			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, flipped(whole, c.at), 0o600))
			status, out, errs := snugged("verify", "-q", dir)
			require.Equal(t, 1, status, c.file)
			require.Equal(t, 1, strings.Count(out, "damaged\t"), out)
			require.Contains(t, out, filepath.Join(dir, c.found))
			require.Equal(t, 1, strings.Count(errs, "\n"))
			require.NoError(t, os.WriteFile(path, whole, 0o600))
		})
	}
	store, err := offload.Open(filepath.Join(dir, "pages"), offload.Options{})
	require.NoError(t, err)
	status, out, errs = snugged("verify", "-q", dir)
	require.Equal(t, 1, status)
	require.True(t, strings.HasPrefix(out, "unread\t"), "a store in use: %s", out)
	require.Contains(t, errs, "1 of 9 could not be checked")
	require.NoError(t, store.Close())
}

// FuzzInspect: whatever the bytes are, there is an error or a content, and a content of a
// state has the checksum of the file.
func FuzzInspect(f *testing.F) {
	for _, b := range savedStates(f) {
		f.Add(b, false)
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sum bool) {
		if sum { // so that damage gets past the checksum
			b = statetest.Seal(b)
		}
		c, err := inspectFile(bytes.NewReader(b), int64(len(b)), true)
		if err != nil {
			require.True(t, errors.Is(err, snug.ErrCorrupt), "%v", err)
			return
		}
		require.NoError(t, c.print(new(bytes.Buffer)))
		for _, e := range c.Entries {
			require.GreaterOrEqual(t, e.Bytes, int64(0))
			require.LessOrEqual(t, e.Bytes, int64(len(b)))
		}
	})
}
