package dataset

import "sort"

// sampleList is a list of samples in the order of their tokens, in about 4 bytes of memory a sample, 8 for a pair.
type sampleList struct {
	n     int
	sizes chunked // numbers of tokens; joinedBit says that the first token is also the last one of the sample before
	mids  chunked // of pairs
	marks []mark
	// ends has the number of images up to each sample, nil while no sample has one.
	ends chunked
}

// mark says where the tokens of a sample are. The samples up to the next mark follow it.
type mark struct {
	sample int
	at     int64
}

const (
	joinedBit = 1 << 31
	markEvery = 64
)

// chunked is a list of numbers that grows without copies.
type chunked [][]uint32

const chunkNumbers = 1 << 12

func (c *chunked) add(x uint32) {
	last := len(*c) - 1
	if last < 0 || len((*c)[last]) == chunkNumbers {
		*c = append(*c, make([]uint32, 0, chunkNumbers))
		last++
	}
	(*c)[last] = append((*c)[last], x)
}

func (c chunked) len() (n int) {
	for _, chunk := range c {
		n += len(chunk)
	}
	return n
}

func (c chunked) get(i int) uint32 { return c[i/chunkNumbers][i%chunkNumbers] }

// sample is n tokens, from number at of all tokens on. The last one is a label only. In a pair, the first mid are the
// prompt with the chosen answer, and the others are the prompt with the rejected answer. Other samples have a mid of 0.
type sample struct {
	at     int64
	n, mid int32
	images [2]int // its images are those from the first number to before the second
}

// texts returns the range of the sample's tokens of each sequence.
func (x sample) texts() [][2]int {
	if x.mid == 0 {
		return [][2]int{{0, int(x.n)}}
	}
	return [][2]int{{0, int(x.mid)}, {int(x.mid), int(x.n)}}
}

// add appends a sample. All samples of a list are pairs, or none.
func (l *sampleList) add(x sample) {
	size, end := uint32(x.n), int64(-1)
	if l.n > 0 {
		last := l.get(l.n - 1)
		end = last.at + int64(last.n)
	}
	if x.at == end-1 {
		size |= joinedBit
	}
	if l.n%markEvery == 0 || x.at != end && x.at != end-1 {
		l.marks = append(l.marks, mark{l.n, x.at})
	}
	l.sizes.add(size)
	if x.mid > 0 {
		l.mids.add(uint32(x.mid))
	}
	if l.ends != nil || x.images[1] > 0 {
		for before := l.ends.len(); before < l.n; before++ {
			l.ends.add(0)
		}
		l.ends.add(uint32(x.images[1]))
	}
	l.n++
}

// get returns a sample.
func (l *sampleList) get(i int) sample {
	m := l.marks[sort.Search(len(l.marks), func(k int) bool { return l.marks[k].sample > i })-1]
	at := m.at
	for k := m.sample; k < i; k++ {
		at += int64(l.sizes.get(k) &^ joinedBit)
		if l.sizes.get(k+1)&joinedBit != 0 {
			at--
		}
	}
	x := sample{at: at, n: int32(l.sizes.get(i) &^ joinedBit)}
	if l.mids != nil {
		x.mid = int32(l.mids.get(i))
	}
	if l.ends != nil {
		if x.images[1] = int(l.ends.get(i)); i > 0 {
			x.images[0] = int(l.ends.get(i - 1))
		}
	}
	return x
}

// training returns how many samples are not held out.
func (s *Set) training() int { return s.list.n - len(s.held) }

// sample returns the sample with a number. Held-out samples have the numbers after the others.
func (s *Set) sample(number int) sample {
	if n := s.training(); number >= n {
		return s.list.get(int(s.held[number-n]))
	}
	// As many samples are held out before it as have number or less others before them.
	before := sort.Search(len(s.held), func(k int) bool { return int(s.held[k])-k > number })
	return s.list.get(number + before)
}
