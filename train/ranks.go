package train

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
)

// follows reports whether another rank writes the checkpoints.
func (o *Options) follows() bool { return o.Reducer != nil && o.Reducer.Rank() > 0 }

// ranks are the processes that make a step together. A process alone is the only rank of accum.Local.
type ranks struct {
	accum.Reducer
	many  bool      // a Reducer was given
	flags []float64 // one for each rank
	sums  []float64 // loss, targets and weight over all ranks, and the rate of each
}

func newRanks(r accum.Reducer) (ranks, error) {
	many := r != nil
	if !many {
		alone, err := accum.Local(context.Background(), 1)
		if err != nil {
			return ranks{}, err
		}
		r = alone[0]
	}
	return ranks{r, many, make([]float64, r.Size()), make([]float64, 3+r.Size())}, nil
}

// each returns a number of each rank. They are valid until the next call.
func (r *ranks) each(own float64) ([]float64, error) {
	clear(r.flags)
	r.flags[r.Rank()] = own
	return r.flags, r.Sum(r.flags)
}

// errRank0 is the error of the other ranks where rank 0 has failed.
var errRank0 = errors.New("rank 0 has failed, and says why")

// agree returns an error on all ranks if one of them has one.
func (r *ranks) agree(err error) error {
	own := 0.0
	if err != nil {
		own = 1
	}
	all, sumErr := r.each(own)
	if err = cmp.Or(err, sumErr); err != nil || all[0] > 0 {
		return cmp.Or(err, errRank0)
	}
	for rank, failed := range all {
		if failed > 0 {
			return fmt.Errorf("rank %d has failed, and says why", rank)
		}
	}
	return nil
}

var errNoBroadcaster = fmt.Errorf("checkpoints want a Reducer that is an accum.Broadcaster: %w", snug.ErrConfig)

// begin gives master weights their first values, or restores the newest checkpoint: rank 0 reads it, and sends the others
// what it reads.
func (t *Trainer[B]) begin() (err error) {
	state := make([]float64, 4) // whether there is a checkpoint, its step, whether the next one has begun, bytes of notes
	all, ok := t.ranks.Reducer.(accum.Broadcaster)
	if !ok && t.checkpoints != nil {
		err = errNoBroadcaster
	} else if t.checkpoints.resumes() {
		step, _, _ := t.checkpoints.Newest()
		if state[0], state[1] = 1, float64(step); t.checkpoints.about.Begun {
			state[2] = 1
		}
		state[3] = float64(len(t.received))
		err = t.fits()
	}
	if sumErr := t.ranks.Sum(state); sumErr != nil {
		return sumErr
	}
	resumes, step, begun := state[0] > 0, int(state[1]), state[2] > 0
	if err := t.ranks.agree(err); err != nil {
		return t.ofCheckpoint(err)
	}
	if !resumes {
		if err := t.gradients.begin(); err != nil {
			return err
		}
		return t.gradients.gather() // Fill may have changed parameters
	}
	if !ok {
		return errNoBroadcaster // on all ranks, as rank 0 is one
	}
	if t.options.follows() {
		t.received = make([]byte, int(state[3]))
	}
	if err := all.Broadcast(0, snug.SliceView([]byte(t.received))); err != nil {
		return err
	}
	for _, p := range t.parts() {
		if err := t.receive(p, all); err != nil {
			return t.ofCheckpoint(err)
		}
	}
	t.step, t.saved, t.begun = step, step, begun
	return t.gradients.gather()
}

// ofCheckpoint names the checkpoint in an error, on the rank that reads it.
func (t *Trainer[B]) ofCheckpoint(err error) error {
	if t.checkpoints.resumes() {
		return fmt.Errorf("the checkpoint %s: %w", t.checkpoints.folder.Newest().Path(), err)
	}
	return fmt.Errorf("the newest checkpoint: %w", err)
}

// receive restores a part of a checkpoint on all ranks. All read the same bytes by the same calls.
func (t *Trainer[B]) receive(p savedPart, all accum.Broadcaster) error {
	s := &stream{all: all, buffer: make([]byte, streamBytes)}
	if t.options.follows() {
		return t.ranks.agree(p.read(s))
	}
	err := t.checkpoints.folder.Newest().Read(p.name, func(r io.Reader) error {
		s.from = r
		return p.read(s)
	})
	if err != nil && s.from == nil { // the others wait for the first piece
		s.from = failing{err}
		_, _ = s.Read(s.buffer[:0])
	}
	return t.ranks.agree(err)
}

const streamBytes = 1 << 20

// What rank 0 sends before a piece of a stream is its number of bytes, or one of these.
const (
	ended  = -1 - iota // the reader has ended
	broken             // the reader has failed
)

// stream is a reader on rank 0 that sends what it reads to the other ranks, and there a reader of what is sent.
type stream struct {
	all    accum.Broadcaster
	from   io.Reader // nil on the other ranks
	buffer []byte
	header [4]byte
	left   []byte // of the buffer
	err    error  // after these
}

func (s *stream) Read(b []byte) (int, error) {
	if len(s.left) == 0 && s.err == nil {
		s.err = s.next()
	}
	n := copy(b, s.left)
	if s.left = s.left[n:]; n == 0 && len(b) > 0 {
		return 0, s.err
	}
	return n, nil
}

// next reads a piece on rank 0, and sends it to all.
func (s *stream) next() (err error) {
	if s.from != nil {
		var n int
		switch n, err = io.ReadFull(s.from, s.buffer); {
		case err == nil || n > 0 && errors.Is(err, io.ErrUnexpectedEOF):
		case errors.Is(err, io.EOF):
			n = ended
		default:
			n = broken
		}
		binary.LittleEndian.PutUint32(s.header[:], uint32(n))
	}
	if sent := s.all.Broadcast(0, snug.SliceView(s.header[:])); sent != nil {
		return sent
	}
	n := int(int32(binary.LittleEndian.Uint32(s.header[:])))
	switch n {
	case ended:
		return io.EOF
	case broken:
		return cmp.Or(err, errRank0)
	}
	s.left = s.buffer[:n]
	return s.all.Broadcast(0, snug.SliceView(s.left))
}

// failing is a reader of nothing.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// lossOfAll returns the loss of a step over all ranks.
func (t *Trainer[B]) lossOfAll(loss fused.Loss) (fused.Loss, error) {
	r, sums := &t.ranks, t.ranks.sums
	if !r.many {
		return loss, nil
	}
	clear(sums)
	sums[0], sums[1], sums[2], sums[3+r.Rank()] = loss.Sum, float64(loss.Targets), loss.Weight, float64(t.options.Schedule(t.step))
	if err := r.Sum(sums); err != nil {
		return loss, err
	}
	if rank := differs(sums[3:]); rank > 0 {
		return loss, fmt.Errorf("the Schedule says a rate of %g on rank 0 and of %g on rank %d: %w", sums[3], sums[3+rank], rank, snug.ErrConfig)
	}
	if sums[1] == 0 {
		return loss, fmt.Errorf("no micro-batch of any rank has a weight above 0: %w", snug.ErrConfig)
	}
	return fused.Loss{Sum: sums[0], Targets: int(sums[1]), Weight: sums[2]}, nil
}
