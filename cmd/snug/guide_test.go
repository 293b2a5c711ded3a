package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// guide returns docs/fine-tuning.md.
func guide(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "fine-tuning.md"))
	require.NoError(t, err)
	return string(text)
}

// TestGuide: the commands of docs/fine-tuning.md work, one after the other, on a small model.
func TestGuide(t *testing.T) {
	text, folder := guide(t), t.TempDir()
	pairs := strings.Repeat(`{"prompt": "say a", "chosen": "a a", "rejected": "b"}`+"\n", 20)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "pairs.jsonl"), []byte(pairs), 0o600))
	require.NoError(t, os.Rename(publish(t), filepath.Join(folder, "model")))
	require.NoError(t, os.Rename(chats(t, 20), filepath.Join(folder, "chats.jsonl")))
	t.Chdir(folder)

	commands := 0
	for line := range strings.Lines(text) {
		if command, found := strings.CutPrefix(strings.TrimRight(line, "\n"), "    snug "); found {
			commands++
			status, out, errs := snugged(strings.Fields(command)...)
			require.Zero(t, status, "snug %s: %s", command, errs)
			require.NotEmpty(t, out, command)
		}
	}
	require.Equal(t, 6, commands)
	for _, made := range []string{"tuned/adapter_model.safetensors", "merged/model.safetensors", "whole/model.safetensors", "preferred/adapter_model.safetensors"} {
		require.FileExists(t, made)
	}
}

// TestGuidePredictions: the table of docs/fine-tuning.md is what snug plan says.
func TestGuidePredictions(t *testing.T) {
	rows := 0
	for line := range strings.Lines(guide(t)) {
		cells := strings.Split(strings.Trim(line, "|\n "), " | ")
		if len(cells) != 6 || !strings.HasSuffix(cells[0], "GB") {
			continue
		}
		rows++
		args := append([]string{"plan", "-model", cells[1], "-device", "80GB", "-memory", cells[0], "-batch", "8", "-context", "1024", "-json"},
			strings.Fields(strings.Trim(cells[3], "`"))...)
		status, out, errs := snugged(args...)
		require.Zero(t, status, "%v: %s", args, errs)
		var p struct {
			Run struct {
				Micro  int `json:"micro_batch"`
				Window int
			}
			Peak struct{ Device struct{ Total int64 } } `json:"peak_bytes"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &p))
		got := fmt.Sprintf("%s | %.2f GB | %d × %d", strings.Join(cells[:4], " | "), float64(p.Peak.Device.Total)/1e9, p.Run.Window, p.Run.Micro)
		require.Equal(t, strings.Join(cells, " | "), got)
	}
	require.Equal(t, 7, rows)
}
