package main

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug/dist/mpi"
	"github.com/snug-ml/snug/vision"
)

// subject is a kind of model that tune trains on images alone.
type subject struct {
	what  string                // a model of the kind
	is    func(dir string) bool // whether a folder has one, by its config.json
	flags []string              // that have a meaning for it, besides those of every run
	parts []string              // values of -train
	rate  func(f *tuneFlags) float64
	new   func(v *visual) lesson
}

// subjects lists the kinds of models.
func subjects() []*subject { return []*subject{classesSubject(), masksSubject()} }

// everyRun are the flags that every run on images has.
var everyRun = []string{"model", "data", "o", "memory", "optimizer", "compute", "batch", "steps", "epochs", "lr", "seed", "held-out", "eval-every", "checkpoint", "save-every", "dry-run", "json", "config"}

// subjectOf returns the kind of the model of a folder, nil for a model of text.
func subjectOf(dir string) *subject {
	for _, s := range subjects() {
		if s.is(dir) {
			return s
		}
	}
	return nil
}

// begin refuses flags without a meaning, and sets what is the default for a subject.
func (s *subject) begin(f *tuneFlags) error {
	var names []string
	for _, r := range f.flags {
		if r.given && !slices.Contains(everyRun, r.name) && !slices.Contains(s.flags, r.name) {
			names = append(names, "-"+r.name)
		}
	}
	is := "is"
	if len(names) > 1 {
		is = "are"
	}
	switch {
	case len(names) > 0:
		return usagef("tune: %s %s not for %s, which -model %s is", joinWords(names, " and "), is, s.what, f.dir)
	case mpi.Launched():
		return usagef("tune: several ranks are not for %s, which -model %s is", s.what, f.dir)
	}
	for _, part := range f.trains {
		if !slices.Contains(s.parts, part) {
			return usagef("tune: -train %s is not for %s, which -model %s is", part, s.what, f.dir)
		}
	}
	f.full = true
	if !f.given("held-out") {
		f.held = imagesHeldOut
	}
	return nil
}

// imagesHeldOut is the share of images that are held out by default.
const imagesHeldOut = 0.1

// scaledRate returns a rate of the default optimizer, for the optimizer of the flags.
func (f *tuneFlags) scaledRate(standard float64) float64 {
	own, usual := f.setting().Rate, optimizerTraits(defaultOptimizer).Full.Rate
	if own == usual {
		return standard
	}
	return standard * own / usual
}

// checkImages says what is wrong with the flags for images, "" if nothing is.
func (f *tuneFlags) checkImages() string {
	if f.subject != nil {
		return ""
	}
	for _, s := range subjects() {
		for _, name := range []string{"val", "box-jitter"} {
			if f.given(name) && slices.Contains(s.flags, name) {
				return fmt.Sprintf("-%s is for %s, which -model %s is not", name, s.what, f.dir)
			}
		}
	}
	return f.imageFlags.check(f.full)
}

// trainsHead reports whether the head alone trains.
func (f *imageFlags) trainsHead() bool { return slices.Contains(f.trains, headPart) }

// isClasses reports whether a folder has a model that tells classes of images apart.
func isClasses(dir string) bool { return dir != "" && vision.IsTower(dir) }
