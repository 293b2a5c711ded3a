package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/vision"
)

// classifyFlags are the flags of generate that have a meaning for classes of images, and shownClasses how many classes it prints of an image.
var classifyFlags = []string{"model", "image", "compute", "config"}

const shownClasses = 5

// classify writes the most probable classes of images.
func (f *generateFlags) classify(c *call, flags flagTable) (err error) {
	for _, r := range flags {
		if r.given && !slices.Contains(classifyFlags, r.name) {
			return usagef("generate: -%s is not for %s, which -model %s is", r.name, classesSubject().what, f.dir)
		}
	}
	if len(f.images) == 0 {
		return usagef("generate: want -image: the files whose classes -model %s tells", f.dir)
	}
	if err := setForms(&f.options, "", f.compute); err != nil {
		return err
	}
	stop, release := console.OnSignals(console.Options{Name: "snug", Stderr: c.stderr})
	defer release()
	t, err := vision.OpenTower(f.dir, vision.TowerOptions{Options: layers.Options{DType: f.options.DType}})
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if len(t.Config().Labels) == 0 {
		return usagef("generate: -model %s has no head that tells classes apart: snug tune makes one", f.dir)
	}
	processor, err := vision.OpenProcessor(f.dir)
	if err != nil {
		return usageError{err}
	}
	for _, name := range f.images {
		if err := writeClasses(stop.Now, c, t, processor, name, len(f.images) > 1); err != nil {
			return err
		}
	}
	return nil
}

// writeClasses writes the most probable classes of an image, under its name if there are several.
func writeClasses(ctx context.Context, c *call, t *vision.Tower, p *vision.Processor, name string, several bool) error {
	file, err := os.Open(name)
	if err != nil {
		return usageError{err}
	}
	m, err := vision.Decode(file, vision.DecodeOptions{})
	_ = file.Close() // which was only read
	var x vision.Pixels
	if err == nil {
		x, err = p.Process(m)
	}
	if err != nil {
		return usagef("%s: %w", name, err)
	}
	s, err := t.Sample([][]float32{x.Values}, nil)
	if err != nil {
		return usagef("%s: %w", name, err)
	}
	labels := t.Config().Labels
	logits, order := make([]float32, len(labels)), make([]int, len(labels))
	if err := t.Logits(ctx, logits, s); err != nil {
		return err
	}
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	if several {
		fmt.Fprintln(c.stdout, escaped(name))
	}
	all := logSumExp(logits)
	for _, i := range order[:min(shownClasses, len(order))] {
		if _, err := fmt.Fprintf(c.stdout, "%5.1f %%  %s\n", 100*probability(logits[i], all), escaped(labels[i])); err != nil {
			return err
		}
	}
	return nil
}
