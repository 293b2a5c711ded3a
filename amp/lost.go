package amp

import (
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/measure"
)

// LostUpdates counts updates that rounding has lost: the update of an element is the difference between the value
// that was computed in float32 and the value that was stored before. It is lost if the value that is stored after is
// the same as before.
//
// Updates counts updates that are finite and not 0, and Lost those of them that are lost. Squares is the sum of the
// squares of the updates and LostSquares of the lost ones. Stochastic says that values are rounded at
// random, so that none is lost on average, and Remedy what would keep them. Share returns Lost as a share of Updates, and
// NormShare the norm of the lost updates as a share of the norm of all, from 0 to 1. String says all of it.
type LostUpdates = measure.Lost

// lostPiece is how many elements are counted at a time, and on another device than the CPU.
const (
	lostPiece       = 1 << 12
	lostDevicePiece = 1 << 16
)

// lostMeter counts the updates that a Master loses.
type lostMeter struct {
	piece         int
	before, after snug.Array[float32] // stored values, on the device of the masters
	host          [3][]float32        // copies, if this is not the CPU
}

// countsLost reports whether updates are counted: with forms that round what a step has computed.
func (m *Master) countsLost() bool {
	return m.lost != nil && (m.form == Split24Master || m.form == NoMaster)
}

// LostUpdates returns the counts of each parameter, by ascending names, since the Master was made or
// ForgetLostUpdates was called, if MasterOptions.CountLost is set. It yields the parameters of Split24Master and NoMaster
// that were updated. The other forms store every bit of what a step has computed, and have no counts. What a step itself
// loses when it adds in float32 is not counted. Do not call methods of the Master meanwhile.
func (m *Master) LostUpdates() iter.Seq2[string, LostUpdates] {
	return func(yield func(string, LostUpdates) bool) {
		for _, name := range m.names() {
			if p := m.params[name]; p.lost.Updates > 0 && !yield(name, p.lost) {
				return
			}
		}
	}
}

// ForgetLostUpdates sets the counts to 0, such as before a step that is to be measured.
func (m *Master) ForgetLostUpdates() {
	for _, p := range m.params {
		p.lost = LostUpdates{}
	}
}

// prepare makes the memory for counting.
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

// inHost returns v, or a copy of it in host memory.
func (l *lostMeter) inHost(i int, v snug.View) ([]float32, error) {
	if v.Device().IsCPU() {
		return v.Float32s(), nil
	}
	host := l.host[i][:v.Len()]
	return host, snug.Copy(host, v)
}

// roundCounting is round that counts the updates it loses, piece by piece: what was stored before is still there.
func (m *Master) roundCounting(c masterChunk, param, w snug.View, u *update) error {
	for at := 0; at < c.n; at += m.lost.piece {
		if err := m.countPiece(c, param, w, u, at, min(at+m.lost.piece, c.n)); err != nil {
			return err
		}
	}
	return nil
}

// countPiece rounds elements lo to hi-1 of a chunk.
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

// remedy says what would keep the updates that a form loses.
func (m *Master) remedy() string {
	switch {
	case m.form == NoMaster:
		return "Split24Master with Stochastic, 1 byte an element, moves more of them at once; SplitMaster, 2 bytes, and FullMaster, 4, lose none"
	case m.random:
		return "SplitMaster, 2 bytes an element, loses none"
	}
	return "Stochastic, which keeps them on average, SplitMaster, 2 bytes an element, or a larger learning rate"
}
