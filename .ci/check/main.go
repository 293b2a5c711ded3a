// Check compares the figures that examples/gpt prints with what the README
// promises of them.
//
//	check ON.json OFF.json     a run with all techniques and one without any
//	check -compare FILE.json   the runs of -compare
//	check -state ON.json OFF.json
//	                           a run with optimizer state in 8 bits and one in 32
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
)

type report struct {
	Preset       string   `json:"preset"`
	Steps        int      `json:"steps"`
	LossFirst    float64  `json:"loss_first"`
	LossLast     float64  `json:"loss_last"`
	Predicted    int64    `json:"predicted_peak_bytes"`
	Measured     int64    `json:"measured_peak_bytes"`
	PredictedRSS int64    `json:"predicted_rss_bytes"`
	PeakRSS      int64    `json:"peak_rss_bytes"`
	Techniques   []string `json:"techniques"`
	Components   map[string]struct {
		Predicted int64 `json:"predicted"`
		Measured  int64 `json:"measured"`
	} `json:"components"`
}

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "-compare":
		err = checkCompare(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "-state":
		err = checkState(os.Args[2], os.Args[3])
	case len(os.Args) == 4 && os.Args[1] == "-paged":
		err = checkPaged(os.Args[2], os.Args[3])
	case len(os.Args) == 3:
		err = checkPair(os.Args[1], os.Args[2])
	default:
		err = errors.New("usage: check ON.json OFF.json | check -compare FILE.json | check -state ON.json OFF.json | check -paged ON.json OFF.json")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func read(file string, to any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// checkPair holds a run with all techniques against one without.
func checkPair(onFile, offFile string) error {
	var on, off report
	if err := errors.Join(read(onFile, &on), read(offFile, &off)); err != nil {
		return err
	}
	if len(on.Techniques) != 6 || len(off.Techniques) != 0 || on.Preset != "small" || on.Steps != 200 || off.Steps != 200 {
		return fmt.Errorf("want 200 steps of small with all techniques and without, not %+v and %+v", on, off)
	}
	loss := math.Abs(on.LossLast/off.LossLast - 1)
	memory := float64(on.Measured) / float64(off.Measured)
	fmt.Printf("held-out loss: %.4f with all techniques, %.4f without: %.2f %% apart, want at most 1 %%\n", on.LossLast, off.LossLast, 100*loss)
	fmt.Printf("peak: %d bytes, %d without: %.1f %%, want at most 40 %%\n", on.Measured, off.Measured, 100*memory)
	if !(loss <= 0.01) || !(memory <= 0.4) || !(off.LossLast < 0.8*off.LossFirst) {
		return errors.New("out of bounds")
	}
	return errors.Join(predictions(on, 0.15), predictions(off, 0.15))
}

// checkState holds 300 steps with 8-bit optimizer state against 300 with 32 bits.
func checkState(onFile, offFile string) error {
	var on, off report
	if err := errors.Join(read(onFile, &on), read(offFile, &off)); err != nil {
		return err
	}
	if len(on.Techniques) != 6 || len(off.Techniques) != 5 || on.Preset != "small" || on.Steps != 300 || off.Steps != 300 {
		return fmt.Errorf("want 300 steps of small with all techniques and without quant8, not %+v and %+v", on, off)
	}
	loss := math.Abs(on.LossLast/off.LossLast - 1)
	fmt.Printf("held-out loss after 300 steps: %.4f with 8-bit state, %.4f with 32 bits: %.2f %% apart, want at most 0.5 %%\n", on.LossLast, off.LossLast, 100*loss)
	if !(loss <= 0.005) {
		return errors.New("out of bounds")
	}
	return nil
}

// checkPaged holds a run that has masters and state on disk, with 64 MiB of them in host
// memory, against one that has them in memory: the losses are the same.
func checkPaged(onFile, offFile string) error {
	var on, off report
	if err := errors.Join(read(onFile, &on), read(offFile, &off)); err != nil {
		return err
	}
	paged, held := on.Components["optimizer state"].Measured, off.Components["optimizer state"].Measured+off.Components["master weights"].Measured
	fmt.Printf("34m: losses %v and %v, in memory %v and %v; %d bytes of state in host memory of %d\n",
		on.LossFirst, on.LossLast, off.LossFirst, off.LossLast, paged, held)
	if on.Preset != "34m" || on.LossFirst != off.LossFirst || on.LossLast != off.LossLast || paged > 64<<20 || held < 3*paged {
		return errors.New("want the same losses with 64 MiB of state in memory")
	}
	return nil
}

func checkCompare(file string) error {
	var list []report
	if err := read(file, &list); err != nil {
		return err
	}
	if len(list) != 8 {
		return fmt.Errorf("%d runs, want 8", len(list))
	}
	var errs []error
	for _, r := range list {
		errs = append(errs, predictions(r, 0.1))
	}
	return errors.Join(errs...)
}

// predictions checks every component's measured peak, and the process's to a bound.
func predictions(r report, resident float64) error {
	if len(r.Components) == 0 {
		return fmt.Errorf("%v: no components", r.Techniques)
	}
	near := func(what string, predicted, measured int64, bound float64) error {
		if d := math.Abs(float64(measured - predicted)); d > bound*float64(predicted) {
			return fmt.Errorf("%v: %s: %d bytes predicted, %d measured", r.Techniques, what, predicted, measured)
		}
		return nil
	}
	errs := []error{near("total", r.Predicted, r.Measured, 0.03), near("resident memory", r.PredictedRSS, r.PeakRSS, resident)}
	for name, c := range r.Components {
		errs = append(errs, near(name, c.Predicted, c.Measured, 0.03))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%v: predicted peak within %.2f %%, resident memory %.1f %%\n", r.Techniques,
		100*math.Abs(float64(r.Measured)/float64(r.Predicted)-1), 100*math.Abs(float64(r.PeakRSS)/float64(r.PredictedRSS)-1))
	return nil
}
