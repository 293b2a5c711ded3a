package vision

import (
	"encoding/binary"
)

// shortCode is the longest Huffman code that is found by one look in a table.
const shortCode = 9

// huffman decodes the symbols of a table. Entries are 256 times the length of a code, plus the symbol; 0 is no code.
type huffman struct {
	defined bool // with codes that T.81 allows
	largest byte // symbol
	short   [1 << shortCode]uint16
	symbols [256]byte
	// Of codes of a length, as the upper bits of 16: the end of those up to that length, and what is added to a code for the place of its symbol.
	end   [17]uint32
	place [17]int32
}

// set builds the table of so many codes of every length from 1 to 16, which are numbered upwards (annex C).
func (h *huffman) set(counts, symbols []byte) {
	*h = huffman{}
	copy(h.symbols[:], symbols)
	code, n := 0, 0
	for i, count := range counts {
		length := i + 1
		h.place[length] = int32(n - code)
		for range int(count) {
			if length <= shortCode && code < 1<<length {
				first := code << (shortCode - length)
				for j := range 1 << (shortCode - length) {
					h.short[first+j] = uint16(length<<8) | uint16(symbols[n])
				}
			}
			h.largest = max(h.largest, symbols[n])
			code, n = code+1, n+1
		}
		if count > 0 && code >= 1<<length { // no code has ones alone
			return
		}
		h.end[length] = uint32(code) << (16 - length)
		code <<= 1
	}
	h.defined = n > 0
}

// long returns the entry of a code that may be longer than shortCode, from the upper bits.
func (h *huffman) long(bits uint64) uint16 {
	for length := 1; length <= 16; length++ {
		if uint32(bits>>48) < h.end[length] {
			code := int32(bits >> (64 - length))
			return uint16(length<<8) | uint16(h.symbols[byte(code+h.place[length])])
		}
	}
	return 0
}

// bitReader reads the bits of a scan, the uppermost of bits first. Behind the last it has zeros, so that nothing fails within a block;
// the reader of blocks asks for overrun.
type bitReader struct {
	file []byte
	at   int
	bits uint64 // n, and below them more of the file or zeros
	n    int
	pad  int // zeros behind the file's bits
}

// enough bits for a Huffman code and the number behind it.
const enough = 32

// fill makes n at least 56.
func (r *bitReader) fill() {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	if r.at+8 <= len(r.file) {
		x := binary.BigEndian.Uint64(r.file[r.at:])
		if (^x-ones)&x&high == 0 { // no byte is 0xff
			r.bits |= x >> uint(r.n&63)
			r.at += (63 - r.n) >> 3
			r.n |= 56
			return
		}
	}
	for r.n <= 56 {
		r.bits |= uint64(r.next()) << uint((56-r.n)&63)
		r.n += 8
	}
}

// next returns the next byte of a scan. A byte 0xff is followed by a 0, and by other bytes where a marker begins.
func (r *bitReader) next() byte {
	if r.at >= len(r.file) {
		r.pad += 8
		return 0
	}
	b := r.file[r.at]
	if b != 0xff {
		r.at++
		return b
	}
	behind := r.at + 1
	for behind < len(r.file) && r.file[behind] == 0xff {
		behind++
	}
	if behind == len(r.file) || r.file[behind] != 0 {
		r.pad += 8
		return 0
	}
	r.at = behind + 1
	return 0xff
}

// overrun reports whether bits were read that the file does not have.
func (r *bitReader) overrun() bool { return r.n < r.pad }

// take returns the next n bits, at most 16.
func (r *bitReader) take(n int) int32 {
	if r.n < n {
		r.fill()
	}
	v := int32(r.bits >> 1 >> uint((63-n)&63))
	r.bits <<= uint(n & 63)
	r.n -= n
	return v
}

// symbol returns the next symbol, and false for bits that are no code. Then at least 16 bits are there.
func (r *bitReader) symbol(h *huffman) (byte, bool) {
	if r.n < enough {
		r.fill()
	}
	e := h.short[r.bits>>(64-shortCode)]
	if e == 0 {
		if e = h.long(r.bits); e == 0 {
			return 0, false
		}
	}
	r.bits <<= uint(e>>8) & 63
	r.n -= int(e >> 8)
	return byte(e), true
}

// signed returns the number of n bits that T.81's function EXTEND makes of the uppermost bits: the upper half of them is positive.
func signed(bits uint64, n uint) int32 {
	v := int32(bits >> 1 >> ((63 - n) & 63))
	return v + (v-1<<((n-1)&31))>>31&(1-1<<(n&31))
}
