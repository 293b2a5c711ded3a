package amp

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// goldenShards opens a folder that transformers wrote.
func goldenShards(t testing.TB, name string) *Weights {
	w, err := OpenWeights(filepath.Join("testdata", "shards", name))
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// ordered returns the tensors of the golden folder in the order of the model.
func ordered(t testing.TB, w *Weights) []saved {
	var order []string
	text, err := os.ReadFile(filepath.Join("testdata", "shards", "order.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &order))
	require.Len(t, w.Tensors(), len(order))
	var list []saved
	for _, name := range order {
		tensor, found := w.Tensor(name)
		require.True(t, found, name)
		x := make([]snug.BFloat16, tensor.Len())
		require.NoError(t, w.Load(name, snug.ViewOf(x)))
		list = append(list, saved{tensor, snug.ViewOf(x)})
	}
	return list
}

// TestOpenGoldenShards: the shards and the single file of transformers have the same
// tensors.
//
//check:in tiers arm64 arm64-go
func TestOpenGoldenShards(t *testing.T) {
	shards, whole := goldenShards(t, "llama"), goldenShards(t, "whole")
	require.Len(t, shards.set.Files, 4)
	require.ElementsMatch(t, whole.Tensors(), shards.Tensors())
	require.Equal(t, map[string]string{"format": "pt"}, shards.Metadata())
	want := ordered(t, whole)
	for i, tensor := range ordered(t, shards) {
		require.Equal(t, want[i].Tensor, tensor.Tensor)
		require.Equal(t, device.Mem(&want[i].view).Bytes(), device.Mem(&tensor.view).Bytes())
	}
	byIndex, err := OpenWeights(filepath.Join("testdata", "shards", "llama", safetensors.IndexName))
	require.NoError(t, err)
	require.Equal(t, shards.Tensors(), byIndex.Tensors())
	require.NoError(t, byIndex.Close())
	require.ErrorIs(t, byIndex.Close(), os.ErrClosed)
	err = byIndex.Load("model.norm.weight", snug.ViewOf(make([]float32, 16)))
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "model-00003-of-00004.safetensors")
}

// TestSaveShardsAsTransformers writes the files of transformers, byte for byte. Its index
// also has the number of parameters.
func TestSaveShardsAsTransformers(t *testing.T) {
	list := ordered(t, goldenShards(t, "llama"))
	for name, size := range map[string]int64{"llama": 4000, "whole": 0} {
		dir := filepath.Join(t.TempDir(), "new")
		require.NoError(t, SaveShards(dir, size, all(list...), map[string]string{"format": "pt"}))
		want, err := os.ReadDir(filepath.Join("testdata", "shards", name))
		require.NoError(t, err)
		got, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for _, e := range want {
			a, err := os.ReadFile(filepath.Join("testdata", "shards", name, e.Name()))
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			require.Equal(t, strings.Replace(string(a), "    \"total_parameters\": 6992,\n", "", 1), string(b), e.Name())
		}
	}
}

// TestLoadAllReadsFileAfterFile loads parameters in any order from several files.
func TestLoadAllReadsFileAfterFile(t *testing.T) {
	w := goldenShards(t, "llama")
	want := ordered(t, w)
	var params []kerneltest.Named
	got := make([][]snug.BFloat16, len(want))
	for i := len(want) - 1; i >= 0; i-- {
		got[i] = make([]snug.BFloat16, want[i].Len())
		params = append(params, kerneltest.Named{Name: want[i].Name, View: snug.ViewOf(got[i])})
	}
	loads, err := w.plan(kerneltest.Walk(params...))
	require.NoError(t, err)
	for i, l := range loads[1:] {
		require.LessOrEqual(t, loads[i].from.File, l.from.File)
	}
	require.NoError(t, w.LoadAll(kerneltest.Walk(params...)))
	for i := range want {
		raw := make([]byte, want[i].Bytes())
		require.NoError(t, w.ReadBytes(want[i].Name, 0, raw))
		require.Equal(t, device.Mem(&want[i].view).Bytes(), raw)
		require.Equal(t, got[i], want[i].view.BFloat16s())
	}
	require.ErrorContains(t, w.LoadAll(kerneltest.Walk(kerneltest.Slice("none", make([]float32, 1)))), "lacks 1 of 1")
}

// shardsOf returns a folder in memory with tensors a, b and c of one value, in shards of
// two tensors, or in one file.
func shardsOf(t testing.TB, dir *filestest.Dir, value float32, limit int64) {
	plans, total, err := planShards(limit, valued(value), nil)
	require.NoError(t, err)
	require.NoError(t, saveShards(dir, plans, total))
}

func valued(value float32) func(yield func(Tensor, snug.View) bool) {
	var list []saved
	for _, name := range []string{"a", "b", "c", "d"} {
		list = append(list, vector(name, snug.ViewOf([]float32{value, value})))
	}
	return all(list...)
}

// valuesOf opens a folder and returns the value that all its tensors have.
func valuesOf(t testing.TB, dir *filestest.Dir) (float32, error) {
	set, err := safetensors.OpenFolder(dir)
	if err != nil {
		return 0, err
	}
	w := &Weights{set}
	defer w.Close()
	require.Len(t, w.Tensors(), 4)
	x := make([]float32, 8)
	for i, tensor := range w.Tensors() {
		require.NoError(t, w.Load(tensor.Name, snug.ViewOf(x[2*i:2*i+2])))
	}
	for _, v := range x {
		require.Equal(t, x[0], v, "a mixture: %v", x)
	}
	return x[0], nil
}

// TestDamagedShards changes a folder of good shards.
func TestDamagedShards(t *testing.T) {
	index := func(text string) func(*filestest.Dir) {
		return func(d *filestest.Dir) { d.SetBytes(safetensors.IndexName, []byte(text)) }
	}
	replace := func(old, new string) func(*filestest.Dir) {
		return func(d *filestest.Dir) {
			text := string(d.Bytes(safetensors.IndexName))
			require.Contains(t, text, old)
			d.SetBytes(safetensors.IndexName, []byte(strings.Replace(text, old, new, 1)))
		}
	}
	first, second := safetensors.ShardName(1, 2), safetensors.ShardName(2, 2)
	for name, test := range map[string]struct {
		change func(*filestest.Dir)
		want   error
		text   string
	}{
		"no index":        {func(d *filestest.Dir) { _ = d.Remove(safetensors.IndexName) }, snug.ErrCorrupt, "has the shard " + first + " and no model.safetensors.index.json"},
		"a missing shard": {func(d *filestest.Dir) { _ = d.Remove(second) }, snug.ErrCorrupt, "the shard " + second + " is missing"},
		"nothing": {func(d *filestest.Dir) {
			for _, name := range d.Names() {
				_ = d.Remove(name)
			}
		}, snug.ErrConfig, "has neither"},
		"a pickle": {func(d *filestest.Dir) {
			for _, name := range d.Names() {
				_ = d.Remove(name)
			}
			d.SetBytes("pytorch_model.bin", nil)
		}, snug.ErrConfig, `"pytorch_model.bin"`},
		"another name": {func(d *filestest.Dir) {
			for _, name := range d.Names() {
				_ = d.Remove(name)
			}
			d.SetBytes("adapter_model.safetensors", nil)
		}, snug.ErrConfig, `"adapter_model.safetensors"`},
		"two sets":    {func(d *filestest.Dir) { d.SetBytes(safetensors.FileName, written(t)) }, snug.ErrConfig, "two sets of weights"},
		"truncated":   {func(d *filestest.Dir) { d.SetBytes(first, d.Bytes(first)[:100]) }, snug.ErrCorrupt, first + ": "},
		"empty shard": {func(d *filestest.Dir) { d.SetBytes(first, nil) }, snug.ErrCorrupt, first + ": "},
		"swapped": {func(d *filestest.Dir) {
			a, b := d.Bytes(first), d.Bytes(second)
			d.SetBytes(first, b)
			d.SetBytes(second, a)
		}, snug.ErrCorrupt, `tensor "c" is in ` + first + ", but model.safetensors.index.json says " + second},
		"one shard twice": {func(d *filestest.Dir) { d.SetBytes(second, d.Bytes(first)) }, snug.ErrCorrupt, `tensor "a" is in two shards`},
		"surplus tensor":  {replace(`    "b": "`+first+"\",\n", ""), snug.ErrCorrupt, `tensor "b" is in ` + first + ", but not in"},
		"missing tensor":  {replace(`"a": `, `"A": "`+first+`", "a": `), snug.ErrCorrupt, `tensor "A" is not in ` + first},
		"other shard":     {replace(`"a": "`+first, `"a": "`+second), snug.ErrCorrupt, `tensor "a" is in ` + first},
		"no JSON":         {index("{"), snug.ErrCorrupt, safetensors.IndexName},
		"no map":          {index("{}"), snug.ErrCorrupt, "has no weight_map"},
		"no tensors":      {index(`{"weight_map":{}}`), snug.ErrCorrupt, "names no tensor"},
		"a key twice":     {replace(`"a": `, `"a": "x.safetensors", "a": `), snug.ErrCorrupt, "comes twice"},
		"a number":        {index(`{"weight_map":{"a":1}}`), snug.ErrCorrupt, "want a string"},
		"up":              {index(`{"weight_map":{"a":"../x.safetensors"}}`), snug.ErrCorrupt, `"../x.safetensors" is not the name of a .safetensors file`},
		"absolute":        {index(`{"weight_map":{"a":"/etc/x.safetensors"}}`), snug.ErrCorrupt, "is not the name"},
		"backslash":       {index(`{"weight_map":{"a":"..\\x.safetensors"}}`), snug.ErrCorrupt, "is not the name"},
		"another kind":    {index(`{"weight_map":{"a":"x.bin"}}`), snug.ErrCorrupt, "is not the name"},
	} {
		t.Run(name, func(t *testing.T) {
			d := filestest.New()
			shardsOf(t, d, 1, 16)
			require.Equal(t, []string{first, second, safetensors.IndexName}, d.Names())
			test.change(d)
			_, err := valuesOf(t, d)
			require.ErrorIs(t, err, test.want, name)
			require.ErrorContains(t, err, test.text, name)
		})
	}
	for name, change := range map[string]func(*filestest.Dir){
		"no metadata":         replace("\"metadata\": {\n    \"total_size\": 32\n  },", ""),
		"another size":        replace(`"total_size": 32`, `"total_size": 33`), // tied weights counted twice, say
		"a float":             replace(`"total_size": 32`, `"total_size": 32.0`),
		"other keys":          replace(`"total_size": 32`, `"total_size": 32, "total_parameters": 8, "by": {"x": null}`),
		"the single file too": replaceAll(safetensors.FileName),
	} {
		t.Run(name, func(t *testing.T) {
			d := filestest.New()
			shardsOf(t, d, 1, 16)
			change(d)
			_, err := valuesOf(t, d)
			require.NoError(t, err, name)
		})
	}
}

// replaceAll makes an index that names one file only, as some tools do.
func replaceAll(name string) func(*filestest.Dir) {
	return func(d *filestest.Dir) {
		for _, old := range d.Names() {
			_ = d.Remove(old)
		}
		plans, _, err := planShards(0, valued(1), nil)
		if err != nil || saveShards(d, plans, 32) != nil {
			panic("saving in memory")
		}
		index := safetensors.Index{TotalSize: 32, Shards: map[string]string{"a": name, "b": name, "c": name, "d": name}}
		text, err := index.Bytes()
		if err != nil {
			panic(err)
		}
		d.SetBytes(safetensors.IndexName, text)
	}
}

// TestSaveShardsWithFailingCalls: whichever call of the file system fails, once or with all
// that follow, and whatever a power cut then leaves, the folder opens as the old weights,
// as the new ones, or not at all; and a second try replaces what is left.
func TestSaveShardsWithFailingCalls(t *testing.T) {
	before := map[string]func(*filestest.Dir){
		"nothing":              func(*filestest.Dir) {},
		"one file":             func(d *filestest.Dir) { shardsOf(t, d, 1, 0) },
		"same shards":          func(d *filestest.Dir) { shardsOf(t, d, 1, 16) },
		"other shards":         func(d *filestest.Dir) { shardsOf(t, d, 1, 8) },
		"an index of one file": replaceAll(safetensors.FileName),
		"two sets": func(d *filestest.Dir) {
			shardsOf(t, d, 1, 16)
			var third []saved
			for _, name := range []string{"a", "b", "c", "d"} {
				third = append(third, vector(name, snug.ViewOf([]float32{3, 3})))
			}
			d.SetBytes(safetensors.FileName, written(t, third...)) // which never opened
		},
	}
	for name, start := range before {
		for _, limit := range []int64{0, 16} {
			for _, stop := range []bool{false, true} {
				saveWithFailures(t, fmt.Sprintf("%s, limit %d", name, limit), start, limit, stop)
			}
		}
	}
}

func saveWithFailures(t *testing.T, name string, start func(*filestest.Dir), limit int64, stop bool) {
	plans, total, err := planShards(limit, valued(2), nil)
	require.NoError(t, err)
	seen := map[string]int{}
	check := func(d *filestest.Dir) {
		got, err := valuesOf(t, d)
		if err != nil {
			require.True(t, errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrConfig), "%s: %v", name, err)
		}
		require.Contains(t, []float32{0, 1, 2}, got, name)
		seen[fmt.Sprint(got)]++
	}
	for k := 1; ; k++ {
		d := filestest.New()
		start(d)
		require.NoError(t, d.Sync())
		d.FailCall(k, stop, syscall.EIO)
		err := saveShards(d, plans, total)
		d.FailCall(0, false, nil)
		check(d)
		if err == nil {
			got, err := valuesOf(t, d)
			require.NoError(t, err)
			require.Equal(t, float32(2), got)
			require.Len(t, d.Names(), map[bool]int{true: 3, false: 1}[limit > 0], "%s: %v", name, d.Names())
			break
		}
		require.ErrorIs(t, err, syscall.EIO)
		if !stop {
			require.NotContains(t, strings.Join(d.Names(), " "), ".tmp", "%s, call %d", name, k)
		}
		for seed := range uint64(5) {
			survivor := d.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
			check(survivor)
			require.NoError(t, saveShards(survivor, plans, total))
			got, err := valuesOf(t, survivor)
			require.NoError(t, err, name)
			require.Equal(t, float32(2), got)
		}
	}
	require.NotZero(t, seen["2"])
}

// TestOpenShardsWithFailingCalls: an error of the file system comes out, and closes what
// was open.
func TestOpenShardsWithFailingCalls(t *testing.T) {
	d := filestest.New()
	shardsOf(t, d, 1, 16)
	for k := 1; ; k++ {
		d.FailCall(k, false, syscall.EIO)
		set, err := safetensors.OpenFolder(d)
		d.FailCall(0, false, nil)
		if err == nil {
			require.Greater(t, k, 8)
			require.NoError(t, set.Close())
			return
		}
		require.ErrorIs(t, err, syscall.EIO, "call %d", k)
	}
}

// TestLinksInFolders: links to regular files are followed, those of huggingface_hub's cache and others.
func TestLinksInFolders(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	cache := t.TempDir()
	blobs, snapshot := filepath.Join(cache, "blobs"), filepath.Join(cache, "snapshots", "0123abcd")
	require.NoError(t, os.MkdirAll(blobs, 0o700))
	require.NoError(t, os.MkdirAll(snapshot, 0o700))
	golden := filepath.Join("testdata", "shards", "llama")
	entries, err := os.ReadDir(golden)
	require.NoError(t, err)
	for i, e := range entries {
		text, err := os.ReadFile(filepath.Join(golden, e.Name()))
		require.NoError(t, err)
		blob := fmt.Sprintf("%064x", i)
		require.NoError(t, os.WriteFile(filepath.Join(blobs, blob), text, 0o600))
		require.NoError(t, os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, e.Name())))
	}
	for _, path := range []string{snapshot, snapshot + "/", filepath.Join(snapshot, safetensors.IndexName)} {
		w, err := OpenWeights(path)
		require.NoError(t, err)
		require.Len(t, w.Tensors(), 21)
		require.NoError(t, w.Close())
	}
	shard := filepath.Join(snapshot, entries[0].Name())
	outside := filepath.Join(cache, "outside.safetensors")
	require.NoError(t, os.Rename(filepath.Join(blobs, fmt.Sprintf("%064x", 0)), outside))
	for name, plant := range filestest.Planted(outside) {
		require.NoError(t, os.RemoveAll(shard))
		require.NoError(t, plant(shard))
		w, err := OpenWeights(snapshot)
		if err == nil {
			require.Contains(t, []string{"hard link", "symbolic link"}, name)
			require.NoError(t, w.Close())
			continue
		}
		require.Error(t, err, name)
		require.ErrorContains(t, err, entries[0].Name(), name)
	}
	for to, follows := range map[string]bool{
		"../../blobs/../outside.safetensors": true, "../../outside.safetensors": true, outside: true,
		"../../blobs/": false, "../../none.safetensors": false, "/dev/zero": false, entries[0].Name(): false,
	} {
		t.Run(to, func(t *testing.T) {
			require.NoError(t, os.RemoveAll(shard))
			require.NoError(t, os.Symlink(to, shard))
			w, err := OpenWeights(snapshot)
			if follows {
				require.NoError(t, err, to)
				require.NoError(t, w.Close())
				return
			}
			require.Error(t, err, to)
			require.ErrorContains(t, err, entries[0].Name(), to)
		})
	}
}

