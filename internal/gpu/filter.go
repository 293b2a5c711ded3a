package gpu

import (
	"bytes"
	"debug/elf"
	"math"
	"slices"
	"strconv"
)

// What LZMA finds to repeat depends on how a code is written. These filters bring codes into a form that it packs better.

// wordSize is the bytes of an instruction of NVIDIA, from compute capability 7.0 on.
const wordSize = 16

// wordOrder is the order in which the bytes of an instruction are compressed: what repeats longest first, the opcode
// and its modifiers; then constants, then registers and what the scheduler sets, which change together.
var wordOrder = [wordSize]byte{1, 11, 10, 9, 0, 12, 7, 6, 5, 4, 8, 3, 2, 15, 14, 13}

// orderWords reorders the bytes of instructions for compression, restoreWords undoes it.
func orderWords(words []byte) {
	for ; len(words) >= wordSize; words = words[wordSize:] {
		word := [wordSize]byte(words)
		for to, from := range wordOrder {
			words[to] = word[from]
		}
	}
}

func restoreWords(words []byte) {
	for ; len(words) >= wordSize; words = words[wordSize:] {
		word := [wordSize]byte(words)
		for from, to := range wordOrder {
			words[to] = word[from]
		}
	}
}

// instructions returns where the instructions of a cubin begin and end. A code that is no cubin has none.
func instructions(cubin []byte) (from, to int) {
	const version = 20 // of ELF, which is not 1 in code for drivers of CUDA 12.0
	cubin = slices.Clone(cubin)
	if len(cubin) > version {
		cubin[version] = 1
	}
	file, err := elf.NewFile(bytes.NewReader(cubin))
	if err != nil {
		return 0, 0
	}
	for _, s := range file.Sections {
		if s.Type == elf.SHT_PROGBITS && s.Flags&elf.SHF_EXECINSTR != 0 {
			if to == 0 {
				from = int(s.Offset)
			}
			to = int(s.Offset + s.FileSize)
		}
	}
	if from < 0 || from > to || to > len(cubin) {
		return 0, 0
	}
	return from, to
}

// The compiler numbers the registers and labels of a kernel one after another, so that lines that come again have other
// numbers. As differences they have the same. The number of a register, %r12, becomes its distance from the one of its
// letters that was last the first of a line, or, behind a letter from A to H, from one of the last eight that were far from
// that. In a label, $L__BB3_14, the number of the kernel becomes its distance from that of the label before, and the number
// behind it that from the label at the last line that is one. A difference is "=", or a number with its sign if negative.
// Where .entry stands all begin at 0. It takes three quarters of what LZMA makes of PTX.

// packPTX returns PTX with differences for numbers.
func packPTX(text []byte) ([]byte, bool) { return renumber(nil, text, true, math.MaxInt) }

// unpackPTX undoes packPTX: it appends the PTX to out, whose capacity is large enough, and reports whether the PTX has size bytes.
func unpackPTX(out, text []byte, size int) ([]byte, bool) {
	out, ok := renumber(out, text, false, size)
	return out, ok && len(out) == size
}

// renumber appends text with differences for numbers, or with numbers for differences, up to a limit of bytes.
func renumber(out, text []byte, pack bool, limit int) ([]byte, bool) {
	const label = "$L__BB"
	all := map[string]*numbers{}
	first, inLabel := true, -1 // whether no register was on this line; where the second number of a label begins
	for i := 0; i < len(text) && len(out) <= limit; {
		end, numbered := i+1, false
		switch c := text[i]; {
		case c == '\n':
			first = true
		case c == '.' && bytes.HasPrefix(text[i:], []byte(".entry")):
			clear(all)
		case c == '%':
			for end < len(text) && 'a' <= text[end] && text[end] <= 'z' {
				end++
			}
			numbered = true
		case c == '$' && bytes.HasPrefix(text[i:], []byte(label)):
			end += len(label) - 1
			numbered = true
		case c == '_':
			numbered = i == inLabel
		}
		name := text[i:end]
		out = append(out, name...)
		i = end
		if !numbered {
			continue
		}
		slot := -1
		if !pack && end < len(text) && 'A' <= text[end] && text[end] < 'A'+slots {
			slot = int(text[end] - 'A')
			end++
		}
		written := end
		if !pack && end < len(text) && (text[end] == '-' || text[end] == '=') {
			end++
		}
		for end < len(text) && '0' <= text[end] && text[end] <= '9' {
			end++
		}
		if end == i {
			continue // such as %tid.x
		}
		n, err := strconv.Atoi(string(text[written:end]))
		if err != nil && string(text[written:end]) != "=" {
			return out, false
		}
		s := all[string(name)]
		if s == nil {
			s = &numbers{}
			all[string(name)] = s
		}
		if pack {
			out = s.difference(out, n)
		} else {
			n = s.number(n, slot)
			out = strconv.AppendInt(out, int64(n), 10)
		}
		keep := true
		switch name[0] {
		case '%':
			keep, first = first, false
		case '$':
			inLabel = end
		default:
			keep = end < len(text) && text[end] == ':'
		}
		if keep {
			s.last = n
		}
		i = end
	}
	return out, len(out) <= limit
}

// slots is how many far numbers are known, near the distance from which a number is far.
const slots, near = 8, 16

// numbers are those to which the next one of a name refers.
type numbers struct {
	last int
	far  [slots]int // the newest first
}

// difference appends what a number becomes.
func (s *numbers) difference(out []byte, n int) []byte {
	base, slot := s.last, -1
	if abs(n-base) > near {
		for i, f := range s.far {
			if d := abs(n - f); d <= near && (slot < 0 || d < abs(n-base)) {
				base, slot = f, i
			}
		}
	}
	if slot >= 0 {
		out = append(out, byte('A'+slot))
	}
	d := n - base
	s.number(d, slot)
	if d == 0 {
		return append(out, '=')
	}
	return strconv.AppendInt(out, int64(d), 10)
}

// number returns the number of a difference from the last one, or from the one in a slot if that is not negative. Of far
// numbers it drops the one in the slot or else the oldest.
func (s *numbers) number(d, slot int) int {
	base := s.last
	if slot >= 0 {
		base = s.far[slot]
	}
	n := base + d
	if slot >= 0 || abs(d) > near {
		if slot < 0 {
			slot = slots - 1
		}
		copy(s.far[1:slot+1], s.far[:slot])
		s.far[0] = n
	}
	return n
}

func abs(n int) int { return max(n, -n) }
