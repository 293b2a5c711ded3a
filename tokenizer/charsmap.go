package tokenizer

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// charsmap is SentencePiece's table of rules: what texts become. A double-array trie has the texts, and leads to where the result
// begins in one long text, which a byte 0 ends. Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure",
// 1989; the form of the units is that of Darts-clone.
type charsmap struct {
	units   []uint32
	results string
	ascii   [utf8.RuneSelf]bool // bytes that no rule begins with
}

// maxRule is the longest rule in bytes.
const maxRule = 1 << 10

// maxCharsmap is the largest table in bytes. Those of published models have 300 KB.
const maxCharsmap = 16 << 20

// newCharsmap reads a table, nil for an empty one.
func newCharsmap(blob []byte) (*charsmap, error) {
	if len(blob) == 0 {
		return nil, nil
	}
	if len(blob) < 4 || len(blob) > maxCharsmap {
		return nil, damaged("precompiled_charsmap has %d bytes, want 4 to %d", len(blob), maxCharsmap)
	}
	size := int64(binary.LittleEndian.Uint32(blob))
	blob = blob[4:]
	if size > int64(len(blob)) || size%4 != 0 || size == 0 {
		return nil, damaged("precompiled_charsmap has a trie of %d bytes in %d, want a multiple of 4", size, len(blob))
	}
	c := &charsmap{units: make([]uint32, size/4), results: string(blob[size:])}
	for i := range c.units {
		c.units[i] = binary.LittleEndian.Uint32(blob[4*i:])
	}
	if !utf8.ValidString(c.results) {
		return nil, damaged("precompiled_charsmap: the results are not UTF-8")
	}
	for b := range c.ascii {
		_, reaches := c.step(c.root(), byte(b))
		c.ascii[b] = !reaches
	}
	return c, nil
}

// growth returns how many times as long a text may become.
func (c *charsmap) growth() int {
	most := 1
	if c != nil {
		for part := range bytes.SplitSeq([]byte(c.results), []byte{0}) {
			most = max(most, len(part))
		}
	}
	return min(most, maxGrowth+1)
}

func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

func (c *charsmap) root() uint32 { return offset(c.units[0]) }

// step goes from a node on by a byte.
func (c *charsmap) step(node uint32, b byte) (next uint32, ok bool) {
	if node ^= uint32(b); b == 0 || int64(node) >= int64(len(c.units)) {
		return 0, false
	}
	unit := c.units[node]
	return node ^ offset(unit), unit&(1<<31|0xFF) == uint32(b)
}

// result returns what ends at a node, which step has left for next.
func (c *charsmap) result(node, next uint32) (text string, ok bool) {
	if c.units[node]>>8&1 == 0 || int64(next) >= int64(len(c.units)) {
		return "", false
	}
	begin := int64(c.units[next] & (1<<31 - 1))
	if begin > int64(len(c.results)) || begin < int64(len(c.results)) && !utf8.RuneStart(c.results[begin]) {
		return "", false // a damaged table
	}
	rest := c.results[begin:]
	for i := range len(rest) {
		if rest[i] == 0 {
			return rest[:i], true
		}
	}
	return rest, true
}

// find returns the result of the shortest rule at the front of a text, or of the longest, and the rule's length, 0 for none. open
// says that more text could have more rules.
func (c *charsmap) find(text string, longest bool) (result string, size int, open bool) {
	node := c.root()
	for i := range min(len(text), maxRule+1) {
		if i == maxRule { // a damaged table may go on for ever
			return result, size, false
		}
		next, ok := c.step(node, text[i])
		if !ok {
			return result, size, false
		}
		if to, ends := c.result(node^uint32(text[i]), next); ends {
			result, size = to, i+1
			if !longest {
				return result, size, false
			}
		}
		node = next
	}
	return result, size, true
}
