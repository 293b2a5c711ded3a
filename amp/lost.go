package amp

import (
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/measure"
)

// LostUpdates counts the updates that rounding has lost. The update of an element is the difference between the value
// that a step computed in float32 and the value that was stored before the step. The update is lost if the stored value
// is the same after the step as before it.
//
// The field Updates counts the updates that are finite and not 0. The field Lost counts the lost updates among them.
// Squares is the sum of the squares of all counted updates; LostSquares is the sum of the squares of the lost updates.
// Stochastic says that values are rounded at random, so that no update is lost on average. Remedy says what would keep
// the lost updates.
//
// Share returns Lost/Updates. NormShare returns √(LostSquares/Squares), the norm of the lost updates as a share of the
// norm of all updates. Both are from 0 to 1. String returns both shares, the number of updates and, if any update is
// lost, the remedy.
type LostUpdates = measure.Lost

// Numbers of elements that are counted at a time.
const (
	lostPiece       = 1 << 12 // on the CPU
	lostDevicePiece = 1 << 16 // on another device
)

// lostMeter is the memory that a Master needs to count lost updates.
type lostMeter struct {
	piece         int                 // elements that are counted at a time
	before, after snug.Array[float32] // stored values, on the device of the masters
	host          [3][]float32        // copies in host memory, if the masters are on another device
}

// countsLost reports whether updates are counted. Only forms that round the result of a step can lose updates.
func (m *Master) countsLost() bool {
	return m.lost != nil && (m.form == Split24Master || m.form == NoMaster)
}

// LostUpdates yields the name and the counts of each parameter that was updated, in ascending order of names. The
// counts begin when the Master is made or ForgetLostUpdates is called.
//
// There are counts only if MasterOptions.CountLost is set and the form is Split24Master or NoMaster: the other forms
// store every bit of the float32 that a step has computed. An update that the step itself loses, as it adds in float32,
// is not counted. Do not call methods of the Master during the iteration.
func (m *Master) LostUpdates() iter.Seq2[string, LostUpdates] {
	return func(yield func(string, LostUpdates) bool) {
		for _, name := range m.names() {
			if p := m.params[name]; p.lost.Updates > 0 && !yield(name, p.lost) {
				return
			}
		}
	}
}

// ForgetLostUpdates sets the counts of all parameters to 0, for example before a step that is to be measured.
func (m *Master) ForgetLostUpdates() {
	for _, p := range m.params {
		p.lost = LostUpdates{}
	}
}

// prepare allocates the memory for counting, once.
func (l *lostMeter) prepare(dev *snug.Device) (err error) {
	if l.piece > 0 {
		return nil
	}
	piece := lostPiece
	if !dev.IsCPU() {
		piece = lostDevicePiece
		for i := range l.host {
			l.host[i] = make([]float32, piece)
		}
	}
	if l.before, err = snug.Make[float32](dev, piece); err != nil {
		return err
	}
	if l.after, err = snug.Make[float32](dev, piece); err != nil {
		return err
	}
	l.piece = piece
	return nil
}

// inHost returns v if it is in host memory, else a copy of it in host buffer i.
func (l *lostMeter) inHost(i int, v snug.View) ([]float32, error) {
	if v.Device().IsCPU() {
		return v.Float32s(), nil
	}
	host := l.host[i][:v.Len()]
	return host, snug.Copy(host, v)
}

// roundCounting rounds the weights w of a chunk as store does, and counts the updates that are lost. It works piece by
// piece: before a piece is stored, param and the kept data still hold its values from before the step.
func (m *Master) roundCounting(c masterChunk, param, w snug.View, u *update) error {
	for at := 0; at < c.n; at += m.lost.piece {
		if err := m.countPiece(c, param, w, u, at, min(at+m.lost.piece, c.n)); err != nil {
			return err
		}
	}
	return nil
}

// countPiece rounds elements lo to hi-1 of a chunk, and counts the updates that are lost.
func (m *Master) countPiece(c masterChunk, param, w snug.View, u *update, lo, hi int) (err error) {
	var stored [2]snug.View
	part := masterChunk{lo: c.lo + lo, n: hi - lo}
	if part.kept, err = m.form.part(c.kept, lo, hi); err != nil {
		return err
	}
	if param, err = param.Slice(lo, hi); err != nil {
		return err
	}
	if w, err = w.Slice(lo, hi); err != nil {
		return err
	}
	for i, a := range [2]snug.View{m.lost.before.View(), m.lost.after.View()} {
		if stored[i], err = a.Slice(0, part.n); err != nil {
			return err
		}
	}
	if err := m.join(stored[0], param, part.kept); err != nil {
		return err
	}
	if err := m.store(part, param, w, u); err != nil {
		return err
	}
	if err := m.join(stored[1], param, part.kept); err != nil {
		return err
	}
	var x [3][]float32
	for i, v := range [3]snug.View{stored[0], w, stored[1]} {
		if x[i], err = m.lost.inHost(i, v); err != nil {
			return err
		}
	}
	u.lost.Count(x[0], x[1], x[2])
	return nil
}

// remedy says what would keep the updates that the Master's form loses.
func (m *Master) remedy() string {
	switch {
	case m.form == NoMaster:
		return "Split24Master with Stochastic, 1 byte an element, moves more of them at once; SplitMaster, 2 bytes, and FullMaster, 4, lose none"
	case m.random:
		return "SplitMaster, 2 bytes an element, loses none"
	}
	return "Stochastic, which keeps them on average, SplitMaster, 2 bytes an element, or a larger learning rate"
}
