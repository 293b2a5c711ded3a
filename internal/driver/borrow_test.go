package driver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// borrower is a job that borrows.
type borrower struct {
	needs int
	d     *device
	room  Mem
	ran   []Mem
}

func (b *borrower) Kernel() string        { return "test.borrower" }
func (b *borrower) Operands(f func(*Mem)) { f(&b.room) }
func (b *borrower) Run()                  { b.ran = append(b.ran, b.room) }
func (b *borrower) Borrows(d Driver) int  { b.d, _ = d.(*device); return b.needs }
func (b *borrower) Borrow(m Mem)          { b.room = m }
func (b *borrower) borrowed() (bytes []int) {
	for _, m := range b.ran {
		bytes = append(bytes, m.Size)
	}
	return bytes
}

// A job has the memory that it asks for while it is queued, and the next job of its kind has the same. One that asks
// for none, and one in a captured graph, has none.
func TestBorrow(t *testing.T) {
	d := &device{arena: make([]byte, 256), live: map[uintptr]int{}}
	q := &Queue{Name: "test:0", Driver: d}
	job := func(needs int) *borrower {
		b := &borrower{needs: needs}
		require.NoError(t, q.Launch(b))
		return b
	}
	a, b := job(64), job(64)
	require.Same(t, d, a.d)
	require.Equal(t, []int{64}, a.borrowed())
	require.Equal(t, a.ran, b.ran, "lent again")
	require.Equal(t, int64(1), q.Counts().Allocs)
	require.Equal(t, []int{0}, job(0).borrowed())
	q.Capturing.Store(true)
	require.Equal(t, []int{0}, job(64).borrowed())
	q.Capturing.Store(false)
	q.Hold()
	require.Equal(t, []int{64}, job(64).borrowed(), "while others join")
	require.NoError(t, q.Release())
	require.Equal(t, int64(1), q.Counts().Allocs)

	host := &borrower{needs: 64}
	require.NoError(t, (&Queue{Name: "cpu", CPU: true}).Launch(host))
	require.Equal(t, []int{0}, host.borrowed())
}

// Whichever call of the driver fails, the error says so, the job runs with its memory or not at all, and what was lent
// comes back.
func TestBorrowFails(t *testing.T) {
	for failAt := 1; ; failAt++ {
		d := &device{arena: make([]byte, 256), live: map[uintptr]int{}, failAt: failAt}
		q := &Queue{Name: "test:0", Driver: d}
		b := &borrower{needs: 64}
		err := q.Launch(b)
		q.kept.mu.Lock()
		require.Equal(t, len(d.live), len(q.kept.blocks), "all that was allocated was returned")
		q.kept.mu.Unlock()
		if d.made < failAt {
			require.NoError(t, err)
			require.Equal(t, 3, failAt, "an allocation and a launch")
			break
		}
		require.ErrorIs(t, err, errCall)
		require.Empty(t, b.ran)
		if failAt == 1 {
			require.ErrorContains(t, err, "snug: 64 bytes on test:0 for kernel test.borrower: ")
		}
	}
	q := &Queue{Name: "test:0", Driver: &device{live: map[uintptr]int{}}}
	err := q.Launch(&borrower{needs: 64})
	require.True(t, errors.Is(err, ErrNoMemory), err)
}
