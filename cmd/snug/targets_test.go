package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTuneFor: what a program does not take is an error before anything is written, which names what works; what it takes trains.
func TestTuneFor(t *testing.T) {
	model, data := publish(t), chats(t, 9)
	for _, c := range []struct {
		target string
		flags  []string
		want   []string // parts of the error, none if there is none
	}{
		{"vllm", nil, nil},
		{"vllm", []string{"-rslora"}, nil},
		{"vllm", []string{"-adapter", "pissa"}, nil},
		{"vllm", []string{"-full"}, nil},
		{"vllm", []string{"-dora"}, []string{"vLLM does not take the magnitudes of DoRA", "then vllm serve MERGED"}},
		{"vllm", []string{"-adapter", "vera"}, []string{"VeRA"}},
		{"vllm", []string{"-adapter", "dora", "-modules-to-save", "lm_head"}, []string{"DoRA (use_dora), nor modules that train whole (-modules-to-save"}},
		{"vllm", []string{"-lora", "512"}, nil},
		{"vllm", []string{"-lora", "513"}, []string{"a rank above 512 (--max-lora-rank)"}},
		{"llama.cpp", nil, nil},
		{"llama.cpp", []string{"-rslora"}, nil},
		{"llama.cpp", []string{"-dora"}, []string{"DoRA", "then snug export -model MERGED"}},
		{"llama.cpp", []string{"-adapter", "loftq"}, []string{"nf4"}},
		{"mlx", nil, nil},
		{"mlx", []string{"-dora"}, nil},
		{"mlx", []string{"-adapter", "vera"}, []string{"mlx-lm does not take adapters of VeRA", "mlx_lm.convert"}},
		{"mlx", []string{"-full"}, nil},
		{"transformers", []string{"-dora", "-modules-to-save", "lm_head", "-rslora"}, nil},
		{"ollama", nil, []string{`-for "ollama": want transformers, vllm, llama.cpp or mlx`}},
	} {
		out := filepath.Join(t.TempDir(), "out")
		args := append([]string{"tune", "-model", model, "-data", data, "-dry-run", "-o", out, "-for", c.target}, c.flags...)
		status, _, errs := snugged(args...)
		if c.want == nil {
			require.Zero(t, status, "%s %v: %s", c.target, c.flags, errs)
			continue
		}
		require.Equal(t, 2, status, "%s %v", c.target, c.flags)
		for _, want := range c.want {
			require.Contains(t, errs, want)
		}
		if c.target != "ollama" {
			require.Contains(t, errs, "snug merge -model "+model+" -adapter "+out+" -o MERGED")
		}
		require.NoDirExists(t, out)
	}
	seeing := filepath.Join("..", "..", "vision", "testdata", "tune", "gemma3")
	for part, want := range map[string]string{"text,projector": "the projector of images without -train text", "text": ""} {
		_, _, errs := snugged("tune", "-model", seeing, "-data", data, "-dry-run", "-for", "vllm", "-train", part)
		require.Equal(t, want != "", strings.Contains(errs, "-for vllm"), errs)
		require.Contains(t, errs, want)
	}
	_, _, errs := snugged("tune", "-model", filepath.Join(filepath.Dir(published), "glm4"), "-data", data, "-dry-run", "-for", "llama.cpp")
	require.Contains(t, errs, "llama.cpp does not take adapters of this model")
	status, _, errs := snugged("tune", "-model", filepath.Join(filepath.Dir(published), "llama_dynamic"), "-data", data, "-dry-run", "-for", "llama.cpp")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-for llama.cpp: ")
	require.Contains(t, errs, "dynamic")
}
