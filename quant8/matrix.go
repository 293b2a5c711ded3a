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
	"github.com/snug-ml/snug/internal/ortho"
)

// AddMatrix registers a row-major matrix, such as the weights of a linear layer, and is
// otherwise [Optimizer.Add] of its rows·cols elements. [Adafactor], [Muon], [Apollo], [GaLore]
// and [SOAP] use its rows and columns, and save them with the state. Other rules do not use
// them, and their states are the same as with Add. With these five, Step updates the whole
// matrix, and StepRange of a part is an error. What they keep of a matrix beside its states
// has the key "<optimizer>/<name>/factors" in a [Storage].
//
// Errors are the same as with Add; [snug.ErrShape] also means that rows or cols is
// negative or their product exceeds the address space.
func (a *Optimizer) AddMatrix(name string, rows, cols int) error {
	n, s, err := a.o.elements([]int{rows, cols})
	if err != nil {
		return fmt.Errorf("quant8: %s: parameter %q %w", a.label(), name, err)
	}
	return a.add(name, n, 0, n, s)
}

// WorkspaceBytes returns the bytes of scratch that the steps of matrices share.
// [Adafactor], [Muon], [Apollo], [GaLore] and [SOAP] state the parts of the scratch of a matrix; each part here is
// the largest over all matrices. It is 0 for other rules. The scratch lies on the device
// of the parameters. It is allocated at the first such step, and freed by Close and when
// a matrix on another device is stepped.
func (a *Optimizer) WorkspaceBytes() int64 {
	return 4*int64(a.work.nFloats) + 8*(int64(a.work.nSums)+int64(a.work.nOrder))
}

// Operations returns the floating-point operations of the matrix products of a step, in the mean over steps: of [SOAP],
// without those of its first step, and 0 for other rules, whose products are few beside the passes of a model.
func (a *Optimizer) Operations() float64 {
	return a.work.operations + a.work.refreshes/float64(max(1, a.o.soap.frequency))
}

// maxSide lets an int hold the bytes of everything that a matrix takes: three times its
// elements and its rows and columns.
const maxSide = math.MaxInt / 32

// shape is the shape of a parameter that its optimizer treats as a matrix. It is zero for
// all others.
type shape struct {
	rows, cols int
	factored   bool // it has means of squares for every row and column
	rank       int  // directions onto which its gradient is projected; 0: none
	based      bool // the directions are kept
	left       int  // side of SOAP's preconditioner of the rows; 0: none
	right      int  // the same of the columns
	sliced     int  // elements of which Prodigy keeps two numbers, also in a vector
	shared     int  // elements that share a second moment of AdamMini, also in a vector
	moments    int  // how many of these there are
}

// held returns the number of elements of each state of a parameter of n elements.
func (s shape) held(n int) int {
	if s.rank > 0 {
		return s.rank * max(s.rows, s.cols)
	}
	return n
}

// stateBytes returns the size of the states, in the form l, of a parameter of n elements, and of its factors.
func (s shape) stateBytes(l layout, n int) int64 { return s.factorBytes() + l.bytes(s.held(n)) }

// fewestStates returns the minimum number of states that an element of a parameter has.
func fewestStates(rule optim.Rule) int {
	if rule == optim.AdafactorMomentum {
		return 1
	}
	return len(rule.Signed())
}

// elements returns the number of elements of a vector or a matrix with the given sides,
// and its shape.
func (o *options) elements(sides []int) (n int, s shape, err error) {
	switch len(sides) {
	case 1:
		n, s = sides[0], o.withSlices(s, sides[0])
		s, err = o.withShared(s, n, 0)
		return n, s, err
	case 2:
		rows, cols := sides[0], sides[1]
		if rows >= 0 && cols >= 0 && rows <= maxSide && cols <= maxSide && (cols == 0 || rows <= maxSide/cols) {
			n, s = rows*cols, o.withSlices(o.shapeOf(rows, cols), rows*cols)
			s, err = o.withShared(s, n, cols)
			return n, s, err
		}
		return 0, s, fmt.Errorf("of %d×%d elements: %w", rows, cols, snug.ErrShape)
	}
	return 0, s, fmt.Errorf("of %d dimensions, want 1 or 2: %w", len(sides), snug.ErrShape)
}