func TestSaveShardsErrors(t *testing.T) {
	dir := t.TempDir()
	one := all(vector("x", snug.ViewOf([]float32{1})))
	require.ErrorIs(t, SaveShards(dir, -1, one, nil), snug.ErrConfig)
	require.ErrorIs(t, SaveShards(dir, 0, nil, nil), snug.ErrConfig)
	x := vector("x", snug.ViewOf([]float32{1}))
	err := SaveShards(dir, 4, all(x, x), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `amp: SaveShards: tensor "x" comes twice`)
	require.ErrorIs(t, SaveShards(dir, 1, func(yield func(Tensor, snug.View) bool) {
		for i := range safetensors.MaxShards + 1 {
			if !yield(Tensor{Name: fmt.Sprint(i), Shape: []int{1}}, x.view) {
				return
			}
		}
	}, nil), snug.ErrConfig)
	require.ErrorIs(t, SaveShards(dir, 4, all(vector("a", lost(t, 3)), x), nil), snug.ErrDevice)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorIs(t, SaveShards(file, 0, one, nil), snug.ErrConfig)
	require.NoError(t, os.Mkdir(filepath.Join(dir, safetensors.FileName), 0o700))
	require.ErrorIs(t, SaveShards(dir, 0, one, nil), snug.ErrConfig)
}

