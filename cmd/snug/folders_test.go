package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// What people give in the place of a folder of a model is named, with the remedy, by every command.
func TestFoldersThatAreNoModels(t *testing.T) {
	model, data, dir := publish(t), chats(t, 9), t.TempDir()
	put := func(names ...string) string {
		at := t.TempDir()
		for _, name := range names {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(at, name)), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte("{}"), 0o600))
		}
		return at
	}
	adapter, ggufs, entry := put(adapterConfig, adapterFile), put("q4_k_m.gguf"), put("refs/main", "snapshots/0123/config.json", "blobs/ab")
	several := put("b.gguf", "a.gguf")
	weights, gguf := filepath.Join(put("model.safetensors"), "model.safetensors"), filepath.Join(ggufs, "q4_k_m.gguf")
	for _, c := range []struct {
		of     string
		want   string
		checks bool // whether inspect and verify say it too
	}{
		{"Qwen/Qwen3-0.6B", "no such file or folder: Qwen/Qwen3-0.6B; a model of the hub is not downloaded here, but by hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B", true},
		{"gpt2", "hf download gpt2 --local-dir gpt2", true},
		{"./Qwen/Qwen3-0.6B", "no such file or directory", true},
		{filepath.Join(dir, "none"), "no such file or directory", true},
		{adapter, "is the folder of an adapter: want the model that it is for, and -adapter " + adapter, false},
		{ggufs, "has no config.json, and a file of llama.cpp: want that file, " + filepath.Join(ggufs, "q4_k_m.gguf"), false},
		{several, "has no config.json, and files of llama.cpp: want one of them, or the first of a model that is split, " + filepath.Join(several, "a.gguf") + ", " + filepath.Join(several, "b.gguf"), false},
		{entry, "is an entry of the hub's cache: want " + filepath.Join(entry, "snapshots", "0123"), false},
		{weights, "is a file, want the folder of the model: " + filepath.Dir(weights), false},
		{gguf, "does not begin as a file of llama.cpp does: download it again", false},
	} {
		t.Run(c.of, func(t *testing.T) {
			commands := [][]string{
				{"tune", "-model", c.of, "-data", data, "-o", filepath.Join(dir, "out")}, {"tune", "-model", model, "-teacher", c.of, "-data", data, "-o", filepath.Join(dir, "out")},
				{"generate", "-model", c.of, "-prompt", "a"}, {"merge", "-model", c.of, "-adapter", adapter, "-o", filepath.Join(dir, "out")}, {"plan", c.of},
			}
			if c.checks {
				commands = append(commands, []string{"inspect", c.of}, []string{"verify", c.of},
					[]string{"generate", "-model", model, "-adapter", c.of, "-prompt", "a"}, []string{"merge", "-model", model, "-adapter", c.of, "-o", filepath.Join(dir, "out")})
			}
			for _, args := range commands {
				status, out, errs := snugged(args...)
				require.NotZero(t, status, args)
				require.Contains(t, errs, c.want, args)
				require.Equal(t, 1, strings.Count(errs, "\n"))
				require.Empty(t, out)
			}
		})
	}
	for at, want := range map[string]string{ggufs: "a file of llama.cpp: want that file, " + gguf, several: "files of llama.cpp: want one of them"} {
		status, _, errs := snugged("inspect", at)
		require.NotZero(t, status)
		require.Contains(t, errs, want)
	}
	status, _, errs := snugged("plan", "-model", model)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "a folder is given without it: snug plan "+model)
	status, _, errs = snugged("plan", "-model", "Qwen/Qwen3-0.6B")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "hf download Qwen/Qwen3-0.6B")
	status, _, errs = snugged("plan", "-model", "nothing")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "or a file whose name ends in .json")
}

