package main

import (
	"context"
	"errors"
	"os"
	"runtime/debug"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
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
	if err != nil {
		return err
	}
	o.fit, o.limit = found, o.memory
	return nil
}

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
