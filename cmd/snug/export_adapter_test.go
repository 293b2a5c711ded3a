package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// TestExportAdapterAlone writes an adapter for llama.cpp and for mlx-lm, of a folder and of a GGUF file of the same model, with the same bytes.
func TestExportAdapterAlone(t *testing.T) {
	path, dir := publishGGUF(t, "q8_0")
	adapter, out := adapterOf(t, dir, 0.25, qlora.AdapterOptions{}), t.TempDir()
	var files [][]byte
	for name, model := range map[string]string{"file": path, "folder": dir} {
		lora := filepath.Join(out, name+".gguf")
		status, dry, errs := snugged("export", "-model", model, "-adapter", adapter, "-lora", "-dry-run", "-gguf", lora)
		require.Zero(t, status, errs)
		require.NoFileExists(t, lora)
		status, text, errs := snugged("export", "-model", model, "-adapter", adapter, "-lora", "-gguf", lora)
		require.Zero(t, status, errs)
		require.Contains(t, text, "llama-cli -m MODEL.gguf --lora "+lora)
		_, size, _ := strings.Cut(strings.Split(text, ",")[0], lora+": ")
		require.Contains(t, dry, "output    "+size+"\n")
		written, err := os.ReadFile(lora)
		require.NoError(t, err)
		files = append(files, written)
	}
	require.Equal(t, files[0], files[1])
	f, err := gguf.Open(filepath.Join(out, "file.gguf"))
	require.NoError(t, err)
	defer f.Close()
	for key, want := range map[string]any{"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama", "general.name": filepath.Base(adapter)} {
		have, _ := f.Value(key)
		require.Equal(t, want, have, key)
	}

	answer := func(args ...string) string {
		status, text, errs := snugged(append([]string{"generate", "-compute", "f32", "-tokens", "8", "-prompt", "ab cd", "-model", dir}, args...)...)
		require.Zero(t, status, errs)
		return text
	}
	lora := filepath.Join(out, "folder.gguf")
	require.Equal(t, answer("-adapter", adapter), answer("-adapter", lora))
	var merged [][]byte
	for name, from := range map[string]string{"of-folder": adapter, "of-file": lora} {
		status, _, errs := snugged("merge", "-model", dir, "-adapter", from, "-o", filepath.Join(out, name))
		require.Zero(t, status, errs)
		weights, err := os.ReadFile(filepath.Join(out, name, "model.safetensors"))
		require.NoError(t, err)
		merged = append(merged, weights)
	}
	require.Equal(t, merged[0], merged[1])
	status, _, errs := snugged("export", "-model", dir, "-adapter", lora, "-gguf", filepath.Join(out, "merged.gguf"))
	require.Zero(t, status, errs)

	mlx := filepath.Join(out, "mlx")
	args := []string{"export", "-model", dir, "-adapter", adapter, "-mlx", mlx}
	status, _, errs = snugged(append(args, "-dry-run")...)
	require.Zero(t, status, errs)
	require.NoDirExists(t, mlx)
	status, text, errs := snugged(args...)
	require.Zero(t, status, errs)
	require.Contains(t, text, "--adapter-path "+mlx)
	require.FileExists(t, filepath.Join(mlx, mlxFile))
	config, err := os.ReadFile(filepath.Join(mlx, adapterConfig))
	require.NoError(t, err)
	var about struct {
		Kind string `json:"fine_tune_type"`
	}
	require.NoError(t, json.Unmarshal(config, &about))
	require.Equal(t, "lora", about.Kind)
	status, _, errs = snugged("generate", "-model", dir, "-adapter", mlx, "-prompt", "a")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "is an adapter in the form of mlx-lm, want the folder of an adapter as PEFT writes it")
	status, _, errs = snugged(args...)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "is not empty, and nothing is overwritten")
}

func TestExportAdapterRefusals(t *testing.T) {
	model, out := publishBytes(t, turnsChat), t.TempDir()
	adapter, dora := adapterOf(t, model, 0.25, qlora.AdapterOptions{}), adapterOf(t, model, 0.25, qlora.AdapterOptions{DoRA: true})
	saved := filepath.Join("..", "..", "transformer", "testdata", "adapters", "llama_saved")
	path, mlx := filepath.Join(out, "x.gguf"), filepath.Join(out, "mlx")
	for name, test := range map[string]struct {
		args []string
		text string
	}{
		"no adapter":  {[]string{"-lora", "-gguf", path}, "-lora is for -adapter, and there is none"},
		"two":         {[]string{"-lora", "-gguf", path, "-adapter", adapter, "-adapter", dora}, "-lora writes one adapter"},
		"no file":     {[]string{"-lora", "-adapter", adapter}, "want -gguf"},
		"both":        {[]string{"-mlx", mlx, "-adapter", adapter, "-gguf", path}, "-gguf is for files of llama.cpp, and -mlx writes a folder of mlx-lm"},
		"a Modelfile": {[]string{"-lora", "-gguf", path, "-adapter", adapter, "-modelfile", filepath.Join(out, "Modelfile")}, "-modelfile is for the whole model"},
		"a type":      {[]string{"-lora", "-gguf", path, "-adapter", adapter, "-type", "q4_k_m"}, "want one of f32, f16, bf16, q8_0"},
		"DoRA": {[]string{"-lora", "-gguf", path, "-adapter", dora},
			"which llama.cpp does not take: merge it into the model: invalid configuration; merged it runs: snug export -model " + model + " -adapter " + dora + " -gguf FILE.gguf"},
		"modules": {[]string{"-mlx", mlx, "-adapter", saved}, "merged it runs: snug merge -model " + model + " -adapter " + saved + " -o MERGED, and mlx_lm.convert --hf-path MERGED"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := snugged(append([]string{"export", "-model", model}, test.args...)...)
			require.Equal(t, 2, status, errs)
			require.Contains(t, errs, test.text)
			entries, err := os.ReadDir(out)
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}
