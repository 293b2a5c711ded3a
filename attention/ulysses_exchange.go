package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// column is a tensor of the caller that is exchanged, and where its heads are in a record.
type column struct {
	v          snug.View
	st         Strides
	keys       bool // of key heads
	dim, first int  // elements of a head, first element in the record
}

// toHeads fills records with all rows of this rank's heads of the columns.
func (u *ulysses) toHeads(records snug.View, record, rows int, columns ...column) error {
	for b := range u.local.batches() {
		n := u.size * rows * record
		sent := slice(u.staged, 0, n)
		for rank := range u.size {
			for _, c := range columns {
				j := u.rowsOf(c, b, rank, rows, record)
				j.dst, j.src, j.to, j.from = after(sent, rank*rows*record+c.first), j.dst, j.from, j.to
				if err := u.copyRows(j); err != nil {
					return err
				}
			}
		}
		if err := u.exchange(slice(records, b*n, (b+1)*n), sent); err != nil {
			return err
		}
	}
	return nil
}

// toRows fills the first used rows of the columns from records of all rows. It adds where several ranks have a key
// head.
func (u *ulysses) toRows(records snug.View, record, rows, used int, columns ...column) error {
	for b := range u.local.batches() {
		n := u.size * rows * record
		got := slice(u.staged, 0, n)
		if err := u.exchange(got, slice(records, b*n, (b+1)*n)); err != nil {
			return err
		}
		for rank := range u.size {
			for _, c := range columns {
				j := u.rowsOf(c, b, rank, used, record)
				j.src, j.add = after(got, rank*rows*record+c.first), c.keys && rank%u.replicas != 0
				if err := u.copyRows(j); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rowsOf returns the copy from a rank's record to a column of the caller, of one batch element.
func (u *ulysses) rowsOf(c column, b, rank, rows, record int) rowsJob {
	heads, head := u.heads, u.firstHead(rank)
	if c.keys {
		heads, head = u.keyHeads, u.firstKeyHead(rank)
	}
	return rowsJob{
		dst: after(c.v, b*c.st.Batch+head*c.st.Head), to: c.st, from: Strides{Head: c.dim, Row: record},
		batch: 1, heads: heads, n: rows, dim: c.dim,
	}
}

// numbersToHeads fills a vector like lse for all rows of this rank's heads from one for this rank's rows of all heads.
func (u *ulysses) numbersToHeads(all, own snug.View) error {
	for rank := range u.size {
		if err := u.copyRows(u.numbersOf(all, own, rank, u.rowsQ)); err != nil {
			return err
		}
	}
	if err := u.exchange(u.turned, all); err != nil {
		return err
	}
	return u.copyRows(u.turn(all, u.turned))
}

// numbersToRows does the opposite.
func (u *ulysses) numbersToRows(own, all snug.View) error {
	j := u.turn(all, u.turned)
	j.dst, j.src, j.to, j.from = j.src, j.dst, j.from, j.to
	if err := u.copyRows(j); err != nil {
		return err
	}
	if err := u.exchange(all, u.turned); err != nil {
		return err
	}
	for rank := range u.size {
		j := u.numbersOf(all, own, rank, u.usedQ)
		j.dst, j.src, j.to, j.from = j.src, j.dst, j.from, j.to
		if err := u.copyRows(j); err != nil {
			return err
		}
	}
	return nil
}

// numbersOf returns the copy of a rank's heads from this rank's rows to the order of an exchange, which is [Size,
// batch, heads, rows].
func (u *ulysses) numbersOf(all, own snug.View, rank, used int) rowsJob {
	n, batch := u.rowsQ, u.local.batches()
	return rowsJob{
		dst: after(all, rank*batch*u.heads*n), src: after(own, u.firstHead(rank)*n),
		to: headMajor(u.heads, n, 1), from: headMajor(u.whole.Heads, n, 1),
		batch: batch, heads: u.heads, n: min(1, used), dim: used,
	}
}

// turn returns the copy from the order of an exchange to the order of lse.
func (u *ulysses) turn(all, turned snug.View) rowsJob {
	n := u.rowsQ
	return rowsJob{
		dst: all, src: turned, to: Strides{Batch: u.numbers.Batch, Head: u.numbers.Head, Row: n},
		from:  Strides{Batch: u.heads * n, Head: n, Row: u.local.batches() * u.heads * n},
		batch: u.local.batches(), heads: u.heads, n: u.size, dim: n,
	}
}

func (u *ulysses) exchange(dst, src snug.View) error {
	return fault.Of(u.ranks.AllToAll(dst, src), "attention: rows for heads")
}
