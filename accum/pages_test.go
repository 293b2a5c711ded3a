package accum

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// onPages runs a function on each rank with a Pages over the Reducer that below returns, and closes the Pages. It returns the
// ranks' errors. below may be nil.
func onPages(t require.TestingT, size int, o PagesOptions, below func(rank int, r Reducer) Reducer, do func(rank int, p *Pages) error) []error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the test hangs"))
	defer cancel()
	reducers, err := Local(ctx, size)
	require.NoError(t, err)
	errs := make([]error, size)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		if below != nil {
			r = below(rank, r)
		}
		p, err := NewPages(r, o)
		require.NoError(t, err)
		wait.Go(func() {
			errs[rank] = do(rank, p)
			closed := p.Close()
			if errs[rank] == nil {
				errs[rank] = closed
			}
			if p.Bytes() != 0 {
				errs[rank] = errors.Join(errs[rank], errors.New("a closed Pages holds bytes"))
			}
		})
	}
	wait.Wait()
	return errs
}

// content returns what the tests write to a page.
func content(key string, size, version int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(hash(uint64(i+1000*version), key))
	}
	return b
}

// write writes a version of a page.
func write(p *Pages, key string, size, version int) error {
	b, err := p.Acquire(key, size)
	if err != nil {
		return err
	}
	copy(b, content(key, size, version))
	return p.Release(key, true)
}

// read acquires a page, compares it, and releases it.
func read(p *Pages, key string, size, version int) error {
	b, err := p.Acquire(key, size)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, content(key, size, version)) {
		return fmt.Errorf("page %q has other bytes", key)
	}
	return p.Release(key, false)
}

// TestPages runs random calls on 1 to 5 ranks: pages have the bytes that were written, at aligned addresses, sums between
// them are right, and a rank holds its parts, the pages in use and what Held says. All ranks guess the same.
func TestPages(t *testing.T) { rapid.Check(t, pagesProperty) }

func FuzzPages(f *testing.F) { f.Fuzz(rapid.MakeFuzz(pagesProperty)) }

type pagesCall struct {
	what string
	key  int
}

