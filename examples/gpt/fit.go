package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/plan"
)

// This file finds the micro-batch that fits under a memory limit.

// fitMemory sets the largest micro-batch with which a step of one micro-batch,
// tried on a model of its own, stays under the limit. The batch of a step stays
// what it is.
func (o *options) fitMemory(ctx context.Context, dev *snug.Device, data *corpus) error {
	limited := o.config
	limited.limit, limited.poison = o.memory, 0
	all := o.batch().Global
	found, err := accum.FindMicroBatch(all, 1, all, func(b accum.Batch) error {
		c := limited
		c.fit = b
		return tryBatch(ctx, dev, c, data)
	})
	if errors.Is(err, snug.ErrNoMemory) {
		return limited.misses(err)
	}
	if err != nil {
		return err
	}
	o.fit, o.limit = found, o.memory
	return nil
}

// misses says what a micro-batch of one sequence takes, which is more than the limit. err is
// what it failed with.
func (c config) misses(err error) error {
	all := c.batch().Global
	c.fit = accum.Batch{Global: all, Micro: 1, Window: all, Ranks: 1}
	minimum := int64(0)
	if short := new(shortError); errors.As(err, &short) {
		minimum = short.minimum
	} else if b, predictErr := c.predict(); predictErr == nil {
		minimum = b.Total()
	}
	if minimum <= c.limit {
		return err
	}
	return &shortError{text: fmt.Sprintf("a micro-batch of one sequence takes at least %s", plan.FormatBytesUp(minimum)), minimum: minimum}
}

// shortError says with how many bytes a run would fit. It wraps [snug.ErrNoMemory].
type shortError struct {
	text    string
	minimum int64
}

func (e *shortError) Error() string { return e.text }

func (e *shortError) Unwrap() error { return snug.ErrNoMemory }

// tryBatch makes a step of one micro-batch with a new model under its limit.
func tryBatch(ctx context.Context, dev *snug.Device, c config, data *corpus) (err error) {
	pages, err := os.MkdirTemp("", "snug-pages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(pages)
	t, err := newTrainer(dev, c, data, pages, &checkpoints{})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, t.Close())
		t = nil
		debug.FreeOSMemory() // before the next
	}()
	if _, err := t.microStep(ctx, 0); err != nil {
		return err
	}
	if _, err := t.window.Flush(); err != nil {
		return err
	}
	if _, err := t.update(); err != nil {
		return err
	}
	t.count()
	return t.meter.Check()
}
