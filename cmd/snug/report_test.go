package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/report"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/train"
)

var (
	cell  = regexp.MustCompile(`<t[hd][^>]*>([^<]*)</t[hd]>`)
	tr    = regexp.MustCompile(`<tr role="row">(.*)</tr>`)
	digit = regexp.MustCompile(`[0-9]`)
)

// pageRows returns the cells of all rows of a report's tables, by the first cell.
func pageRows(t testing.TB, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	rows := map[string][]string{}
	for _, m := range tr.FindAllStringSubmatch(string(text), -1) {
		var cells []string
		for _, c := range cell.FindAllStringSubmatch(m[1], -1) {
			cells = append(cells, c[1])
		}
		if _, known := rows[cells[0]]; !known {
			rows[cells[0]] = cells[1:]
		}
	}
	return rows
}

// printed requires that the lines of a printed table that begin with the names have the figures of the rows.
func printed(t testing.TB, out string, rows map[string][]string, names ...string) {
	t.Helper()
	for _, name := range names {
		require.Contains(t, rows, name)
		found := false
		for line := range strings.Lines(out) {
			if after, is := strings.CutPrefix(strings.TrimSpace(line), name+" "); is && digit.MatchString(after) && !strings.Contains(after, ":") {
				require.Equal(t, strings.Join(rows[name], " "), strings.Join(strings.Fields(after), " "))
				found = true
			}
		}
		require.True(t, found, "%s: %s", name, out)
	}
}

// TestPlanReport: the page has the figures that plan prints, of plans that recompute and page too.
func TestPlanReport(t *testing.T) {
	for _, flags := range [][]string{
		{"-model", "gpt2", "-memory", "3GiB", "-batch", "16"},
		{"-model", "llama-2b", "-device-memory", "5GiB", "-batch", "4", "-host-memory", "64GiB", "-lora", "8", "-adapter", "dora"},
		{"-model", "resnet-50", "-device-memory", "2GiB"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "plan.html")
			status, out, errs := snugged(append(append([]string{"plan"}, flags...), "-report", path)...)
			require.Zero(t, status, errs)
			rows := pageRows(t, path)
			printed(t, out, rows, "weights", "gradients", "optimizer state", "activations", "workspace", "allowance", "total")
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Contains(t, string(text), "The peak is "+rows["total"][1], "the schedule has the peak of the plan")
			require.NotContains(t, string(text), "Tokens per second")
			for line := range strings.Lines(out) { // choices
				if name, rest, is := strings.Cut(line, ": "); is && rows[name] != nil && name != "master weights" && name != "gradients" && name != "optimizer state" { // which are components too
					require.True(t, strings.HasPrefix(rest, rows[name][0]), line)
				}
			}
		})
	}
	for name, want := range map[string]string{"x.htm": "want a name that ends in .html", "": "want a name"} {
		status, _, errs := snugged("plan", "-model", "gpt2", "-report="+name)
		require.Equal(t, 2, status)
		require.Contains(t, errs, want)
	}
	thesis := filepath.Join(t.TempDir(), "thesis.html")
	require.NoError(t, os.WriteFile(thesis, []byte("<h1>mine</h1>"), 0o600))
	status, out, errs := snugged("plan", "-model", "gpt2", "-report", thesis)
	require.Equal(t, 2, status)
	require.Empty(t, out)
	require.Contains(t, errs, "is not a report of snug, and is not overwritten")
}

