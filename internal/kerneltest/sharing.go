package kerneltest

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrSend is the error of the call of Send that fails.
var ErrSend = errors.New("of Send")

// Sharing are ranks in goroutines that have shards of parameters, as the Ranks of packages amp and quant8.
type Sharing struct {
	Number, Count int              // of the rank, and of the ranks
	Cuts          map[string][]int // where the shards of a parameter begin and end
	Sends         int              // calls of Send
	Fail          int              // the call that fails, from 1
	wires         []chan []byte    // by sender
}

// Share divides parameters of these lengths among ranks at multiples of align: unevenly, some have none.
func Share(lengths map[string]int, size, align int) []*Sharing {
	cuts, wires := map[string][]int{}, make([]chan []byte, size)
	for name, n := range lengths {
		list := []int{0}
		for rank := 1; rank < size; rank++ {
			list = append(list, max(list[rank-1], min(n, n*rank*rank/size/size/align*align)))
		}
		cuts[name] = append(list, n)
	}
	all := make([]*Sharing, size)
	for rank := range all {
		wires[rank] = make(chan []byte)
		all[rank] = &Sharing{Number: rank, Count: size, Cuts: cuts, wires: wires}
	}
	return all
}

func (s *Sharing) Rank() int { return s.Number }
func (s *Sharing) Size() int { return s.Count }

func (s *Sharing) Range(name string, rank int) (lo, hi int) {
	return s.Cuts[name][rank], s.Cuts[name][rank+1]
}

func (s *Sharing) Send(from int, b []byte) error {
	s.Sends++
	switch s.Number {
	case from:
		s.wires[from] <- bytes.Clone(b)
	case 0:
		if sent := <-s.wires[from]; copy(b, sent) != len(sent) || len(b) != len(sent) {
			return fmt.Errorf("rank %d sends %d bytes, and rank 0 takes %d", from, len(sent), len(b))
		}
	default:
		if len(b) > 0 {
			return errors.New("bytes on a rank that takes no part")
		}
	}
	if s.Sends == s.Fail {
		return ErrSend
	}
	return nil
}
