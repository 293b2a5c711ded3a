package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// Kernel is what a cubin says of a kernel.
type Kernel struct {
	Name      string
	Registers int // of a thread at launch
	Threads   int // of a block, at most
	Shared    int // bytes of a block that the kernel declares
	Frame     int // bytes of a thread's stack
	Params    []Param
}

// Param is a parameter of a kernel: bytes from the first one on, and its size.
type Param struct{ Offset, Size int }

// Reserved are the bytes of every block that the system takes for itself on capability 9.0 and
// later; a cubin counts them among the kernel's.
const Reserved = 1 << 10

// Attributes in sections .nv.info, as `cuobjdump -elf` names them.
const (
	attrMaxThreads  = 0x05
	attrFrameSize   = 0x11
	attrKParamInfo  = 0x17
	attrRegCount    = 0x2f
	formatSized     = 4 // a size and so many bytes follow; else the two bytes of the size are the value
	sectionKernels  = ".nv.info"
	sectionOf       = ".nv.info."
	sectionShared   = ".nv.shared."
	sectionTextOf   = ".text."
	elfHeader       = 64
	elfSection      = 64
	elfSymbol       = 24
	typeSymbolTable = 2
)

type section struct {
	name         string
	kind         uint32
	offset, size uint64
	link         uint32
	data         []byte // nil for what has no bytes in the file
}

// Kernels returns the kernels of a cubin for some capability, in the file's order. Go's debug/elf refuses the
// versions that NVIDIA writes into its files.
func Kernels(cubin []byte, capability int) ([]Kernel, error) {
	sections, err := readSections(cubin)
	if err != nil {
		return nil, err
	}
	var all []Kernel
	at := map[string]int{}
	for _, s := range sections {
		if name, ok := strings.CutPrefix(s.name, sectionTextOf); ok {
			at[name] = len(all)
			all = append(all, Kernel{Name: name})
		}
	}
	symbols, err := readSymbols(sections)
	if err != nil {
		return nil, err
	}
	for _, s := range sections {
		of, isOf := strings.CutPrefix(s.name, sectionOf)
		shared, isShared := strings.CutPrefix(s.name, sectionShared)
		switch {
		case isShared:
			if i, ok := at[shared]; ok {
				all[i].Shared = int(s.size)
				if capability >= 90 {
					all[i].Shared -= Reserved
				}
			}
		case s.name == sectionKernels:
			err = attributes(s.data, func(attr byte, v []byte) {
				if len(v) != 8 {
					return
				}
				symbol, n := int(binary.LittleEndian.Uint32(v)), int(binary.LittleEndian.Uint32(v[4:]))
				if symbol >= len(symbols) {
					return
				}
				i, ok := at[symbols[symbol]]
				switch {
				case !ok:
				case attr == attrRegCount:
					all[i].Registers = n
				case attr == attrFrameSize:
					all[i].Frame = n
				}
			})
		case isOf:
			i, ok := at[of]
			if !ok {
				continue
			}
			err = attributes(s.data, func(attr byte, v []byte) {
				switch {
				case attr == attrMaxThreads && len(v) == 12:
					all[i].Threads = 1
					for k := range 3 {
						all[i].Threads *= int(binary.LittleEndian.Uint32(v[4*k:]))
					}
				case attr == attrKParamInfo && len(v) == 12:
					p := Param{int(binary.LittleEndian.Uint16(v[6:])), int(binary.LittleEndian.Uint32(v[8:]) >> 18)}
					all[i].Params = append(all[i].Params, p)
				}
			})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return all, nil
}

func attributes(data []byte, each func(attr byte, value []byte)) error {
	for len(data) > 0 {
		if len(data) < 4 {
			return fmt.Errorf("%d bytes are no attribute", len(data))
		}
		format, attr, value, n := data[0], data[1], data[2:4], 4
		if format == formatSized {
			size := int(binary.LittleEndian.Uint16(value))
			if len(data) < 4+size {
				return fmt.Errorf("attribute %#x of %d bytes ends after %d", attr, size, len(data)-4)
			}
			value, n = data[4:4+size], 4+size
		}
		each(attr, value)
		data = data[n:]
	}
	return nil
}

func readSections(file []byte) ([]section, error) {
	le := binary.LittleEndian
	if len(file) < elfHeader || !bytes.HasPrefix(file, []byte("\x7fELF\x02\x01")) {
		return nil, fmt.Errorf("%d bytes that are no cubin", len(file))
	}
	start, n, names := le.Uint64(file[0x28:]), int(le.Uint16(file[0x3c:])), int(le.Uint16(file[0x3e:]))
	if start > uint64(len(file)) || uint64(len(file))-start < uint64(n)*elfSection || names >= n {
		return nil, fmt.Errorf("a cubin of %d bytes, and %d sections from %d on", len(file), n, start)
	}
	const noBits = 8
	all := make([]section, n)
	at := make([]uint32, n)
	for i := range all {
		h := file[start+uint64(i)*elfSection:]
		s := section{kind: le.Uint32(h[4:]), offset: le.Uint64(h[0x18:]), size: le.Uint64(h[0x20:]), link: le.Uint32(h[0x28:])}
		if s.kind != noBits {
			if s.offset > uint64(len(file)) || uint64(len(file))-s.offset < s.size {
				return nil, fmt.Errorf("section %d lies behind the end of the cubin", i)
			}
			s.data = file[s.offset : s.offset+s.size]
		}
		all[i], at[i] = s, le.Uint32(h)
	}
	for i := range all {
		all[i].name = text(all[names].data, at[i])
	}
	return all, nil
}

func readSymbols(sections []section) ([]string, error) {
	var names []string
	for _, s := range sections {
		if s.kind != typeSymbolTable {
			continue
		}
		if int(s.link) >= len(sections) {
			return nil, fmt.Errorf("symbols have their names in section %d of %d", s.link, len(sections))
		}
		for d := s.data; len(d) >= elfSymbol; d = d[elfSymbol:] {
			names = append(names, text(sections[s.link].data, binary.LittleEndian.Uint32(d)))
		}
	}
	return names, nil
}

// text returns what stands in a table of texts that end with a zero byte.
func text(table []byte, at uint32) string {
	if uint64(at) >= uint64(len(table)) {
		return ""
	}
	t, _, _ := bytes.Cut(table[at:], []byte{0})
	return string(t)
}
