package ranks

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// end is a vector that is sent or received in pieces. Its pieces lie in it, or pass through half a stage.
type end struct {
	e      *Engine
	v      snug.View
	direct bool
	stage  driver.Mem
}

// newEnd returns an end that has a half of the stage, number 0 or 1, unless the vector is direct.
func (e *Engine) newEnd(v snug.View, half int) (end, error) {
	x := end{e: e, v: v, direct: v.Len() == 0 || e.t.Direct(v)}
	if x.direct {
		return x, nil
	}
	stage, err := e.StageFor(StageVector)
	x.stage = stage.Slice(half*e.piece(), e.piece())
	return x, err
}

// piece is the bytes of a piece. All ranks cut alike, wherever their vectors lie.
func (e *Engine) piece() int { return e.Staged / 2 &^ 15 }

// pieces returns the number of pieces.
func (x *end) pieces() int { return (x.v.Bytes() + x.e.piece() - 1) / x.e.piece() }

// part returns the memory of piece i: none for a piece that x does not have.
func (x *end) part(i int) driver.Mem {
	lo := min(i*x.e.piece(), x.v.Bytes())
	n := min(x.e.piece(), x.v.Bytes()-lo)
	if !x.direct {
		return x.stage.Slice(0, n)
	}
	return device.Mem(&x.v).Slice(lo, n)
}

// load copies piece i to the stage, unless the vector is direct; store copies it back.
func (x *end) load(i int) error  { return x.copy(i, true) }
func (x *end) store(i int) error { return x.copy(i, false) }

func (x *end) copy(i int, in bool) error {
	if x.direct || i >= x.pieces() {
		return nil
	}
	each := x.e.piece() / x.v.DType().Size()
	there, err := x.v.Slice(i*each, min((i+1)*each, x.v.Len()))
	if err != nil {
		return err
	}
	here := x.e.t.View(x.part(i), x.v.DType(), there.Len())
	if in {
		return snug.Copy(here, there)
	}
	return snug.Copy(there, here)
}

// exchange sends one vector and receives another.
func (e *Engine) exchange(dst snug.View, from int, src snug.View, to int) error {
	in, err := e.newEnd(dst, 0)
	if err != nil {
		return err
	}
	out, err := e.newEnd(src, 1)
	if err != nil {
		return err
	}
	for i := range max(in.pieces(), out.pieces()) {
		if err := out.load(i); err != nil {
			return err
		}
		e.list = append(e.list[:0], Transfer{in.part(i), from, false}, Transfer{out.part(i), to, true})
		if err := e.t.Move(e.list, Parts); err != nil {
			return err
		}
		switch {
		case !in.direct:
			if err := e.t.Wait(); err != nil {
				return err
			}
		case !out.direct:
			if err := e.t.Settle(); err != nil {
				return err
			}
		}
		if err := in.store(i); err != nil {
			return err
		}
	}
	return e.t.Wait()
}

// sendReceive sends src to one rank, and replaces dst by what another sends.
func (e *Engine) sendReceive(dst snug.View, from int, src snug.View, to int) error {
	if to == e.Rank { // and so is from
		return e.copySelf(dst, src)
	}
	return e.exchange(dst, from, src, to)
}

// copySelf copies src to dst.
func (e *Engine) copySelf(dst, src snug.View) error {
	if err := e.t.Wait(); err != nil { // here, since Copy to a slice waits for a queue whatever happens
		return err
	}
	if err := snug.Copy(e.here(dst), e.here(src)); err != nil {
		return err
	}
	return e.t.Wait()
}

// allToAll sends each rank its part of src: in step i to the rank i places on, so that no two send to one.
func (e *Engine) allToAll(dst, src snug.View) error {
	n := src.Len() / e.Size
	for i := range e.Size {
		to, from := (e.Rank+i)%e.Size, (e.Rank-i+e.Size)%e.Size
		sent, err := src.Slice(to*n, (to+1)*n)
		if err != nil {
			return err
		}
		received, err := dst.Slice(from*n, (from+1)*n)
		if err != nil {
			return err
		}
		if err := e.sendReceive(received, from, sent, to); err != nil {
			return err
		}
	}
	return nil
}

// broadcast replaces v by that of one rank.
func (e *Engine) broadcast(v snug.View, root int) error {
	x, err := e.newEnd(v, 0)
	if err != nil {
		return err
	}
	for i := range x.pieces() {
		if err := e.spread(&x, i, root); err != nil {
			return err
		}
	}
	return e.t.Wait()
}

// spread copies a piece of one rank to all.
func (e *Engine) spread(x *end, i, root int) error {
	if e.Rank == root {
		if err := x.load(i); err != nil {
			return err
		}
	}
	if err := e.t.Spread(x.part(i), root); err != nil {
		return err
	}
	if x.direct || e.Rank == root {
		return e.t.Settle()
	}
	if err := e.t.Wait(); err != nil {
		return err
	}
	return x.store(i)
}
