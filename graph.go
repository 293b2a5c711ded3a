package snug

import (
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

// Graph is a sequence of a device's work that is queued with one call, for steps
// of many small kernels whose launches would take longer than they do.
type Graph struct {
	graph driver.Graph
	queue *driver.Queue
}

// Capture calls step and records the work that it queues on d, which does not
// run; see CUDA's stream capture. The graph keeps the addresses and parameters of
// that work: the arrays must live until it is closed, and what a step takes from
// the host by value, such as a learning rate, is the same in every replay.
//
// Nobody else may use d meanwhile. What needs the host cannot be captured and
// returns an error that wraps [ErrDevice]: Make, CopyIn, CopyOut, Sync and
// functions that return a host value. After an error of step nothing is kept.
// Devices without graphs, the CPU among them, return one that wraps
// [ErrDevice].
func (d *Device) Capture(step func() error) (*Graph, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if step == nil {
		return nil, fmt.Errorf("snug: capture on %s: the step is nil: %w", d, ErrConfig)
	}
	c, ok := d.queue.Driver.(driver.Capturer)
	if !ok {
		return nil, fmt.Errorf("snug: %s has no graphs: %w", d, ErrDevice)
	}
	d.queue.Capturing.Store(true)
	defer d.queue.Capturing.Store(false)
	if err := d.queue.Flush(); err != nil {
		return nil, err
	}
	g, err := c.Capture(func() error {
		if err := step(); err != nil {
			return err
		}
		return d.queue.Flush()
	})
	if err != nil {
		return nil, fmt.Errorf("snug: capture on %s: %w", d, err)
	}
	return &Graph{g, &d.queue}, nil
}

// Launch queues the work of g. The error wraps [ErrConfig] for a Graph that was not made
// by Capture.
func (g *Graph) Launch() error {
	if g == nil || g.graph == nil {
		return fmt.Errorf("snug: launch: the Graph was not made by Capture: %w", ErrConfig)
	}
	if err := g.queue.Flush(); err != nil {
		return err
	}
	return g.graph.Launch()
}

// Close waits for the device's queue and frees g. Closing twice, or a Graph that was not
// made by Capture, does nothing. Closing the device closes its graphs.
func (g *Graph) Close() error {
	if g == nil || g.graph == nil {
		return nil
	}
	return g.graph.Close()
}
