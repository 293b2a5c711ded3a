package driver

import (
	"errors"
	"fmt"
)

// Borrower is a Job that needs memory of its device while it runs, which the queue lends to it. It does not join other
// jobs.
type Borrower interface {
	Job
	// Borrows returns the bytes that the job needs on d, or 0.
	Borrows(d Driver) int
	// Borrow gives the job that memory, of any contents. In a captured graph, which cannot borrow, a job gets none,
	// whatever it needs, and computes without.
	Borrow(m Mem)
}

// launchBorrower is Launch for a job that may borrow.
func (q *Queue) launchBorrower(b Borrower) error {
	n := b.Borrows(q.Driver)
	if n == 0 {
		return q.launch(b)
	}
	m, err := q.Lend(n)
	if err != nil {
		return fmt.Errorf("snug: %d bytes on %s for kernel %s: %w", n, q.Name, b.Kernel(), err)
	}
	b.Borrow(m)
	return errors.Join(q.launch(b), q.Return(m))
}
