package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/svgtest"
	"github.com/snug-ml/snug/meter"
)

// sumRow is the last row of the printed table.
var sumRow = regexp.MustCompile(`(?m)^ *sum +(\d+) `)

// TestTuneTrace: the table, the picture and the trace have the measured peak, and the record changes no bits.
//
//check:not bits32
func TestTuneTrace(t *testing.T) {
	model, data, dir := publish(t), chats(t, 12), t.TempDir()
	run := func(name string, flags ...string) (result, string, string) {
		out := filepath.Join(t.TempDir(), "out")
		args := append([]string{"tune", "-model", model, "-data", data, "-o", out, "-steps", "2", "-batch", "2", "-held-out", "0", "-json"}, flags...)
		if name != "" {
			args = append(args, "-trace", filepath.Join(dir, name))
		}
		status, stdout, errs := snugged(args...)
		require.Zero(t, status, errs)
		return lastLine(t, stdout), stdout, out
	}
	plain, _, _ := run("", "-base", "nf4")
	traced, stdout, _ := run("run.json", "-base", "nf4")
	require.Equal(t, plain.Loss, traced.Loss)
	require.Equal(t, plain.Measured, traced.Measured)
	sum, err := strconv.ParseInt(sumRow.FindStringSubmatch(stdout)[1], 10, 64)
	require.NoError(t, err)
	require.Equal(t, traced.Measured, sum, stdout)
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	require.NoError(t, err)
	var trace struct {
		Other struct {
			Peak map[string]int64 `json:"peak_bytes"`
		} `json:"otherData"`
		Events []json.RawMessage `json:"traceEvents"`
	}
	require.NoError(t, json.Unmarshal(text, &trace))
	require.Equal(t, traced.Measured, trace.Other.Peak["device"])
	require.NotEmpty(t, trace.Events)

	_, stdout, _ = run("run.svg", "-full", "-compute", "f32")
	picture, err := os.ReadFile(filepath.Join(dir, "run.svg"))
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(picture, new(struct{})))
	svgtest.TextsFit(t, picture)
	require.Contains(t, string(picture), sumRow.FindStringSubmatch(stdout)[1])
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2, "and nothing else")
}

// TestTuneTracePages: with pages, and with activations on disk, the sum is the peak of the monitor, which is at most the
// sum of the components' peaks.
//
//check:not bits32
func TestTuneTracePages(t *testing.T) {
	for _, j := range pagedJobs(t) {
		r := j.tuning(t)
		r.trace = filepath.Join(t.TempDir(), "run.svg")
		require.NoError(t, r.startTrace())
		require.NoError(t, r.runPaged())
		p, err := r.monitor.PeakHolders(meter.OnDevice)
		require.NoError(t, err)
		sum, pages := int64(0), false
		for _, h := range p.Holders {
			sum += h.Bytes
			pages = pages || strings.HasSuffix(h.Name, ", pages") || strings.HasPrefix(h.Name, "pages ")
		}
		require.True(t, pages, p)
		require.Equal(t, r.monitor.Peak(meter.OnDevice), sum)
		require.NoError(t, r.monitor.Close())
	}
}

// TestTuneTraceOfAFailure: the trace of a run that is interrupted, or lacks memory, is written.
//
//check:not bits32
func TestTuneTraceOfAFailure(t *testing.T) {
	j := pagedJobs(t)[0]
	traced := func(limit int64, stop bool) (*tuning, error) {
		j.Out = filepath.Join(t.TempDir(), "out")
		r := j.tuning(t)
		r.plan.Run.WeightsOn = meter.OnDevice
		r.trace = filepath.Join(t.TempDir(), "run.json")
		var err error
		r.monitor, err = meter.New(meter.Options{History: 64, Limits: [meter.Tiers]int64{limit}})
		require.NoError(t, err)
		if stop {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			r.stop.Now, r.stop.After = ended, ended
		}
		err = r.runPaged()
		text, readErr := os.ReadFile(r.trace)
		require.NoError(t, readErr)
		require.True(t, json.Valid(text))
		return r, err
	}
	whole, err := traced(0, false)
	require.NoError(t, err)
	_, err = traced(0, true)
	var interrupted console.Interruption
	require.ErrorAs(t, err, &interrupted)
	limit := whole.monitor.Peak(meter.OnDevice) - 1
	short, err := traced(limit, false)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.ErrorContains(t, err, "needs at least "+meter.FormatBytesUp(limit+1))
	p, err := short.monitor.PeakHolders(meter.OnDevice)
	require.NoError(t, err)
	require.InDelta(t, limit, p.Bytes, float64(limit)/100)
	require.LessOrEqual(t, p.Bytes, limit, "without what did not fit, which the error counts")
}

// TestTuneTraceRefused: what cannot be written is found before the run.
//
//check:not bits32
func TestTuneTraceRefused(t *testing.T) {
	model, data, dir := publish(t), chats(t, 12), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder.json"), 0o700))
	for name, want := range map[string]string{
		"run.txt": "want a name that ends in .json", "run": "want a name that ends in .json", "": "want a name",
		filepath.Join(dir, "folder.json"): "is not a regular file", filepath.Join(dir, "none", "run.svg"): "the folder " + filepath.Join(dir, "none") + " does not exist",
		filepath.Join(model, "config.json"): "reads or writes", filepath.Join(dir, "out", "run.svg"): "reads or writes",
		filepath.Join(dir, "out.pages", "run.svg"): "reads or writes",
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := snugged("tune", "-model", model, "-data", data, "-o", filepath.Join(dir, "out"), "-steps", "1", "-trace="+name)
			require.Equal(t, 2, status, name)
			require.Contains(t, errs, want)
			require.NoDirExists(t, filepath.Join(dir, "out"))
		})
	}
}