// checkMatrix refuses vectors where the rule updates only matrices.
func (o *options) checkMatrix(n int, s shape) error {
	if o.hyper.Rule == optim.Muon && s == (shape{}) && n > 0 {
		return fmt.Errorf("of %d elements, want a matrix: %w", n, snug.ErrConfig)
	}
	if s.turns() {
		floats, doubles := s.turnScratch()
		if bytes := s.factorBytes() + 8*int64(n); max(bytes, 4*floats, 8*doubles) > math.MaxInt {
			return fmt.Errorf("of %d×%d elements takes %d bytes: %w", s.rows, s.cols, bytes, snug.ErrShape)
		}
	}
	return nil
}

// shapeOf returns the shape of a matrix.
func (o *options) shapeOf(rows, cols int) shape {
	if rule := o.hyper.Rule; rows|cols != 0 && (rule.Factored() || rule == optim.Muon) {
		return shape{rows: rows, cols: cols, factored: rule.Factored()}
	}
	if r := o.low.rank; r > 0 && r < min(rows, cols) && rows*cols >= o.MinSize {
		return shape{rows: rows, cols: cols, rank: r, based: o.low.svd}
	}
	if o.soap.frequency > 0 {
		return o.soap.turned(rows, cols)
	}
	return shape{}
}

// factorBytes returns the size of what a matrix has beside its states: with Adafactor 4 for every row and column,
// with Apollo a norm, with GaLore the step of its directions and the directions, with SOAP the number of steps, the preconditioners and
// their bases.
func (s shape) factorBytes() int64 {
	switch {
	case s.shared > 0:
		return 4 * int64(s.moments)
	case s.sliced > 0:
		return 8 * int64(s.sliced)
	case s.factored:
		return 4 * (int64(s.rows) + int64(s.cols))
	case s.based:
		return 4 * (1 + int64(s.rank)*int64(min(s.rows, s.cols)))
	case s.rank > 0:
		return 4
	case s.turns():
		return 4 * (1 + s.squares())
	}
	return 0
}

// workspace is scratch for one matrix at a time.
type workspace struct {
	mu                     sync.Mutex
	nFloats, nSums, nSides int                 // elements for the largest matrix
	floats                 snug.Array[float32] // on the device of the last matrix
	sums                   snug.Array[uint8]   // on the same device, of float64
	near                   []float32           // floats of factored matrices on the host
	nearSums               []float64
	nOrder                 int // sides of the matrix of SOAP with most of them
	order                  []int64
	operations, refreshes  float64 // floating-point operations of a step of SOAP, and of one that replaces the bases besides
	factors                optim.Factors
	shared                 optim.Shared
}

// fit enlarges the workspace for a matrix, at the next take.
func (w *workspace) fit(s shape) {
	if s.shared > 0 {
		w.nFloats, w.nSums = max(w.nFloats, s.moments), max(w.nSums, s.moments*s.parts())
		return
	}
	if s.rows == 0 || s.cols == 0 {
		return // no steps
	}
	if s.rank > 0 {
		floats, sums := s.scratch()
		w.nFloats, w.nSums = max(w.nFloats, floats), max(w.nSums, sums)
		return
	}
	if s.turns() {
		floats, doubles := s.turnScratch()
		w.nFloats, w.nSums = max(w.nFloats, int(floats)), max(w.nSums, int(doubles))
		w.nOrder = max(w.nOrder, s.left+s.right)
		step, refresh := s.turnOperations()
		w.operations, w.refreshes = w.operations+step, w.refreshes+refresh
		return
	}
	if s.factored {
		sides := s.rows + s.cols
		w.nSides, w.nFloats = max(w.nSides, sides), max(w.nFloats, 2*sides)
		w.nSums = max(w.nSums, partsOf(s).sums(s))
		return
	}
	w.nFloats = max(w.nFloats, s.rows*s.cols+ortho.Work(s.rows, s.cols))
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

// stepMatrix makes a step of a matrix.
func (a *Optimizer) stepMatrix(dev *snug.Device, q *param, h optim.Hyper, j stepJob) error {
	a.work.mu.Lock()
	defer a.work.mu.Unlock()
	if err := a.work.take(dev); err != nil {
		return err
	}
	switch {
	case q.rank > 0:
		return a.stepLowRank(dev, q, h, j)
	case q.turns():
		return a.stepSOAP(dev, q, h, j)
	case q.factored:
		return a.stepFactored(dev, q, h, j)
	}
	return a.stepMuon(dev, q, h, j)
}