// TestTuneReport: for each technique the page has the figures that tune prints, and the losses of all steps.
func TestTuneReport(t *testing.T) {
	model, data := publish(t), chats(t, 24)
	for _, c := range []struct {
		technique string
		flags     []string
	}{
		{"LoRA of rank 16, adamw", nil}, {"LoRA of rank 4 on weights in 4 bits (QLoRA)", []string{"-lora", "4", "-base", "nf4", "-memory", "500MiB"}},
		{"all weights, adamw", []string{"-full"}}, {"LoRA of rank 16, mezo", []string{"-optimizer", "mezo"}},
		{"DoRA of rank 16, schedule-free", []string{"-dora", "-optimizer", "schedule-free"}},
		{"distillation from ", []string{"-teacher", publish(t)}}, {"LoRA of rank 16 on weights in 4 bits", []string{"-base", "nf4", "-disk", "1GiB"}},
		{"DPO with beta 0.3", []string{"-dpo", "0.3", "-data", pairs(t, 25)}},
	} {
		t.Run(c.technique, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, `a<b>&"c".html`)
			status, out, errs := snugged(append([]string{"tune", "-model", model, "-o", filepath.Join(dir, "out"), "-steps", "5", "-batch", "4", "-held-out", "0.2", "-eval-every", "2", "-report", path, "-json"}, orData(data, c.flags)...)...)
			require.Zero(t, status, errs)
			require.Contains(t, out, "the report is in "+path)
			r := lastLine(t, out)
			rows := pageRows(t, path)
			names := []string{"weights", "activations", "total"}
			if r.PeakRSS > 0 {
				names = append(names, "process (peak RSS)")
				require.Equal(t, []string{meter.FormatBytes(r.Resident), meter.FormatBytes(r.PeakRSS)}, rows["process (peak RSS)"][:2])
			}
			_, after, _ := strings.Cut(out, "\npeak memory\n")
			printed(t, after, rows, names...)
			require.Equal(t, []string{meter.FormatBytes(r.Predicted), meter.FormatBytes(r.Measured)}, rows["total"][:2])
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Contains(t, string(text), c.technique)
			require.Contains(t, string(text), `a&lt;b&gt;&amp;&#34;c&#34;.html`)
			h, err := report.Read(path)
			require.NoError(t, err)
			require.Len(t, h.Points, 5)
			require.Equal(t, r.Loss, h.Points[4].Mean)
			require.Len(t, r.Between, 2)
			require.Equal(t, []report.Evaluation{{Step: 0, Loss: r.LossFirst}, r.Between[0], r.Between[1], {Step: 5, Loss: r.LossLast}}, h.HeldOut)
			require.Contains(t, out, fmt.Sprintf("loss on held-out samples after step 4: %.4f\n", r.Between[1].Loss))
			tokens := 0.0
			for _, p := range h.Points {
				tokens += p.Tokens
				require.Positive(t, p.Seconds)
			}
			require.Equal(t, float64(r.Tokens), tokens)
			left, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// TestTuneReportOfADryRun: it has what is predicted.
func TestTuneReportOfADryRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dry.html")
	run := []string{"tune", "-model", publish(t), "-data", chats(t, 12), "-memory", "1GiB", "-o", filepath.Join(t.TempDir(), "out"), "-report", path}
	dry := append(run[:len(run):len(run)], "-dry-run")
	status, out, errs := snugged(dry...)
	require.Zero(t, status, errs)
	printed(t, out, pageRows(t, path), "weights", "total")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "predicted, nothing has run")
	require.Contains(t, string(text), "process, predicted")

	status, _, errs = snugged(run...) // which replaces it, and is not replaced
	require.Zero(t, status, errs)
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	for _, planned := range [][]string{dry, {"plan", "-model", "gpt2", "-report", path}} {
		status, _, errs = snugged(planned...)
		require.Equal(t, 2, status)
		require.Contains(t, errs, "has the steps of a run, which a plan does not replace")
	}
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text, after)
}

// reported starts a run with a report, which the test drives.
func reported(t *testing.T, path string) *tuning {
	t.Helper()
	r := pagedJobs(t)[0].tuning(t)
	r.page = path
	require.NoError(t, r.startReport())
	r.reportMemory()
	require.NoError(t, r.openReport())
	return r
}

// TestTuneReportOfAFailure: a run that is interrupted and one that fails have a report, with the steps that they did.
func TestTuneReportOfAFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.html")
	r := reported(t, path)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	r.stop = console.Stop{After: ended, Now: context.Background()}
	err := r.endReport(r.runPaged())
	var stopped console.Interruption
	require.ErrorAs(t, err, &stopped)
	text, readErr := os.ReadFile(path)
	require.NoError(t, readErr)
	require.Contains(t, string(text), `<p class="state stopped">`)
	require.Contains(t, string(text), stopped.Text)

	r = reported(t, path)
	require.NoError(t, r.runPaged())
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o700))
	require.ErrorContains(t, r.endReport(errFull), errFull.Error())
	text, readErr = os.ReadFile(path)
	require.NoError(t, readErr)
	require.Contains(t, string(text), `<p class="state failed"><strong>failed</strong> the disk is full</p>`)
	h, readErr := report.Read(path)
	require.NoError(t, readErr)
	require.Len(t, h.Points, 4)
	require.NoError(t, r.endReport(nil), "and the second call writes nothing")
}

type textError string

func (e textError) Error() string { return string(e) }

const errFull = textError("the disk is full")

// TestTuneReportWhileItRuns: the file is there from the beginning, and is not written with every step; that it cannot be
// written does not end the run, and is said once.
func TestTuneReportWhileItRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.html")
	r := reported(t, path)
	r.trainer = new(train.Trainer[dataset.Batch])
	r.beginReport()
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(first), `<p class="state running">`)
	step := func(n int) {
		r.reportStep(train.Report{Step: n, Loss: 2}, console.Trained{Tokens: 10 * n, Seconds: float64(n)})
	}
	for n := 1; n <= 100; n++ {
		step(n)
	}
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, first, again)
	r.reporter.wrote = time.Now().Add(-time.Hour)
	step(101)
	h, err := report.Read(path)
	require.NoError(t, err)
	require.Len(t, h.Points, 101)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	for n := 102; n < 105; n++ {
		r.reporter.wrote = time.Now().Add(-time.Hour)
		step(n)
	}
	require.Equal(t, 1, strings.Count(r.call.stderr.(*bytes.Buffer).String(), "the run goes on without its report"))
}

