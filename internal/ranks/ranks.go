// Package ranks makes the calls of the ranks of data-parallel training: it says which fit together, and an [Engine] has
// what all do that join ranks by a [Transport], such as packages mpi and nccl.
package ranks

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// Op is what a rank calls.
type Op int64

const (
	Sum Op = 1 + iota
	AllReduce
	ReduceScatter
	AllGather
	Broadcast
	AllToAll
	SendReceive
	Close
)

var names = [...]string{Sum: "Sum", AllReduce: "AllReduce", ReduceScatter: "ReduceScatter", AllGather: "AllGather",
	Broadcast: "Broadcast", AllToAll: "AllToAll", SendReceive: "SendReceive", Close: "Close"}

func (o Op) String() string {
	if o < Sum || int(o) >= len(names) {
		return fmt.Sprintf("operation %d", int64(o))
	}
	return names[o]
}

// Call is what a rank wants. It is of integers alone, so that it can be sent as it is.
type Call struct {
	Op         Op
	Len, Type  int64 // of the vector that is reduced or sent; Type is 0 for Sum
	Dst, DstOf int64 // length and type of what is received, for AllToAll and SendReceive
	From, Peer int64 // of SendReceive; Peer is the root of Broadcast
	Overlap    int64 // 1 if what is received lies in what is sent
}

// vector returns a call with a vector.
func vector(op Op, v snug.View) Call {
	return Call{Op: op, Len: int64(v.Len()), Type: int64(v.DType())}
}

// pair returns a call with what is received and what is sent.
func pair(op Op, dst, src snug.View) Call {
	c := vector(op, src)
	c.Dst, c.DstOf = int64(dst.Len()), int64(dst.DType())
	if dst.Device() == src.Device() && device.Mem(&dst).Overlaps(*device.Mem(&src)) {
		c.Overlap = 1
	}
	return c
}

// Check returns an error unless the calls of all ranks, in their order, fit together. The error begins with the name of
// the operation and wraps ErrConfig, ErrShape or ErrDType of package snug.
func Check(calls []Call) error {
	first := calls[0]
	for rank, c := range calls {
		if c.Op != first.Op {
			return fmt.Errorf("rank 0 calls %s, rank %d calls %s: %w", first.Op, rank, c.Op, snug.ErrConfig)
		}
	}
	for rank, c := range calls {
		if err := c.fits(rank, calls); err != nil {
			return fmt.Errorf("%s: %w", first.Op, err)
		}
	}
	return nil
}

// fits returns an error if the call of a rank does not agree with the calls of the others.
func (c Call) fits(rank int, calls []Call) error {
	first, size := calls[0], int64(len(calls))
	if c.Overlap != 0 {
		return fmt.Errorf("on rank %d what is received overlaps with what is sent: %w", rank, snug.ErrConfig)
	}
	switch c.Op {
	case SendReceive:
		if c.From < 0 || c.From >= size || c.Peer < 0 || c.Peer >= size {
			return fmt.Errorf("rank %d receives from rank %d and sends to rank %d, want ranks from 0 to %d: %w", rank, c.From, c.Peer, size-1, snug.ErrConfig)
		}
		sender := calls[c.From]
		switch {
		case sender.Peer != int64(rank):
			return fmt.Errorf("rank %d receives from rank %d, which sends to rank %d: %w", rank, c.From, sender.Peer, snug.ErrConfig)
		case c.Dst != sender.Len:
			return fmt.Errorf("rank %d receives %d elements, rank %d sends %d: %w", rank, c.Dst, c.From, sender.Len, snug.ErrShape)
		case c.DstOf != sender.Type:
			return fmt.Errorf("rank %d receives %s, rank %d sends %s: %w", rank, snug.DType(c.DstOf), c.From, snug.DType(sender.Type), snug.ErrDType)
		}
		return nil
	case Broadcast:
		if c.Peer < 0 || c.Peer >= size {
			return fmt.Errorf("rank %d says root %d, want 0 to %d: %w", rank, c.Peer, size-1, snug.ErrConfig)
		}
		if c.Peer != first.Peer {
			return fmt.Errorf("rank 0 says root %d, rank %d says %d: %w", first.Peer, rank, c.Peer, snug.ErrConfig)
		}
	case AllToAll:
		switch {
		case c.Dst != c.Len || c.Len%size != 0:
			return fmt.Errorf("rank %d sends %d elements and receives %d, want a common multiple of %d: %w", rank, c.Len, c.Dst, size, snug.ErrShape)
		case c.DstOf != c.Type:
			return fmt.Errorf("rank %d sends %s and receives %s: %w", rank, snug.DType(c.Type), snug.DType(c.DstOf), snug.ErrDType)
		}
	}
	if c.Len != first.Len {
		return fmt.Errorf("rank 0 has %d elements, rank %d has %d: %w", first.Len, rank, c.Len, snug.ErrShape)
	}
	sums := c.Op == AllReduce || c.Op == ReduceScatter
	switch {
	case sums && c.Type != int64(snug.F32) && c.Type != int64(snug.BF16):
		return fmt.Errorf("rank %d has %s, want f32 or bf16: %w", rank, snug.DType(c.Type), snug.ErrDType)
	case c.Type != first.Type:
		return fmt.Errorf("rank 0 has %s, rank %d has %s: %w", snug.DType(first.Type), rank, snug.DType(c.Type), snug.ErrDType)
	}
	return nil
}