// shardsProperty saves any tensors under any limit and reads them again.
func shardsProperty(t *rapid.T) {
	d := filestest.New()
	for range rapid.IntRange(1, 2).Draw(t, "saves") {
		var list []saved
		for i := range rapid.IntRange(0, 6).Draw(t, "tensors") {
			x := make([]float32, rapid.IntRange(0, 5).Draw(t, "elements"))
			for j := range x {
				x[j] = float32(rapid.IntRange(-9, 9).Draw(t, "value"))
			}
			list = append(list, vector(fmt.Sprint("t", i), snug.ViewOf(x)))
		}
		limit := rapid.Int64Range(1, 60).Draw(t, "limit")
		plans, total, err := planShards(limit, all(list...), nil)
		require.NoError(t, err)
		require.NoError(t, saveShards(d, plans, total))
		for _, p := range plans {
			if len(p.header.Tensors) > 1 {
				require.LessOrEqual(t, p.header.Tensors[len(p.header.Tensors)-1].End, limit)
			}
		}
		set, err := safetensors.OpenFolder(d)
		require.NoError(t, err)
		w := &Weights{set}
		require.Len(t, w.Tensors(), len(list))
		for _, want := range list {
			got := make([]float32, want.view.Len())
			require.NoError(t, w.Load(want.Name, snug.ViewOf(got)))
			require.Equal(t, want.view.Float32s(), got)
		}
		require.NoError(t, w.Close())
	}
}

//check:in tiers
func TestShardsProperty(t *testing.T) { rapid.Check(t, shardsProperty) }
func FuzzShards(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(shardsProperty)) }

// FuzzShardIndex reads any index beside two good shards. What opens has all of their tensors.
func FuzzShardIndex(f *testing.F) {
	good := filestest.New()
	shardsOf(f, good, 1, 16)
	f.Add(good.Bytes(safetensors.IndexName))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := filestest.New()
		shardsOf(t, d, 1, 16)
		d.SetBytes(safetensors.IndexName, text)
		set, err := safetensors.OpenFolder(d)
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			return
		}
		n := 0
		for _, file := range set.Files {
			n += len(file.Header.Tensors)
		}
		require.Positive(t, n)
	})
}
