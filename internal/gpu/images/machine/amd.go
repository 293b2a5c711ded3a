package machine

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// AMDKernel is what a code object says of a kernel.
type AMDKernel struct {
	Name    string
	Threads int // of a block, at most
	VGPRs   int // vector registers of a thread, with those of its matrix units
	SGPRs   int // scalar registers of a wave
	Shared  int // bytes of a block that the kernel declares
	Scratch int // bytes of a thread's stack
	Spills  int // vector registers that are moved to the stack
}

// Of a kernel's descriptor and of the modes in its second last word of settings, by LLVM's guide to AMDGPU.
const (
	descriptorBytes = 64
	descriptorModes = 48
	modesShift      = 12   // rounding of float32, of other floats, subnormal numbers of float32, of others: 2 bits each
	modesExact      = 0xf0 // to nearest even, and subnormal numbers are kept
	noteMetadata    = 32
)

// AMDKernels returns the kernels of a code object for one of AMD's architectures, in the file's order. It is an
// error if the object is for another architecture or wants a symbol from elsewhere, or if a kernel
// begins with another rounding than to nearest even or without subnormal numbers.
func AMDKernels(object []byte, arch string) ([]AMDKernel, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	const amdgpu = 0xe0
	if f.Machine != amdgpu || f.OSABI != 64 || f.ABIVersion != 3 || f.Type != elf.ET_DYN {
		return nil, fmt.Errorf("no code object of version 5 but %v, system %d, version %d, %v", f.Machine, f.OSABI, f.ABIVersion, f.Type)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	at := map[string]uint64{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			return nil, fmt.Errorf("symbol %s is not defined", s.Name)
		}
		at[s.Name] = s.Value
	}
	metadata, err := amdMetadata(f)
	if err != nil {
		return nil, err
	}
	if target := metadata.text("amdhsa.target"); target != "amdgcn-amd-amdhsa--"+arch {
		return nil, fmt.Errorf("code for %s, want %s", target, arch)
	}
	list, _ := metadata["amdhsa.kernels"].([]any)
	var all []AMDKernel
	for _, x := range list {
		m, ok := x.(fields)
		if !ok {
			return nil, errors.New("a kernel that is no map")
		}
		k := AMDKernel{
			Name: m.text(".name"), Threads: m.number(".max_flat_workgroup_size"),
			VGPRs: m.number(".vgpr_count"), SGPRs: m.number(".sgpr_count"), Shared: m.number(".group_segment_fixed_size"),
			Scratch: m.number(".private_segment_fixed_size"), Spills: m.number(".vgpr_spill_count"),
		}
		if err := checkModes(f, at, m.text(".symbol")); err != nil {
			return nil, fmt.Errorf("%s: %w", k.Name, err)
		}
		all = append(all, k)
	}
	return all, nil
}

func checkModes(f *elf.File, at map[string]uint64, symbol string) error {
	address, ok := at[symbol]
	if !ok {
		return fmt.Errorf("no symbol %s", symbol)
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_PROGBITS || address < s.Addr || address-s.Addr+descriptorBytes > s.Size {
			continue
		}
		var descriptor [descriptorBytes]byte
		if _, err := s.ReadAt(descriptor[:], int64(address-s.Addr)); err != nil {
			return err
		}
		if modes := binary.LittleEndian.Uint32(descriptor[descriptorModes:]) >> modesShift & 0xff; modes != modesExact {
			return fmt.Errorf("modes of floats are %#x, want %#x: to nearest even, subnormal numbers kept", modes, modesExact)
		}
		return nil
	}
	return fmt.Errorf("no section has the descriptor %s", symbol)
}

// amdMetadata returns the note that describes the kernels.
func amdMetadata(f *elf.File) (fields, error) {
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOTE {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return nil, err
		}
		for len(data) >= 12 {
			le := binary.LittleEndian
			name, size, kind := uint64(le.Uint32(data)), uint64(le.Uint32(data[4:])), le.Uint32(data[8:])
			from := 12 + (name+3)&^3
			if from+size > uint64(len(data)) {
				return nil, errors.New("a note that is cut off")
			}
			if kind == noteMetadata && strings.HasPrefix(string(data[12:]), "AMDGPU\x00") {
				p := packed{data[from : from+size]}
				x, err := p.value(0)
				m, ok := x.(fields)
				if err == nil && !ok {
					err = errors.New("metadata that are no map")
				}
				return m, err
			}
			data = data[min((from+size+3)&^3, uint64(len(data))):]
		}
	}
	return nil, errors.New("no metadata")
}

// vectorFiles are the vector registers of a thread's lane that the waves of a block share: those of a SIMD, of
// which a block has four. A wave takes at most maxVGPRs.
var vectorFiles = map[string]struct{ registers, maxVGPRs, wave int }{
	"gfx90a":  {512, 512, 64},
	"gfx942":  {512, 512, 64},
	"gfx1100": {1536, 256, 32},
	"gfx1201": {1536, 256, 32},
}

// Fits returns an error if a block of the kernel does not fit a processor of an architecture: its waves
// have no vector registers, or its memory is more than the 64 KiB that every block may have.
func (k AMDKernel) Fits(arch string) error {
	file, ok := vectorFiles[arch]
	if !ok {
		return fmt.Errorf("unknown architecture %s", arch)
	}
	const simds, most = 4, 64 << 10
	waves := (k.Threads + file.wave*simds - 1) / (file.wave * simds) // of a SIMD
	limit := min(file.registers/max(waves, 1), file.maxVGPRs)
	switch {
	case k.Threads < 1 || k.Threads > 1024:
		return fmt.Errorf("%s for %s has blocks of %d threads, want 1 to 1024", k.Name, arch, k.Threads)
	case k.VGPRs > limit:
		return fmt.Errorf("%s for %s has %d vector registers, a block of %d threads leaves %d", k.Name, arch, k.VGPRs, k.Threads, limit)
	case k.Shared > most:
		return fmt.Errorf("%s for %s has %d bytes of memory of a block, the limit is %d", k.Name, arch, k.Shared, most)
	}
	return nil
}