// TestTuneReportResumes: the report of a run that goes on has the steps from before, and that of another run has not.
func TestTuneReportResumes(t *testing.T) {
	model, data, dir := publish(t), chats(t, 24), t.TempDir()
	path := filepath.Join(dir, "run.html")
	tune := func(out string, flags ...string) (int, string, string) {
		return snugged(append([]string{"tune", "-model", model, "-data", data, "-o", filepath.Join(dir, out), "-steps", "6", "-batch", "4", "-held-out", "0",
			"-checkpoint", filepath.Join(dir, "saved"), "-save-every", "2", "-report", path}, flags...)...)
	}
	status, _, errs := tune("a")
	require.Zero(t, status, errs)
	whole, err := report.Read(path)
	require.NoError(t, err)
	require.Len(t, whole.Points, 6)
	// As if the run had ended after step 4, with two steps that the report has and the checkpoints have not.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "saved", "step-6")))
	newest, err := filepath.Glob(filepath.Join(dir, "saved", "step-*"))
	require.NoError(t, err)
	require.NotEmpty(t, newest)
	for _, name := range newest {
		if strings.HasSuffix(strings.TrimLeft(filepath.Base(name), "step-0"), "6") {
			require.NoError(t, os.RemoveAll(name))
		}
	}
	status, out, errs := tune("b")
	require.Zero(t, status, errs)
	require.Contains(t, out, "going on from step 4 of 6")
	resumed, err := report.Read(path)
	require.NoError(t, err)
	require.Equal(t, []int{4}, resumed.Resumed)
	require.Len(t, resumed.Points, 6)
	for i, p := range resumed.Points {
		require.Equal(t, whole.Points[i].Mean, p.Mean, "the bits of the run that was not ended")
		require.Equal(t, i < 4, whole.Points[i].Seconds == p.Seconds)
	}

	// A file of another run has nothing to add, and one that is no report ends the run before it begins.
	other, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(other, []byte(whole.Run), []byte(strings.Repeat("0", len(whole.Run))), 1), 0o600))
	status, _, errs = tune("c")
	require.Zero(t, status, errs)
	h, err := report.Read(path)
	require.NoError(t, err)
	require.Empty(t, h.Points)
	require.Equal(t, []int{6}, h.Resumed)
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	status, _, errs = tune("d")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "is not a report of snug")
	require.NoDirExists(t, filepath.Join(dir, "d"))
}

// TestTuneReportRefused: what cannot be written is found before the run.
func TestTuneReportRefused(t *testing.T) {
	model, data, dir := publish(t), chats(t, 12), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder.html"), 0o700))
	for name, want := range map[string]string{
		"run.svg": "want a name that ends in .html", "": "want a name", filepath.Join(dir, "folder.html"): "is not a regular file",
		filepath.Join(dir, "none", "run.html"): "the folder " + filepath.Join(dir, "none") + " does not exist", filepath.Join(dir, "out", "run.html"): "reads or writes", filepath.Join(model, "run.html"): "reads or writes",
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := snugged("tune", "-model", model, "-data", data, "-o", filepath.Join(dir, "out"), "-steps", "1", "-report="+name)
			require.Equal(t, 2, status, name)
			require.Contains(t, errs, want)
			require.NoDirExists(t, filepath.Join(dir, "out"))
		})
	}
}

// TestReportMemory: the JSON of a result is what it was without a report, except for what is measured.
func TestReportMemory(t *testing.T) {
	model, data, dir := publish(t), chats(t, 12), t.TempDir()
	losses := map[string]float64{}
	for _, name := range []string{"without", "with"} {
		args := []string{"tune", "-model", model, "-data", data, "-o", filepath.Join(dir, name), "-steps", "2", "-batch", "2", "-json"}
		if name == "with" {
			args = append(args, "-report", filepath.Join(dir, "run.html"))
		}
		status, out, errs := snugged(args...)
		require.Zero(t, status, errs)
		var r map[string]any
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		losses[name] = r["loss"].(float64)
	}
	require.Equal(t, losses["without"], losses["with"])
}

// TestReportOfRanks: of several ranks rank 0 alone writes.
func TestReportOfRanks(t *testing.T) {
	ranks, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	for rank, r := range ranks {
		f := tuning{tuneFlags: tuneFlags{page: filepath.Join(t.TempDir(), "run.html")}, call: &call{}}
		require.NoError(t, f.join(r))
		require.NoError(t, f.startReport())
		require.Equal(t, rank == 0, f.reporter != nil)
	}
}