// A file of safetensors is one whatever the length of its header is, also if that begins as JSON and other kinds do.
func TestHeadersOfAnyLength(t *testing.T) {
	dir := t.TempDir()
	for _, length := range []int{'{', '{' + 256, '{' + 256*'"', 's' + 256*'n', '<', ' ', '\n', '['} {
		header := `{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`
		header += strings.Repeat(" ", max(0, length-len(header)))
		if len(header) > length {
			header = "{}" + strings.Repeat(" ", length-2)
		}
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(length)), header...)
		for _, name := range []string{"x.safetensors", "blob"} {
			path := filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(path, file, 0o600))
			status, out, errs := snugged("inspect", path)
			require.Zero(t, status, "%d: %s", length, errs)
			require.Contains(t, out, "safetensors, ")
			status, out, errs = snugged("verify", path)
			if name == "blob" {
				require.Contains(t, errs, "holds no store") // files without the name are not looked for
				continue
			}
			require.Zero(t, status, "%d: %s %s", length, out, errs)
			require.Contains(t, out, "ok\t"+path+"\tsafetensors, ")
		}
	}
	for text, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n": "the file is a pointer of Git LFS, not the file: run git lfs pull",
		"<!DOCTYPE html><html></html>":                                       "the file is a web page",
		"{}":                                                                 "2 bytes, want at least the 8",
		`{"a": 1, "b": 2, "c": 3}`:                                           "the header's length is",
	} {
		t.Run(text, func(t *testing.T) {
			path := filepath.Join(dir, "x.safetensors")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			status, out, _ := snugged("verify", path)
			require.Equal(t, 1, status)
			require.Contains(t, out, "damaged\t"+path+"\t"+want)
		})
	}
}

// A model whose weights alone are larger than the memory of the machine is refused, and not read until the system ends the
// process.
func TestWeightsLargerThanMemory(t *testing.T) {
	c, err := transformer.ReadConfig(publish(t))
	require.NoError(t, err)
	tensors, err := c.Tensors()
	require.NoError(t, err)
	elements := int64(0)
	for _, x := range tensors {
		n := int64(1)
		for _, d := range x.Shape {
			n *= int64(d)
		}
		elements += n
	}
	for _, row := range []struct {
		o     transformer.Options
		bytes int64
	}{
		{transformer.Options{}, 2 * elements}, {transformer.Options{DType: snug.F32}, 4 * elements}, {transformer.Options{Base: qlora.NF4}, elements / 2}, {transformer.Options{Base: qlora.INT8}, elements},
	} {
		require.NoError(t, fitsHost("generate", "dir", c, row.o, row.bytes))
		require.NoError(t, fitsHost("generate", "dir", c, row.o, 0), "the system does not say it")
		err := fitsHost("generate", "dir", c, row.o, row.bytes-2000)
		require.ErrorIs(t, err, snug.ErrNoMemory)
		require.ErrorContains(t, err, "generate: dir: its weights take more than")
	}
	if runtime.GOOS == "linux" {
		require.Greater(t, hostMemory(os.DirFS("/")), int64(100<<20))
	}
}

// TestHostMemory: what a process can have is the machine's memory or the limit of its container, whichever is less.
func TestHostMemory(t *testing.T) {
	for _, row := range []struct {
		name, total, limit string
		want               int64
	}{
		{name: "neither is said"},
		{name: "machine", total: "MemTotal:       2048 kB\nMemFree: 1 kB\n", want: 2 << 20},
		{name: "container with less", total: "MemTotal: 2048 kB\n", limit: "1048576\n", want: 1 << 20},
		{name: "container with more", total: "MemTotal: 2048 kB\n", limit: "4194304\n", want: 2 << 20},
		{name: "container without a limit", total: "MemTotal: 2048 kB\n", limit: "max\n", want: 2 << 20},
		{name: "no number", total: "MemTotal: all kB\n", limit: "1048576\n", want: 1 << 20},
		{name: "container alone", limit: "4194304\n", want: 4 << 20},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := fstest.MapFS{}
			if row.total != "" {
				root["proc/meminfo"] = &fstest.MapFile{Data: []byte(row.total)}
			}
			if row.limit != "" {
				root["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("0::/job\n")}
				root["sys/fs/cgroup/job/memory.max"] = &fstest.MapFile{Data: []byte(row.limit)}
			}
			require.Equal(t, row.want, hostMemory(root))
		})
	}
}
