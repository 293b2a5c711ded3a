package accum

import (
	"cmp"
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// pieces is the number of ranges that a gradient is split into to look for
// non-finite values, each with a record of its own. Devices other than the CPU
// take more, to be busy with one gradient.
const (
	pieces       = 64
	devicePieces = 4096
)

// minDevicePiece is the least number of elements that is worth a block of
// threads.
const minDevicePiece = 1 << 11

// pieceSize returns the elements of a piece. On other devices than the CPU it
// is a multiple of the least, so that pieces start where wide accesses do.
func pieceSize(dev *snug.Device, n int) int {
	if dev.IsCPU() {
		return max(chunk, cpu.Chunks(n, pieces))
	}
	return max(1, cpu.Chunks(n, devicePieces*minDevicePiece)) * minDevicePiece
}

// newRecords returns memory for the records of w, as many as its largest
// parameter has pieces.
func (w *Window) newRecords() []int32 {
	most := 0
	for i := range w.params {
		n := w.params[i].Len
		most = max(most, cpu.Chunks(n, pieceSize(w.device, n)))
	}
	return make([]int32, most*recordLen)
}

// record is three int32: the parameter, counted from 1, or 0 for none, the
// element from the start of its piece, and the bits of its value. It is the
// first non-finite one of its piece over all parameters.
const recordLen = 3

// inspect drops the micro-batch if its gradients hold a non-finite value.
func (w *Window) inspect(grads iter.Seq2[string, snug.View], checked int) error {
	clear(w.records)
	w.found = snug.SliceView(w.records)
	var remote snug.Array[int32]
	if !w.device.IsCPU() {
		var err error
		if remote, err = snug.Make[int32](w.device, len(w.records)); err != nil {
			return fmt.Errorf("accum: AddAll: %w", err)
		}
		w.found = remote.View()
	}
	err := w.walkAgain(grads, w.look, checked)
	if !w.device.IsCPU() {
		err = cmp.Or(err, remote.CopyOut(w.records), remote.Close())
	}
	if err != nil {
		return err
	}
	if first := w.firstRecord(); first != nil {
		w.dropped = true
		w.stats.LastDrop = *first
	}
	return nil
}

// lookOne queues the inspection of a gradient.
func (w *Window) lookOne(name string, g snug.View) bool {
	if !w.checkOne(name, g) {
		return false
	}
	job := inspectJob{g, w.found, int32(w.index[name]) + 1}
	if w.device.IsCPU() {
		job.Run()
		return true
	}
	queued := job
	if err := w.device.Launch(&queued); err != nil {
		w.walkErr = fmt.Errorf("accum: AddAll: gradient %q: %w", name, err)
	}
	return w.walkErr == nil
}

// firstRecord returns where the first non-finite value was, nil if there is
// none.
func (w *Window) firstRecord() *Location {
	var first *Location
	var param int32
	for i := range len(w.records) / recordLen {
		r := w.records[i*recordLen:][:recordLen]
		if r[0] == 0 || first != nil && r[0] >= param {
			continue
		}
		param = r[0]
		p := &w.params[param-1]
		first = &Location{p.Name, i*pieceSize(w.device, p.Len) + int(r[1]), math.Float32frombits(uint32(r[2]))}
	}
	return first
}

// inspectJob looks for non-finite values in the gradient of a parameter.
type inspectJob struct {
	g, records snug.View
	param      int32 // counted from 1
}

func (*inspectJob) Kernel() string { return "accum.inspect" }

func (j *inspectJob) Operands(yield func(*driver.Mem)) {
	yield(j.g.Mem())
	yield(j.records.Mem())
}

func (j *inspectJob) Run() {
	inspectTask.Run(cpu.Chunks(j.g.Len(), j.piece()), *j)
}

func (j *inspectJob) piece() int { return pieceSize(j.g.Device(), j.g.Len()) }

var inspectTask = cpu.NewTask(func(j *inspectJob, piece int) {
	record := snug.Host[int32](j.records)[piece*recordLen:][:recordLen]
	if record[0] != 0 && record[0] < j.param {
		return
	}
	start, hi := cpu.Chunk(j.g.Len(), j.piece(), piece)
	i := sweep.FirstNotBelow(j.g, start, hi, 1, sweep.Infinity)
	if i < 0 {
		return
	}
	var value [1]float32
	half.Load(value[:], j.g, i)
	record[0], record[1], record[2] = j.param, int32(i-start), int32(math.Float32bits(value[0]))
})
