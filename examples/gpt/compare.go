package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
)

// sets returns the sets of techniques that -compare runs: none, each alone, all.
func sets() []techniques {
	list := []techniques{{}}
	for i := range numTechniques {
		var t techniques
		t[i] = true
		list = append(list, t)
	}
	return append(list, allTechniques())
}

// compare runs every set of techniques in a process of its own and prints what each took.
func compare(ctx context.Context, o options, stdout, stderr io.Writer) error {
	if o.output != "" {
		if err := console.Writable(o.output, ".svg"); err != nil {
			return inputError{err}
		}
	}
	// Report bad input once, before the runs.
	if _, err := o.load(ctx); err != nil {
		return inputError{err}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var reports []*report
	for i, on := range sets() {
		fmt.Fprintf(stderr, "run %d of %d: %v\n", i+1, len(sets()), on)
		r, err := runProcess(ctx, self, o, on)
		if err != nil {
			return fmt.Errorf("with techniques %v: %w", on, err)
		}
		reports = append(reports, r)
	}
	printComparison(stdout, reports)
	if o.output != "" {
		if err := writeChart(o.output, reports); err != nil {
			return err
		}
	}
	if !o.json {
		return nil
	}
	return json.NewEncoder(stdout).Encode(reports)
}

// writeChart draws the peak of every report, with its speed and loss.
func writeChart(file string, reports []*report) error {
	var runs []meter.Measured
	for _, r := range reports {
		runs = append(runs, meter.Measured{Name: r.label, Peak: r.measured, Total: r.Measured, Resident: r.PeakRSS,
			Columns: []string{fmt.Sprintf("%.0f", r.TokensPerS), fmt.Sprintf("%.3f", r.LossLast)}})
	}
	title := fmt.Sprintf("peak memory, %s: %d parameters, %d steps", reports[0].Preset, reports[0].Params, reports[0].Steps)
	return console.WriteFile(file, func(w io.Writer) error {
		return meter.WriteComparison(w, title, []string{"tokens/s", "loss"}, runs)
	})
}

// resident formats the resident bytes of a process, which not every system reports.
func resident(n int64) string {
	if n == 0 {
		return "–"
	}
	return meter.FormatBytes(n)
}

// runProcess runs this program with a technique set and returns its report.
func runProcess(ctx context.Context, self string, o options, on techniques) (*report, error) {
	var off []string
	for i, name := range techniqueNames {
		if !on[i] {
			off = append(off, name)
		}
	}
	cmd := exec.CommandContext(ctx, self, "-json", "-preset", o.name, "-steps", strconv.Itoa(o.steps), "-text", o.text,
		"-seed", strconv.FormatUint(o.seed, 10), "-dtype", o.policy.Compute.String(), "-off", strings.Join(off, ","))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(strings.TrimSpace(stderr.String())))
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	r := &report{label: on.String()}
	if err := json.Unmarshal(lines[len(lines)-1], r); err != nil {
		return nil, err
	}
	for c := range components {
		r.predicted[c], r.measured[c] = r.ByComponent[c.String()].Predicted, r.ByComponent[c.String()].Measured
	}
	return r, nil
}

// worst returns the component with the largest error of prediction, and the error in percent.
func (r *report) worst() (name string, off float64) {
	name = "–"
	for c := range components {
		p, m := float64(r.predicted[c]), float64(r.measured[c])
		if p == m {
			continue
		}
		if d := 100 * (m - p) / max(p, 1); max(d, -d) > max(off, -off) {
			name, off = c.String(), d
		}
	}
	return name, off
}

func printComparison(w io.Writer, reports []*report) {
	base := reports[0]
	t := console.Table(w)
	fmt.Fprintln(t, "techniques\tcounted\tvs none\tpredicted\tworst component\tresident\tvs none\tpredicted\ttokens/s\tloss\tvs none\t")
	before := int64(0)
	for _, r := range reports {
		name, off := r.worst()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s %+.1f %%\t%s\t%s\t%s\t%.0f\t%.4f\t%+.2f %%\t\n", r.label, console.MiB(r.Measured), console.Percent(r.Measured, base.Measured),
			console.Percent(r.Predicted, r.Measured), name, off, resident(r.PeakRSS), console.Percent(r.PeakRSS, base.PeakRSS), console.Percent(r.PredictedRSS, r.PeakRSS),
			r.TokensPerS, r.LossLast, 100*(r.LossLast/base.LossLast-1))
		before = max(before, r.BaseRSS)
	}
	t.Flush()
	fmt.Fprint(w, "\ncounted: the peak of what training holds. ")
	if before == 0 {
		fmt.Fprintln(w, "The system does not tell what is resident.")
		return
	}
	fmt.Fprintf(w, "resident: the peak of the whole process (RSS), of which up to %s were there\nbefore the model: the runtime, code and text.\n", console.MiB(before))
}
