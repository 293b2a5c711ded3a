package gpu

import (
	"encoding/binary"
	"errors"
)

// Codes are compressed by LZMA, which packs machine code in half of what DEFLATE takes. This is the decoder of Igor Pavlov's
// specification (7-Zip, LzmaSpec.cpp, 2015) for a stream whose size is known and whose dictionary is its output. What is
// decoded is literals, matches of a length at a distance, and repetitions of one of the last four distances. Each is a few
// bits, whose probabilities are learned and go into a range coder.

// stored is the first byte of a stream that is not compressed. Otherwise it is (pb·5 + lp)·9 + lc: the numbers of bits of the
// position and of the byte before that choose a set of probabilities.
const stored = 0xff

var errLZMA = errors.New("no LZMA stream of this size")

// unpackLZMA fills out with what a stream holds.
func unpackLZMA(out, in []byte) error {
	switch {
	case len(in) > 0 && in[0] == stored:
		if copy(out, in[1:]) != len(in)-1 || len(out) != len(in)-1 {
			return errLZMA
		}
		return nil
	case len(in) < 6 || in[0] >= 9*5*5 || in[1] != 0:
		return errLZMA
	}
	d := newLZMA(out, in)
	for d.pos < len(out) {
		if err := d.next(); err != nil {
			return err
		}
	}
	if d.at > len(d.in) {
		return errLZMA
	}
	return nil
}

// probability is of a 0, in units of 1/2048, less a half: at first all bits are even.
type probability = int16

const (
	states   = 12 // what the last operations were
	aligned  = 4  // bits of a long distance that have probabilities
	minMatch = 2
)

// lzma is the state of a decoder.
type lzma struct {
	in          []byte
	at          int
	width, code uint32 // of the range coder

	out      []byte
	pos      int
	state    int
	last     [4]int // distances, the newest first
	lc       int
	lpMask   int
	pbMask   int
	literals []probability
	match    [states][16]probability
	rep      [states]probability
	repNew   [3][states]probability // whether it is not the newest distance, not the second, not the third
	repLong  [states][16]probability
	slots    [4][64]probability
	distance [115]probability
	align    [1 << aligned]probability
	lengths  [2]lengthCoder // of matches, and of repetitions
}

// lengthCoder has the probabilities of lengths: 8 short, 8 middle and 256 long ones.
type lengthCoder struct {
	choice   [2]probability
	low, mid [16][8]probability
	high     [256]probability
}

func newLZMA(out, in []byte) *lzma {
	props := int(in[0])
	lp := props / 9 % 5
	d := &lzma{
		in: in, at: 6, width: 1<<32 - 1, code: binary.BigEndian.Uint32(in[2:]), out: out, last: [4]int{1, 1, 1, 1},
		lc: props % 9, lpMask: 1<<lp - 1, pbMask: 1<<(props/45) - 1,
	}
	d.literals = make([]probability, 0x300<<(d.lc+lp))
	return d
}

// normalize widens the range by a byte. Behind the end there are zeros.
func (d *lzma) normalize() {
	d.width <<= 8
	d.code <<= 8
	if d.at < len(d.in) {
		d.code |= uint32(d.in[d.at])
	}
	d.at++
}

// bit decodes a bit and learns from it.
func (d *lzma) bit(p *probability) int {
	v := 1<<10 + int32(*p)
	bound := d.width >> 11 * uint32(v)
	b := 0
	if d.code < bound {
		*p += int16((1<<11 - v) >> 5)
		d.width = bound
	} else {
		*p -= int16(v >> 5)
		d.code -= bound
		d.width -= bound
		b = 1
	}
	if d.width < 1<<24 {
		d.normalize()
	}
	return b
}

// tree decodes a number of bits, highest first, each with the probability that those before it choose.
func (d *lzma) tree(p []probability, bits int) int {
	m := 1
	for range bits {
		m = m<<1 | d.bit(&p[m])
	}
	return m - 1<<bits
}

