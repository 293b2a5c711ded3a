package main

import (
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// calls counts what each step asks of the queue of a device other than the CPU. Pages move outside of the queue.
type calls struct {
	dev   *snug.Device
	steps int
	last  stepCalls  // at the end of the last step
	least *stepCalls // of the step with the fewest waits, after the first; steps with a checkpoint have more
}

// stepCalls are the calls of a step, and the kernels that it launched.
type stepCalls struct {
	driver.Counts
	Launches int64 `json:"launches"`
}

// stepped ends a step.
func (c *calls) stepped() {
	now := stepCalls{device.Counts(c.dev), device.Launches(c.dev)}
	step := stepCalls{now.Minus(c.last.Counts), now.Launches - c.last.Launches}
	if c.steps > 0 && (c.least == nil || step.Waits < c.least.Waits) {
		c.least = &step
	}
	c.last = now
	c.steps++
}

// steady returns the counts of a step, nil on the CPU and when there is only one step.
func (c *calls) steady() *stepCalls {
	if c.dev.IsCPU() {
		return nil
	}
	return c.least
}

// printCalls writes a line with the counts of a step.
func printCalls(w io.Writer, dev *snug.Device, c *stepCalls) {
	if c == nil {
		return
	}
	fmt.Fprintf(w, "the queue of %s in a step: %s; %s; copies: %d to the host, %d to the device; %s\n", dev,
		console.Count(int(c.Waits), "wait"), console.Count(int(c.Launches), "kernel"), c.ToHost, c.ToDevice, console.Count(int(c.Allocs), "allocation"))
}
