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

// predicted is what snug plan -json says.
type predicted struct {
	Run struct {
		Micro  int `json:"micro_batch"`
		Window int
	}
	Peak struct {
		Device, Host, Disk map[string]int64
	} `json:"peak_bytes"`
	Sent           int64                 `json:"sent_bytes"`
	Seconds        float64               `json:"step_seconds"`
	Without        struct{ Total int64 } `json:"without_bytes"`
	WithoutSeconds float64               `json:"without_step_seconds"`
	Minimum        int64                 `json:"minimum_bytes"` // if nothing fits
}

func predict(t *testing.T, args ...string) (p predicted) {
	t.Helper()
	status, out, errs := snugged(append([]string{"plan", "-json"}, args...)...)
	require.NotEqual(t, 2, status, "%v: %s", args, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	return p
}

// rows returns the cells of the rows of a guide's tables that have so many cells, heads and rules left out.
func rows(page string, cells int) (list [][]string) {
	number := 0 // of the row in its table
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			number = 0
			continue
		}
		row := strings.Split(strings.Trim(line, "|\n"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if number++; number > 2 && len(row) == cells {
			list = append(list, row)
		}
	}
	return list
}

func flags(cell string) []string { return strings.Fields(strings.Trim(cell, "`")) }

func gigabytes(n int64) string { return fmt.Sprintf("%.2f GB", float64(n)/1e9) }

// TestGuidePredictions: the table of docs/fine-tuning.md is what snug plan says.
func TestGuidePredictions(t *testing.T) {
	list := rows(readGuide(t, "fine-tuning.md"), 6)
	require.Len(t, list, 7)
	for _, row := range list {
		p := predict(t, append([]string{"-model", row[1], "-device", "80GB", "-device-memory", row[0], "-batch", "8", "-context", "1024"}, flags(row[3])...)...)
		require.Equal(t, row[4:], []string{gigabytes(p.Peak.Device["total"]), fmt.Sprintf("%d × %d", p.Run.Window, p.Run.Micro)}, row[0])
	}
}

// TestTechniquePredictions: the tables of docs/which-technique.md are what snug plan says.
func TestTechniquePredictions(t *testing.T) {
	args := []string{"-model", "llama-2b", "-device", "80GB", "-batch", "8", "-context", "1024"}
	list := rows(readGuide(t, "which-technique.md"), 6)
	require.Len(t, list, 12)
	p := predict(t, append(args, "-compute", "f32")...)
	require.Equal(t, list[0][2:], []string{gigabytes(p.Without.Total), "–", "1 × 8", fmt.Sprintf("%.2f", p.WithoutSeconds)})
	var before []string
	for _, row := range list[1:] {
		if more, found := strings.CutPrefix(row[1], "+ "); found {
			before = append(before, flags(more)...)
		} else {
			before = flags(row[1])
		}
		p := predict(t, append(args, before...)...)
		host := "–"
		if p.Peak.Host["total"] > 0 {
			host = gigabytes(p.Peak.Host["total"])
		}
		require.Equal(t, row[2:], []string{gigabytes(p.Peak.Device["total"]), host, fmt.Sprintf("%d × %d", p.Run.Window, p.Run.Micro), fmt.Sprintf("%.2f", p.Seconds)}, row[0])
	}
}

// TestSequencePredictions: the table of docs/longer-sequences.md is what snug plan says of its long.json.
func TestSequencePredictions(t *testing.T) {
	page := readGuide(t, "longer-sequences.md")
	_, config, found := strings.Cut(page, "<<'END'\n")
	require.True(t, found)
	config, _, found = strings.Cut(config, "END\n")
	require.True(t, found)
	name := filepath.Join(t.TempDir(), "long.json")
	require.NoError(t, os.WriteFile(name, []byte(config), 0o600))
	list := rows(page, 5)
	require.Len(t, list, 11)
	for _, row := range list {
		args := append([]string{"-device", "80GB", "-lora", "16", "-base", "nf4", "-batch", "1", "-context", row[0]}, flags(row[1])...)
		p := predict(t, append(args, name)...)
		disk := "–"
		if p.Peak.Disk["total"] > 0 {
			disk = gigabytes(p.Peak.Disk["total"])
		}
		require.Equal(t, row[2:], []string{gigabytes(p.Peak.Device["total"]), disk, fmt.Sprintf("%.2f", p.Seconds)}, row[:2])
	}
}

// TestRanksPredictions: the table of docs/many-processes.md is what snug plan says.
func TestRanksPredictions(t *testing.T) {
	list := rows(readGuide(t, ranksGuide), 8)
	require.Len(t, list, 4)
	for _, row := range list {
		shard := strings.Trim(strings.Fields(row[0])[0], "`")
		p := predict(t, "-model", "llama-7b", "-device", "80GB", "-ranks", "8", "-batch", "64", "-masters", "split", "-state", "8", "-own", "-shard", shard)
		d := p.Peak.Device
		got := []string{gigabytes(d["weights"]), gigabytes(d["master weights"] + d["optimizer state"]), gigabytes(d["gradients"]),
			gigabytes(d["activations"]), gigabytes(d["total"]), gigabytes(p.Sent), fmt.Sprintf("%.2f", p.Seconds)}
		require.Equal(t, row[1:], got, row[0])
	}
}
