package transformer

import (
	"bytes"
	"fmt"
	"iter"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// tensorsOf returns the elements of all tensors that Save writes, in the order and the form of files.
func tensorsOf(t *testing.T, m *Model) (list []string) {
	t.Helper()
	require.NoError(t, m.Weights(func(tensors iter.Seq2[amp.Tensor, snug.View]) error {
		for w, v := range tensors {
			made, err := w.Make()
			require.NoError(t, err)
			require.Zero(t, v.Len())
			var b bytes.Buffer
			w.Make = nil
			_, err = amp.WriteWeights(&b, func(yield func(amp.Tensor, snug.View) bool) { yield(w, made) }, nil)
			require.NoError(t, err)
			list = append(list, b.String())
		}
		return nil
	}))
	return list
}

func openModel(t *testing.T, dir string, o Options) *Model {
	t.Helper()
	m, err := Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// saves are folders that are saved: all families, and all adapters that PEFT has written.
func saves(t *testing.T) map[string]struct {
	dir string
	o   Options
} {
	list := map[string]struct {
		dir string
		o   Options
	}{}
	for _, name := range modelNames {
		dir := filepath.Join("testdata", "models", name)
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			list[fmt.Sprint(name, " ", dt)] = struct {
				dir string
				o   Options
			}{dir, Options{DType: dt}}
		}
		list[name+" nf4"] = struct {
			dir string
			o   Options
		}{dir, Options{Base: qlora.NF4}}
	}
	for _, name := range adapterNames {
		g := readAdapter(t, name)
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			o := g.options()
			o.DType = dt
			list[fmt.Sprint("adapter ", name, " ", dt)] = struct {
				dir string
				o   Options
			}{filepath.Join("testdata", "models", g.Base), o}
		}
	}
	list["gpt_oss_mxfp4"] = struct {
		dir string
		o   Options
	}{filepath.Join("testdata", "models", "gpt_oss_mxfp4"), Options{}}
	return list
}

// TestSaveOnlyWritesTheSame: a model that leaves its matrices in its folder is saved as one that has them in memory, twice, and
// loses the same updates.
func TestSaveOnlyWritesTheSame(t *testing.T) {
	for name, s := range saves(t) {
		t.Run(name, func(t *testing.T) {
			whole, o := openModel(t, s.dir, s.o), s.o
			o.SaveOnly = true
			only := openModel(t, s.dir, o)
			want := tensorsOf(t, whole)
			require.Equal(t, want, tensorsOf(t, only))
			require.Equal(t, whole.LostByMerging(), only.LostByMerging())
			require.Equal(t, want, tensorsOf(t, only), "a second time")
			require.Equal(t, whole.LostByMerging(), only.LostByMerging())
			size, all := only.SaveSize(), int64(0)
			require.Equal(t, size.Bytes, whole.SaveSize().Bytes)
			require.NoError(t, only.Weights(func(tensors iter.Seq2[amp.Tensor, snug.View]) error {
				for w := range tensors {
					all += w.Bytes()
				}
				return nil
			}))
			require.Equal(t, all, size.Bytes)
			require.LessOrEqual(t, size.Largest, size.Bytes)
			require.Greater(t, size.Memory, size.Largest)
		})
	}
}

// TestBeforeMergesInOrder: adapters that are merged one after the other give the files of merging each into the folder that the
// one before it has given.
func TestBeforeMergesInOrder(t *testing.T) {
	path := func(name string) string { return filepath.Join("testdata", "adapters", name) }
	for name, list := range map[string][]string{
		"llama":   {"llama_lora", "llama_dora", "llama_vera", "llama_rslora"},
		"saved":   {"llama_saved", "llama_lora"},
		"saved 2": {"llama_lora", "llama_saved"},
		"gpt2":    {"gpt2_lora", "gpt2_dora", "gpt2_vera"},
		"gpt_oss": {"gpt_oss_lora", "gpt_oss_lora"},
		"mixtral": {"mixtral_lora", "mixtral_lora"},
		"nf4":     {"llama_nf4", "llama_lora"},
		"images":  {"gemma3_dora", "gemma3_dora"},
	} {
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			t.Run(fmt.Sprint(name, " ", dt), func(t *testing.T) {
				first := readAdapter(t, list[0])
				o := first.options()
				o.DType = dt
				dir := filepath.Join("testdata", "models", first.Base)
				step, at := o, dir
				for _, adapter := range list {
					step.AdapterDir = path(adapter)
					m := openModel(t, at, step)
					at = t.TempDir()
					require.NoError(t, m.Save(at, 1<<14))
					step.Base = 0
				}
				want := tensorsOf(t, openModel(t, at, Options{}))
				o.SaveOnly = true
				for _, adapter := range list[:len(list)-1] {
					o.Before = append(o.Before, path(adapter))
				}
				o.AdapterDir = path(list[len(list)-1])
				m := openModel(t, dir, o)
				require.Equal(t, want, tensorsOf(t, m))
				require.Equal(t, want, tensorsOf(t, m), "a second time")
			})
		}
	}
}

