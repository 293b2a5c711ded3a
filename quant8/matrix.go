package quant8

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/optim"
)

// AddMatrix registers a row-major matrix, such as the weights of a linear layer, and is
// otherwise [Optimizer.Add] of its rows·cols elements. Rules whose Traits are Shaped use its
// rows and columns, and save them with the state. Other rules do not use
// them, and their states are the same as with Add. With a Shaped rule, Step updates the whole
// matrix, and StepRange of a part is an error, unless the rule says otherwise. What the rule keeps of a matrix beside its states
// has the key "<optimizer>/<name>/factors" in a [Storage].
//
// Errors are the same as with Add; [snug.ErrShape] also means that rows or cols is
// negative or their product exceeds the address space.
func (a *Optimizer) AddMatrix(name string, rows, cols int) error {
	p, err := parameter([]int{rows, cols})
	if err != nil {
		return fmt.Errorf("quant8: %s: parameter %q %w", a.label(), name, err)
	}
	return a.add(name, p, 0, p.n)
}

// WorkspaceBytes returns the bytes of scratch that the steps of parameters share.
// A rule that has it states its parts; each part here is
// the largest over all parameters. It is 0 for other rules. The scratch lies on the device
// of the parameters. It is allocated at the first such step, and freed by Close and when
// a parameter on another device is stepped.
func (a *Optimizer) WorkspaceBytes() int64 {
	return 4*int64(a.work.nFloats) + 8*(int64(a.work.nSums)+int64(a.work.nOrder))
}

// Operations returns the floating-point operations of the matrix products of a step, in the mean over steps
// without the first, where a rule has many of them beside the passes of a model, and else 0.
func (a *Optimizer) Operations() float64 { return a.work.operations }

// maxSide lets an int hold the bytes of everything that a matrix takes: three times its
// elements and its rows and columns.
const maxSide = math.MaxInt / 32

// fewestStates returns the minimum number of states that an element of a parameter has.
func fewestStates(rule optim.Rule) int {
	n := len(rule.Signed())
	if rule.Factored() {
		n = max(1, n-1)
	}
	return n
}

// workspace is scratch for one parameter at a time.
type workspace struct {
	mu       sync.Mutex
	scratch                      // of the parameter that takes most of each part
	floats   snug.Array[float32] // on the device of the last parameter
	sums     snug.Array[uint8]   // on the same device, of float64
	near     []float32           // floats of factored matrices on the host
	nearSums []float64
	order    []int64
	factors  optim.Factors
	shared   optim.Shared
}

// fit enlarges the workspace for a parameter, at the next take.
func (w *workspace) fit(s *scratch) {
	w.nFloats, w.nSums = max(w.nFloats, s.nFloats), max(w.nSums, s.nSums)
	w.nSides, w.nOrder = max(w.nSides, s.nSides), max(w.nOrder, s.nOrder)
	w.operations += s.operations
}

// lock waits for other steps, and takes the workspace on a device. The caller unlocks w.mu unless there is an error.
func (w *workspace) lock(dev *snug.Device) error {
	w.mu.Lock()
	err := w.take(dev)
	if err != nil {
		w.mu.Unlock()
	}
	return err
}

// take allocates on dev the parts that are not there yet.
func (w *workspace) take(dev *snug.Device) (err error) {
	if w.floats.Device() != dev || w.floats.Len() < w.nFloats || w.sums.Len() < sizeofSum*w.nSums {
		if err = w.free(); err != nil {
			return err
		}
		if w.floats, err = snug.Make[float32](dev, w.nFloats); err != nil {
			return err
		}
		if w.sums, err = makeSums(dev, w.nSums); err != nil {
			return errors.Join(err, w.free())
		}
	}
	if len(w.order) < w.nOrder {
		w.order = make([]int64, w.nOrder)
	}
	if dev.IsCPU() {
		w.near, w.nearSums = w.floats.Host(), doubles(w.sums.View())
	} else if !device.HasDoubles(dev) && len(w.near) < 2*w.nSides {
		w.near, w.nearSums = make([]float32, 2*w.nSides), make([]float64, w.nSides)
	}
	return nil
}

const sizeofSum = 8

// makeSums returns n zeros that are 8-byte aligned. A []byte need not be aligned.
func makeSums(dev *snug.Device, n int) (snug.Array[uint8], error) {
	if !dev.IsCPU() {
		return snug.Make[uint8](dev, sizeofSum*n)
	}
	return snug.FromSlice(bytesOfDoubles(make([]float64, n))), nil
}

// doubles returns the memory of makeSums on the host.
func doubles(v snug.View) []float64 {
	return unsafe.Slice((*float64)(device.Mem(&v).Host), v.Len()/sizeofSum)
}

// bytesOfDoubles returns the memory of x.
func bytesOfDoubles(x []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), sizeofSum*len(x))
}

func (w *workspace) free() error {
	err := errors.Join(w.floats.Close(), w.sums.Close())
	w.floats, w.sums = snug.Array[float32]{}, snug.Array[uint8]{}
	w.near, w.nearSums, w.order, w.factors, w.shared = nil, nil, nil, optim.Factors{}, optim.Shared{}
	return err
}
