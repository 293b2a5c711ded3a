package main

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// openDevice opens the device that -device of a command names; the CPU needs no name.
func openDevice(command, name string) (*snug.Device, error) {
	if name == "" {
		return snug.CPU(), nil
	}
	dev, err := snug.Open(name)
	if err != nil {
		return nil, usagef("%s: -device: %w", command, err)
	}
	return dev, nil
}

// onDevice reports whether the model is not on the CPU.
func (t *tuning) onDevice() bool { return t.dev != nil && !t.dev.IsCPU() }

// wholeSums reports whether gradients are summed before an update: ranks and devices make none in the backward pass, which
// measures gradients one by one.
func (t *tuning) wholeSums() bool { return t.ranks != nil || t.onDevice() }

// checkDevice returns an error for flags that are for the CPU.
func (t *tuning) checkDevice() error {
	switch {
	case !t.onDevice():
		return nil
	case t.disk > 0:
		return usagef("tune: -disk makes pages for the CPU, and -device is %s", t.device)
	case t.fold:
		return usagef("tune: -fold is for the CPU, and -device is %s", t.device)
	case t.traits().Refuses(quant8.OnDevice) != "":
		return usagef("tune: %s", t.traits().Conflict("-device "+t.device, quant8.OnDevice))
	case t.ranks != nil:
		return usagef("tune: ranks compute on the CPU, and -device is %s", t.device)
	}
	return nil
}

// fitDevice finds what fits on the device: within -device-memory or else in what is free there.
func (t *tuning) fitDevice(tasks []plan.Task) (err error) {
	limit := t.deviceMemory
	if limit == 0 {
		free, _, err := t.dev.Memory()
		if err != nil {
			return err
		}
		limit = free - free/spare
	}
	t.plan, err = fitFirst(tasks, max(1, limit-t.images))
	var miss *plan.MissError
	if errors.As(err, &miss) {
		return fmt.Errorf("tune: -device %s: nothing fits in %s there: the smallest plan takes %s: %w",
			t.device, meter.FormatBytes(limit), meter.FormatBytesUp(miss.Minimum), snug.ErrNoMemory)
	}
	return err
}