// TestFolderOptionsRefused: options that exclude one another, and calls that need what stays in the folder, are errors.
func TestFolderOptionsRefused(t *testing.T) {
	dir, adapter := filepath.Join("testdata", "models", "llama"), filepath.Join("testdata", "adapters", "llama_lora")
	for name, o := range map[string]Options{
		"Stream below 0":          {Stream: -1},
		"both":                    {Stream: 1, SaveOnly: true},
		"Pages":                   {SaveOnly: true, Pages: newStore(t)},
		"a fresh adapter":         {SaveOnly: true, Adapter: &qlora.AdapterOptions{Rank: 1, Alpha: 1}},
		"Before without SaveOnly": {Before: []string{adapter}, AdapterDir: adapter},
		"Before alone":            {SaveOnly: true, Before: []string{adapter}},
	} {
		_, err := Open(dir, o)
		require.ErrorIs(t, err, snug.ErrConfig, name)
	}
	_, err := Open(dir, Options{SaveOnly: true, Before: []string{filepath.Join("testdata", "adapters", "gpt2_lora")}, AdapterDir: adapter})
	require.Error(t, err)
	_, err = Open(dir, Options{SaveOnly: true, Before: []string{adapter}, AdapterDir: t.TempDir()})
	require.Error(t, err)
	_, err = New(published(), Options{SaveOnly: true})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = New(published(), Options{Stream: 1 << 30})
	require.ErrorIs(t, err, snug.ErrConfig)

	m := openModel(t, dir, Options{SaveOnly: true, AdapterDir: adapter})
	b := someBatch(5, m.config.Vocab, 2, 7)
	_, err = m.Evaluate(t.Context(), b)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = m.Generate(GenerateOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, m.SaveAdapter(t.TempDir()), snug.ErrConfig)
	require.Zero(t, new(Model).SaveSize())
}

// TestStreamComputesTheSameBits: logits, losses and text are those of a model in memory, with any limit that the largest matrix fits,
// and a lower limit is an error that names that matrix.
func TestStreamComputesTheSameBits(t *testing.T) {
	for name, s := range saves(t) {
		if s.o.DType == snug.F32 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			whole := openModel(t, s.dir, s.o)
			b := someBatch(5, whole.config.Vocab, 1, 7)
			want := allLogits(t, whole, b)
			text := written(t, whole)
			largest, all := int64(0), int64(0)
			for _, p := range whole.Params() {
				if n := int64(p.Len() * whole.dtype.Size()); len(p.Shape) == 2 && !whole.adapted(&p) {
					largest, all = max(largest, n), all+n
				}
			}
			for _, limit := range []int64{largest, (largest + all) / 2, 1 << 40} {
				o := s.o
				o.Stream = limit
				m, err := Open(s.dir, o)
				if whole.adapters.DoRA && s.o.Base == 0 {
					require.ErrorIs(t, err, snug.ErrConfig)
					return
				}
				require.NoError(t, err)
				require.Equal(t, want, allLogits(t, m, b))
				require.Equal(t, text, written(t, m))
				require.LessOrEqual(t, m.folder.held(), limit)
				require.NoError(t, m.Close())
			}
			o := s.o
			o.Stream = 1
			m := openModel(t, s.dir, o)
			if m.pagedBytes == 0 {
				return
			}
			_, err := m.Evaluate(t.Context(), b)
			require.ErrorIs(t, err, snug.ErrNoMemory)
			require.ErrorContains(t, err, "the largest matrix")
		})
	}
}

// written returns tokens that a model writes.
func written(t *testing.T, m *Model) []int32 {
	t.Helper()
	g, err := m.Generate(GenerateOptions{Context: 24, Chunk: 3})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.NoError(t, g.Prompt(t.Context(), []int32{1, 2, 3, 4, 5}))
	for range 8 {
		_, err := g.Next(t.Context())
		require.NoError(t, err)
	}
	return g.Tokens()
}

// TestGenerateBytesPredicts: buffers, workspace and cache of a text are within what was predicted, for all families.
func TestGenerateBytesPredicts(t *testing.T) {
	for _, name := range modelNames {
		t.Run(name, func(t *testing.T) {
			m := openModel(t, filepath.Join("testdata", "models", name), Options{})
			o := GenerateOptions{Context: 24, Chunk: 5}
			want, err := m.GenerateBytes(o)
			require.NoError(t, err)
			g, err := m.Generate(o)
			require.NoError(t, err)
			before := m.Memory()
			require.NoError(t, g.Prompt(t.Context(), []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}))
			for range 8 {
				_, err := g.Next(t.Context())
				require.NoError(t, err)
			}
			have := m.Memory()
			taken := have.Buffers - before.Buffers + have.Workspace - before.Workspace + g.Bytes()
			require.LessOrEqual(t, taken, want)
			require.NoError(t, g.Close())
		})
	}
	m := openModel(t, filepath.Join("testdata", "models", "llama"), Options{Stream: 1 << 20})
	_, err := m.GenerateBytes(GenerateOptions{Context: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	largest, all := m.StreamBytes()
	require.Greater(t, all, largest)
	require.ErrorIs(t, m.SetStream(largest-1), snug.ErrNoMemory)
	require.NoError(t, m.SetStream(largest))
	written(t, m)
	require.ErrorIs(t, m.SetStream(all), snug.ErrConfig)
	plain := openModel(t, filepath.Join("testdata", "models", "llama"), Options{})
	require.ErrorIs(t, plain.SetStream(all), snug.ErrConfig)
	largest, all = plain.StreamBytes()
	require.Zero(t, largest+all)
}