func pagesProperty(t *rapid.T) {
	ranks := rapid.IntRange(1, 5).Draw(t, "ranks")
	sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 2, 3, 64, 1000, 1024, 2500, 4099}), 1, 6).Draw(t, "sizes")
	held := rapid.SampledFrom([]int64{0, 1, 70, 1024, 5000, 1 << 20}).Draw(t, "held")
	calls := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pagesCall {
		return pagesCall{rapid.SampledFrom([]string{"acquire", "acquire", "acquire", "release", "release", "release", "write", "update", "sum"}).Draw(t, "what"),
			rapid.IntRange(0, len(sizes)-1).Draw(t, "key")}
	}), 1, 60).Draw(t, "calls")
	guesses := make([][]string, ranks)
	errs := onPages(t, ranks, PagesOptions{Held: held}, nil, func(rank int, p *Pages) error {
		users, dirty, versions := make([]int, len(sizes)), make([]bool, len(sizes)), make([]int, len(sizes))
		blobs := make([][]byte, len(sizes))
		most, largest, over := int64(0), int64(0), int64(0) // over: memory of the pages above Held
		check := func() error {
			parts, inUse := int64(0), int64(0)
			for i, n := range sizes {
				lo, hi := p.partOf(n, rank)
				if versions[i] > 0 {
					parts += int64(hi - lo)
				}
				if users[i] > 0 && (ranks > 1 || versions[i] == 0) {
					inUse += int64(n)
				}
			}
			n := int64(0)
			for i, size := range sizes {
				if users[i] > 0 && held > 0 && int64(size) > held {
					n++
				}
			}
			most, over = max(most, p.bytes.inUse), max(over, n*largest)
			room := held
			if held == 0 {
				room = 2 * largest
			}
			if got := p.Bytes(); got < parts+inUse || got > parts+most+room+over || p.Peak() < got || p.bytes.kept > room || p.bytes.inUse+p.bytes.large < inUse || p.bytes.inUse > int64(len(sizes))*largest {
				return fmt.Errorf("%d bytes held, %d of them kept; parts have %d, pages in use %d, at most %d, Held is %d", got, p.bytes.kept, parts, inUse, most, room)
			}
			return nil
		}
		for _, c := range calls {
			key, size := fmt.Sprint("page ", c.key), sizes[c.key]
			want := make([]byte, size)
			if versions[c.key] > 0 {
				want = content(key, size, versions[c.key])
			}
			switch {
			case c.what == "sum":
				x := []float64{float64(rank)}
				if err := p.Sum(x); err != nil || x[0] != float64(ranks*(ranks-1)/2) {
					return fmt.Errorf("sum %v, %w", x, err)
				}
			case c.what == "acquire":
				b, err := p.Acquire(key, size)
				if err != nil {
					return err
				}
				if users[c.key]++; users[c.key] == 1 {
					blobs[c.key], dirty[c.key] = b, false
				}
				largest = max(largest, int64(size))
				if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%4 != 0 {
					return errors.New("the page is not aligned")
				}
				if !dirty[c.key] && !bytes.Equal(b, want) {
					return fmt.Errorf("%s has other bytes than version %d", key, versions[c.key])
				}
			case c.what == "update":
				refused := users[c.key] > 0 || versions[c.key] == 0
				err := p.Update(key, func(lo int, part []byte) error {
					copy(part, content(key, size, versions[c.key]+1)[lo:])
					return nil
				})
				switch {
				case refused != errors.Is(err, snug.ErrConfig):
					return fmt.Errorf("update of %s with %d users and version %d: %w", key, users[c.key], versions[c.key], err)
				case !refused:
					versions[c.key]++
				}
				if lo, part, err := p.Part(key); !refused && (err != nil || !bytes.Equal(part, content(key, size, versions[c.key])[lo:lo+len(part)])) {
					return fmt.Errorf("the part of %s: %w", key, err)
				}
			case users[c.key] == 0:
				continue
			case c.what == "write":
				copy(blobs[c.key], content(key, size, versions[c.key]+1))
				dirty[c.key] = true
				continue
			default:
				if err := p.Release(key, dirty[c.key]); err != nil {
					return err
				}
				if users[c.key]--; users[c.key] == 0 && dirty[c.key] {
					versions[c.key]++
				}
			}
			if err := check(); err != nil {
				return err
			}
			if p.guess != nil {
				guesses[rank] = append(guesses[rank], p.guess.key)
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
	for _, g := range guesses {
		require.Equal(t, guesses[0], g)
	}
}

// TestPagesAhead: from the third round on, when both turns are known, each page of a forward and a backward pass is on its way before it is acquired,
// and a rank holds the parts, a page in use and the next one.
func TestPagesAhead(t *testing.T) {
	const size, rounds = 1001, 3
	keys := []string{"a", "b", "c", "d"}
	pass := slices.Concat(keys, []string{"d", "c", "b", "a"})
	for _, c := range []struct {
		held  int64
		ahead bool
		extra int64 // whole pages at most, besides the one in use
	}{{0, true, 2}, {1000, false, 0}, {1001, true, 1}, {4 * 1001, true, 4}} {
		for ranks := 2; ranks <= 4; ranks++ {
			require.NoError(t, errors.Join(onPages(t, ranks, PagesOptions{Held: c.held}, nil, func(rank int, p *Pages) error {
				parts := int64(0)
				for _, key := range keys {
					if err := write(p, key, size, 0); err != nil {
						return err
					}
					lo, hi := p.partOf(size, rank)
					parts += int64(hi - lo)
				}
				for round := range rounds {
					for i, key := range pass {
						before := p.index[key].whole != nil
						if c.ahead && round > 1 && !before || !c.ahead && before {
							return fmt.Errorf("round %d, page %d: ahead %t", round, i, before)
						}
						if err := read(p, key, size, 0); err != nil {
							return err
						}
					}
				}
				if got, want := p.Peak(), parts+(1+c.extra)*size; got > want || c.held > 0 && c.held < 2*size && got < want {
					return fmt.Errorf("the peak is %d, want %d", got, want)
				}
				return nil
			})...))
		}
	}
}

// stopping is a Reducer whose AllGather waits for a signal at a call.
type stopping struct {
	Reducer
	calls, at int
	opens     chan struct{}
}

func (s *stopping) AllGather(v snug.View) error {
	if s.calls++; s.calls == s.at {
		<-s.opens
	}
	return s.Reducer.AllGather(v)
}

// TestPagesOverlap: a page is gathered while the caller has the one before, and calls of the caller come after it.
func TestPagesOverlap(t *testing.T) {
	goes := []chan struct{}{make(chan struct{}), make(chan struct{})}
	below := func(rank int, r Reducer) Reducer { return &stopping{r, 0, 5 + 1, goes[rank]} }
	require.NoError(t, errors.Join(onPages(t, 2, PagesOptions{Held: 100}, below, func(rank int, p *Pages) error {
		for _, key := range []string{"a", "b", "c"} {
			if err := write(p, key, 100, 0); err != nil {
				return err
			}
		}
		for _, key := range []string{"a", "b", "c", "a"} { // a, b and c; after the second a and b comes c
			if err := read(p, key, 100, 0); err != nil {
				return err
			}
		}
		b, err := p.Acquire("b", 100)
		if err != nil {
			return err
		}
		ahead := p.index["c"].job
		select {
		case <-ahead.done:
			return errors.New("the page is there")
		default:
		}
		if !bytes.Equal(b, content("b", 100, 0)) {
			return errors.New("b has other bytes")
		}
		close(goes[rank])
		if err := p.Sum([]float64{1}); err != nil {
			return err
		}
		select {
		case <-ahead.done:
		default:
			return errors.New("the sum came first")
		}
		return read(p, "c", 100, 0)
	})...))
}

// TestPagesPass: calls that a Pages passes on do what the Reducer does.
func TestPagesPass(t *testing.T) {
	require.NoError(t, errors.Join(onPages(t, 3, PagesOptions{}, nil, func(rank int, p *Pages) error {
		x := []float32{float32(rank), 1, 2}
		if err := p.AllReduce(snug.ViewOf(x)); err != nil || !slices.Equal(x, []float32{3, 3, 6}) {
			return fmt.Errorf("AllReduce: %v, %w", x, err)
		}
		if err := p.ReduceScatter(snug.ViewOf(x)); err != nil || x[rank] != []float32{9, 9, 18}[rank] {
			return fmt.Errorf("ReduceScatter: %v, %w", x, err)
		}
		if err := p.AllGather(snug.ViewOf(x)); err != nil || !slices.Equal(x, []float32{9, 9, 18}) {
			return fmt.Errorf("AllGather: %v, %w", x, err)
		}
		b, got := []uint8{uint8(rank), uint8(rank), uint8(rank)}, make([]uint8, 3)
		if err := p.AllToAll(snug.SliceView(got), snug.SliceView(b)); err != nil || !slices.Equal(got, []uint8{0, 1, 2}) {
			return fmt.Errorf("AllToAll: %v, %w", got, err)
		}
		if err := p.SendReceive(snug.SliceView(got), (rank+2)%3, snug.SliceView(b), (rank+1)%3); err != nil || got[0] != uint8((rank+2)%3) {
			return fmt.Errorf("SendReceive: %v, %w", got, err)
		}
		if err := p.Broadcast(2, snug.SliceView(b)); err != nil || b[1] != 2 || p.Rank() != rank || p.Size() != 3 {
			return fmt.Errorf("Broadcast: %v, %w", b, err)
		}
		return nil
	})...))
}
