//go:build cuda || hip

package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/snug-ml/snug/internal/driver"
)

// Graph is a sequence of captured work that is queued with one call.
type Graph struct {
	d    *Device
	mu   sync.Mutex
	exec uintptr // 0 when closed
}

// Capture calls step and makes a graph of the launches, products and copies on
// the device that it queues, which do not run. The graph keeps their addresses
// and parameters: memory that it uses must not be freed before it is closed.
//
// Nobody else may use the device meanwhile. What cannot be part of a graph
// returns an error that wraps ErrDevice and leaves the capture as it is: Alloc,
// CopyIn, CopyOut, Sync and copies outside the queue. Free takes effect when the
// capture ends. After an error of step nothing of it is kept.
func (d *Device) Capture(step func() error) (driver.Graph, error) {
	if err := d.beginCapture(); err != nil {
		return nil, err
	}
	err := errors.New("step did not return")
	defer func() {
		if err != nil && d.enter() == nil { // step failed or panicked
			d.dropCapture()
			d.leave()
		}
	}()
	if err = step(); err != nil {
		return nil, err
	}
	return d.endCapture()
}

func (d *Device) beginCapture() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("Capture"); err != nil {
		return err
	}
	if d.api.vendor.blasMemory > 0 {
		d.blas.mu.Lock()
		d.blas.open(d) // a product in the capture tells of the error
		d.blas.mu.Unlock()
	}
	d.api.captures.RLock()
	// Relaxed: calls come from any thread, and modules may load meanwhile.
	if err := d.check("cuStreamBeginCapture", d.api.captureBegin(d.queue, captureRelaxed)); err != nil {
		d.api.captures.RUnlock()
		return err
	}
	d.capturing.Store(true)
	return nil
}

// endCapture ends the capture and makes a graph of it that can run.
func (d *Device) endCapture() (driver.Graph, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	captured, err := d.stopCapture()
	g := &Graph{d: d}
	if err == nil {
		err = d.check("cuGraphInstantiate", d.api.graphInstantiate(&g.exec, captured, 0))
	}
	if captured != 0 {
		err = first(err, d.check("cuGraphDestroy", d.api.graphDestroy(captured)))
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.graphs[g] = true
	d.mu.Unlock()
	return g, nil
}

// stopCapture ends the capture and frees what was freed during it.
func (d *Device) stopCapture() (captured uintptr, err error) {
	err = d.check("cuStreamEndCapture", d.api.captureEnd(d.queue, &captured))
	if err != nil {
		captured = 0 // whatever was written
	}
	d.capturing.Store(false)
	d.api.captures.RUnlock()
	d.mu.Lock()
	freed := d.uncaught
	d.uncaught = nil
	d.mu.Unlock()
	for _, b := range freed {
		err = first(err, d.retire(b))
	}
	return captured, err
}

// dropCapture ends the capture and forgets it.
func (d *Device) dropCapture() error {
	captured, err := d.stopCapture()
	if captured == 0 {
		return err
	}
	return first(err, d.check("cuGraphDestroy", d.api.graphDestroy(captured)))
}

// notCapturing returns an error during a capture.
func (d *Device) notCapturing(what string) error {
	if !d.capturing.Load() {
		return nil
	}
	return fmt.Errorf("%v: %s cannot be part of a captured graph; do it before or after: %w", d, what, driver.ErrDevice)
}

// Launch queues the graph.
func (g *Graph) Launch() error {
	d := g.d
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("a graph"); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exec == 0 {
		return fmt.Errorf("%v: the graph is closed: %w", d, driver.ErrDevice)
	}
	return d.check("cuGraphLaunch", d.api.execLaunch(g.exec, d.queue))
}

// Close waits for the queue and frees the graph. Closing twice does nothing;
// closing the device closes its graphs.
func (g *Graph) Close() error {
	if g.isClosed() {
		return nil
	}
	d := g.d
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("closing a graph"); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exec == 0 {
		return nil
	}
	d.mu.Lock()
	delete(d.graphs, g)
	d.mu.Unlock()
	return first(d.sync(), g.destroy())
}

func (g *Graph) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exec == 0
}

// destroy frees the graph, which does not run. The caller holds g.mu.
func (g *Graph) destroy() error {
	r := g.d.api.execDestroy(g.exec)
	g.exec = 0
	return g.d.check("cuGraphExecDestroy", r)
}