// reverse decodes a number of bits, lowest first.
func (d *lzma) reverse(p []probability, bits int) (n int) {
	m := 1
	for i := range bits {
		b := d.bit(&p[m])
		m = m<<1 | b
		n |= b << i
	}
	return n
}

// direct decodes bits that are as often 0 as 1.
func (d *lzma) direct(bits int) (n int) {
	for range bits {
		d.width >>= 1
		b := 0
		if d.code >= d.width {
			d.code -= d.width
			b = 1
		}
		if d.width < 1<<24 {
			d.normalize()
		}
		n = n<<1 | b
	}
	return n
}

func (d *lzma) length(l *lengthCoder, place int) int {
	switch {
	case d.bit(&l.choice[0]) == 0:
		return d.tree(l.low[place][:], 3)
	case d.bit(&l.choice[1]) == 0:
		return 8 + d.tree(l.mid[place][:], 3)
	}
	return 16 + d.tree(l.high[:], 8)
}

// far decodes a distance: the class has its two highest bits and the number of the others.
func (d *lzma) far(length int) int {
	slot := d.tree(d.slots[min(length, 3)][:], 6)
	if slot < 4 {
		return slot + 1
	}
	bits := slot/2 - 1
	n := (2 | slot&1) << bits
	if slot < 14 {
		return n + d.reverse(d.distance[n-slot:], bits) + 1
	}
	return n + d.direct(bits-aligned)<<aligned + d.reverse(d.align[:], aligned) + 1
}

// literal decodes a byte. Behind a match the byte at the last distance tells of it, as long as their bits agree.
func (d *lzma) literal() {
	before := 0
	if d.pos > 0 {
		before = int(d.out[d.pos-1])
	}
	p := d.literals[0x300*((d.pos&d.lpMask)<<d.lc|before>>(8-d.lc)):][:0x300]
	symbol := 1
	if d.state >= 7 {
		for hint := int(d.out[d.pos-d.last[0]]); symbol < 0x100; hint <<= 1 {
			told := hint >> 7 & 1
			b := d.bit(&p[(1+told)<<8+symbol])
			symbol = symbol<<1 | b
			if b != told {
				break
			}
		}
	}
	for symbol < 0x100 {
		symbol = symbol<<1 | d.bit(&p[symbol])
	}
	d.out[d.pos] = byte(symbol)
	d.pos++
	switch {
	case d.state < 4:
		d.state = 0
	case d.state < 10:
		d.state -= 3
	default:
		d.state -= 6
	}
}

// next decodes one operation.
func (d *lzma) next() error {
	place := d.pos & d.pbMask
	if d.bit(&d.match[d.state][place]) == 0 {
		d.literal()
		return nil
	}
	plain := d.state < 7 // the operation before was a literal
	after := func(literal, other int) {
		if d.state = other; plain {
			d.state = literal
		}
	}
	n, s := 0, d.state
	if d.bit(&d.rep[s]) == 0 { // a new distance
		n = d.length(&d.lengths[0], place)
		d.last = [4]int{d.far(n), d.last[0], d.last[1], d.last[2]}
		after(7, 10)
	} else if newest := d.bit(&d.repNew[0][s]) == 0; newest && d.bit(&d.repLong[s][place]) == 0 { // one byte there
		n = 1 - minMatch
		after(9, 11)
	} else {
		if !newest {
			i := 1 + d.bit(&d.repNew[1][s])
			if i == 2 {
				i += d.bit(&d.repNew[2][s])
			}
			distance := d.last[i]
			copy(d.last[1:i+1], d.last[:i])
			d.last[0] = distance
		}
		n = d.length(&d.lengths[1], place)
		after(8, 11)
	}
	n += minMatch
	from := d.pos - d.last[0]
	if from < 0 || d.last[0] <= 0 || n > len(d.out)-d.pos || d.at > len(d.in)+4 {
		return errLZMA
	}
	for i := range n { // a byte at a time: a match may overlap itself
		d.out[d.pos+i] = d.out[from+i]
	}
	d.pos += n
	return nil
}
