package attention

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
)

// SendReceiver is one of several ranks that divide a sequence in [RingForward]. The ranks of
// accum.Local, of dist/mpi and of dist/nccl are SendReceivers. All ranks make the same calls in the same order,
// one at a time, and every call waits for the other ranks.
type SendReceiver interface {
	Rank() int // from 0
	Size() int // ranks
	// SendReceive sends src to rank to, and replaces dst by the src of rank from. These two have
	// one length and one type. The lengths of dst and src may differ. They do not overlap.
	SendReceive(dst snug.View, from int, src snug.View, to int) error
}

// AllToAller is one of several ranks that divide a sequence in [UlyssesForward]. The ranks of
// accum.Local, of dist/mpi and of dist/nccl are AllToAllers. The rules of a [SendReceiver] hold.
type AllToAller interface {
	Rank() int // from 0
	Size() int // ranks
	// AllToAll sends part i of src to rank i, where it becomes the part of dst with the number
	// of the sender. dst and src have one length, which Size divides, and do not overlap.
	AllToAll(dst, src snug.View) error
}

// group is what a call over ranks knows of them and of its tensors.
type group struct {
	rank, size int
	whole      Options // resolved, for all rows and heads, with contiguous tensors
	local      Options // the same for the rank's rows, with the caller's strides; not packed
	dtype      snug.DType
	dev        *snug.Device
}

// maxRanks is the most ranks of a group.
const maxRanks = 1 << 16

// newGroup returns the group of a rank, or an error if there is none.
func newGroup(ranks interface {
	Rank() int
	Size() int
}) (group, error) {
	if ranks == nil {
		return group{}, fmt.Errorf("attention: the ranks are nil: %w", snug.ErrConfig)
	}
	g := group{rank: ranks.Rank(), size: ranks.Size()}
	if g.size < 1 || g.size > maxRanks || g.rank < 0 || g.rank >= g.size {
		return group{}, fmt.Errorf("attention: rank %d of %d, want 1 to %d ranks, numbered from 0: %w", g.rank, g.size, maxRanks, snug.ErrConfig)
	}
	return g, nil
}

// resolveWhole resolves c for the whole sequence. It ignores strides and GradLSE, which are for the rank.
func (c Options) resolveWhole() (Options, error) {
	c.Q, c.K, c.V, c.Out, c.GradLSE = Strides{}, Strides{}, Strides{}, Strides{}, snug.View{}
	return c.resolve()
}

// setLocal makes g.local, the Options of the rank's queries and keys, from the caller's Options.
func (g *group) setLocal(c *Options, queries, keys int) error {
	l := g.whole
	if l.packed() {
		l.Batch, l.QStarts, l.KStarts = 1, nil, nil
	}
	l.KLens, l.SeqQ, l.SeqK = nil, queries, keys
	l.Q, l.K, l.V, l.Out, l.GradLSE = c.Q, c.K, c.V, c.Out, c.GradLSE
	for i, dst := range [...]*Strides{&l.Q, &l.K, &l.V, &l.Out} {
		var err error
		if *dst, err = l.operands()[i].resolve(); err != nil {
			return err
		}
	}
	switch v := l.GradLSE; {
	case v.Len() == 0:
	case v.DType() != snug.F32:
		return fmt.Errorf("attention: GradLSE holds %s, want f32: %w", v.DType(), snug.ErrDType)
	case v.Len() != l.queries():
		return fmt.Errorf("attention: GradLSE holds %d elements, want %d: %w", v.Len(), l.queries(), snug.ErrShape)
	}
	g.local = l
	return nil
}

// check checks the rank's operands and sets g.dtype and g.dev. tensors are q, k, v and out, and then the gradients
// dq, dk, dv and dout. ws must have the given regions. lse may be empty forward.
func (g *group) check(tensors []tensor, lse, ws snug.View, forward bool, at regions) error {
	like := g.local.operands()
	for i := range tensors {
		tensors[i].like = like[i%4]
	}
	vectors := []rowVector{{name: "ws", view: ws, more: true}, {name: "lse", view: lse, optional: forward}}
	if err := checkDTypes(tensors, vectors); err != nil {
		return err
	}
	if err := checkLengths(tensors, vectors[1:], g.local.queries()); err != nil {
		return err
	}
	if at.overflow {
		return fmt.Errorf("attention: a workspace of more elements than an int counts: %w", snug.ErrShape)
	}
	if ws.Len() < at.words {
		return fmt.Errorf("attention: ws holds %d elements, want %d: %w", ws.Len(), at.words, snug.ErrShape)
	}
	var err error
	g.dtype = tensors[0].view.DType()
	g.dev, err = commonDevice(&g.local, tensors, vectors)
	return err
}

// copyRows runs jobs on the rank's device.
func (g *group) copyRows(jobs ...rowsJob) error {
	for _, j := range jobs {
		if err := j.run(g.dev); err != nil {
			return err
		}
	}
	return nil
}

// region is a part of a workspace.
type region struct {
	at, words, n int // first word of float32, words and elements
	dtype        snug.DType
}

// regions hands out parts of a workspace, each from a multiple of 16 bytes on.
type regions struct {
	words    int
	overflow bool
}

// take returns a region of elements, as many as the product of dims.
func (r *regions) take(dt snug.DType, dims ...int) region {
	n, ok := 1, true
	for _, d := range dims {
		if n, ok = mulAdd(0, n, d); !ok {
			r.overflow = true
			return region{}
		}
	}
	words := n
	if dt.Size() == 2 {
		words = n/2 + n%2
	}
	const align = 4
	if words > unlimited-r.words-align {
		r.overflow = true
		return region{}
	}
	words = (words + align - 1) / align * align
	at := r.words
	r.words += words
	return region{at, words, n, dt}
}

// of returns the elements of r in a workspace.
func (r region) of(ws snug.View) snug.View {
	return slice(device.As(slice(ws, r.at, r.at+r.words), r.dtype), 0, r.n)
}

// slice returns elements lo to hi-1 of v, which has them.
func slice(v snug.View, lo, hi int) snug.View {
	v, err := v.Slice(lo, hi)
	if err != nil {
		panic(err) // the lengths were checked
	}
	return v
}

// after returns the elements of v from lo on, none if there are no rows.
func after(v snug.View, lo int) snug.View { return slice(v, min(lo, v.Len()), v.Len()) }

// transfer is communication that runs while the rank computes.
type transfer struct {
	done    chan struct{} // nil if none was begun
	err     error
	failure cpu.Failure
}

// begin runs f in a goroutine of its own.
func (t *transfer) begin(f func() error) {
	t.done = make(chan struct{})
	go func() {
		ended := false
		defer close(t.done)
		defer t.failure.Catch(&ended)
		t.err = f()
		ended = true
	}()
}

// wait waits for f and returns its error, or ends this goroutine as f ended the other one.
func (t *transfer) wait() error {
	if t.done == nil {
		return nil
	}
	t.join()
	t.done = nil
	t.failure.Raise()
	return t.err
}

// join waits for f and ignores how it ended. It is deferred, so that no error or panic leaves f running.
func (t *transfer) join() {
	if t.done != nil {
		<-t.done
	}
}

// equalStarts reports whether queries and keys are packed alike.
func (c *Options) equalStarts() bool { return slices.Equal(c.QStarts, c.KStarts) }
