package offload

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tape is an order over n pages; as many as resident are in memory.
type tape struct {
	order
	pages    []page
	resident int
}

func newTape(n, resident int) *tape {
	tp := &tape{order: newOrder(true), pages: make([]page, n), resident: resident}
	for i := range tp.pages {
		tp.pages[i] = page{num: i, last: -1}
	}
	tp.grow(n)
	return tp
}

// play records accesses and assigns keys as the store does.
func (tp *tape) play(accesses ...int) {
	for _, i := range accesses {
		if tp.record(&tp.pages[i], tp.resident) {
			for j := range tp.pages {
				tp.pages[j].key = tp.defaultKey(&tp.pages[j])
			}
			tp.assignKeys()
		}
	}
}

// next returns the predicted accesses.
func (tp *tape) next(n int) (pages []int) {
	for i := range n {
		if p := tp.ahead(i); p != nil {
			pages = append(pages, p.num)
		}
	}
	return pages
}

func TestOrderOfACycle(t *testing.T) {
	tp := newTape(5, 2)
	tp.play(0, 1, 2, 3, 4)
	require.Empty(t, tp.next(3), "nothing has repeated")
	require.Equal(t, int64(-3), tp.pages[3].key, "the time of its last use")
	tp.play(0)
	require.Empty(t, tp.next(3), "one access is no match")
	tp.play(1)
	require.Equal(t, []int{2, 3, 4, 0, 1}, tp.next(9))
	tp.play(2, 2, 2) // as one
	require.Equal(t, []int{3, 4, 0}, tp.next(3))
	now := tp.now
	for i, want := range []int64{2, 3, 4, 0, 1} {
		require.Equal(t, now+want, tp.pages[i].key, i)
	}
}

// TestOrderForwardBackward is the order of weights in a training step, each
// page twice.
func TestOrderForwardBackward(t *testing.T) {
	tp := newTape(4, 2)
	step := []int{0, 1, 2, 3, 2, 1}
	tp.play(step...)
	tp.play(step...)
	tp.play(0, 1)
	require.Equal(t, []int{2, 3, 2, 1, 0, 1}, tp.next(6))
	require.Equal(t, tp.now+4, tp.pages[0].key)
	require.Equal(t, tp.now+3, tp.pages[1].key)
	require.Equal(t, tp.now, tp.pages[2].key)
	require.Equal(t, tp.now+1, tp.pages[3].key)
	tp.play(2)
	require.Equal(t, tp.now+1, tp.pages[2].key, "its second use in the step")
	tp.play(3, 2)
	require.Equal(t, tp.now+3, tp.pages[2].key, "its first use in the next step")
}

func TestOrderAfterADisturbance(t *testing.T) {
	tp := newTape(6, 2)
	tp.play(0, 1, 2, 3, 4, 0, 1)
	require.NotEmpty(t, tp.next(1))
	tp.play(5) // a page read for a report
	require.Empty(t, tp.next(1))
	for i := range tp.pages {
		require.Equal(t, -tp.pages[i].last, tp.pages[i].key)
	}
	tp.play(2, 3)
	require.Equal(t, []int{4, 0, 1}, tp.next(3))
	tp.play(4, 0, 1, 2, 3, 4, 0, 1, 2)
	require.Equal(t, []int{3, 4, 0}, tp.next(3))
}

func TestOrderOfACycleThatFits(t *testing.T) {
	tp := newTape(5, 5)
	tp.play(0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1)
	require.Empty(t, tp.next(1))
}

// TestOrderKeys compares keys and predictions with a search through the whole
// history: while a period is known, a page's key is the time of its first use
// when the last period repeats.
func TestOrderKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "pages")
		tp := newTape(n, rapid.IntRange(0, n).Draw(t, "resident"))
		cycle := rapid.SliceOfN(rapid.IntRange(0, n-1), 1, 20).Draw(t, "cycle")
		var history []int
		for range rapid.IntRange(0, 200).Draw(t, "length") {
			i := cycle[len(history)%len(cycle)]
			if rapid.IntRange(0, 30).Draw(t, "stray") == 0 {
				i = rapid.IntRange(0, n-1).Draw(t, "page")
			}
			tp.play(i)
			if len(history) == 0 || history[len(history)-1] != i {
				history = append(history, i)
			}
			require.EqualValues(t, len(history), tp.now)
			period := int(tp.period)
			if period == 0 {
				for j := range tp.pages {
					if tp.pages[j].last >= 0 {
						require.Equal(t, -tp.pages[j].last, tp.pages[j].key)
					}
				}
				continue
			}
			future := history[len(history)-period:]
			require.Equal(t, future, tp.next(period+3))
			for j := range tp.pages {
				for k, f := range future {
					if f == j {
						require.EqualValues(t, len(history)+k, tp.pages[j].key)
						break
					}
				}
			}
		}
	})
}

func TestOrderGrows(t *testing.T) {
	tp := newTape(3, 0)
	tp.play(0, 1, 2, 0, 1)
	want := tp.next(3)
	tp.grow(1000)
	require.GreaterOrEqual(t, len(tp.ring), 8000)
	require.Equal(t, want, tp.next(3))
	for range 40 {
		tp.play(2, 0, 1)
	}
	require.Equal(t, want, tp.next(3))
}
