package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/driver"
)

// An image is the kernels of one module, compiled ahead. NVIDIA's has a cubin for each of some
// architectures, and PTX that newer ones compile when they load it; AMD's has an ELF code object for
// each of some architectures. Codes are compressed in streams. Two of machine code that are alike, such as those for 8.0
// and 8.6, are in one, where the second costs about half of a stream of its own; PTX has a stream for every part. A device
// unpacks its stream up to the end of its code: one code or two. The numbers are little-endian:
//
//	"snug\x00gpu"   8 bytes
//	version         uint16, 3
//	codes           uint16
//	checksum        uint32, CRC-32C of the 12 bytes before it and of the index
//	index           for every code, 40 bytes:
//	    capability      uint16, 90 is 9.0; of a code object the digits of its architecture, 0x90a
//	                    is gfx90a
//	    kind            uint8, 0 is a cubin, 1 is PTX, 2 is AMD's code object
//	    alone           uint8, 1 if no other capability runs it (sm_90a)
//	    offset          uint32, of its stream from the start of the image; streams follow one another
//	    packed          uint32, bytes of the stream in the image
//	    checksum        uint32, CRC-32C of these bytes
//	    unpacked        uint32, bytes that the stream holds
//	    start           uint32, of the code in them; the codes of a stream follow one another
//	    end             uint32, of the code in them
//	    size            uint32, bytes of the code
//	    first           uint32, where in a cubin the instructions begin whose bytes are reordered,
//	                    see orderWords
//	    behind          uint32, and where they end
//	streams         LZMA, as unpackLZMA reads it. Of PTX it holds what packPTX makes of it
const (
	imageMagic   = "snug\x00gpu"
	imageVersion = 3
	imageHeader  = 16
	imageEntry   = 40
	maxRatio     = 1 << 13 // of what a stream holds and of its bytes; no code comes near
	maxNumbers   = 4       // of the bytes of PTX and of what packPTX makes of it
)

// Arch is what a code runs on.
type Arch struct {
	Capability int  // 90 is compute capability 9.0
	Alone      bool // no other capability runs it, such as sm_90a
}

// ParseArch reads the number of an architecture, such as 80, 90a or 120.
func ParseArch(s string) (Arch, error) {
	number, alone := strings.CutSuffix(s, "a")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n < 10 {
		return Arch{}, fmt.Errorf("architecture %q: want a number such as 80 or 90a", s)
	}
	return Arch{int(n), alone}, nil
}

// String returns the number as the compilers know it, such as 90a.
func (a Arch) String() string {
	if a.Alone {
		return strconv.Itoa(a.Capability) + "a"
	}
	return strconv.Itoa(a.Capability)
}

// The kinds of codes in the index.
const (
	kindCubin = iota
	kindPTX
	kindAMD
)

// Code is a module's kernels in one form.
type Code struct {
	Arch        // of NVIDIA
	AMD  string // AMD's architecture, such as "gfx90a", of an ELF code object; else empty
	PTX  bool   // text that the driver compiles; else machine code
	Data []byte // a zero byte follows it in what Unpack returns, as the driver wants of text
}

// String returns "sm_90a", "PTX of compute_80", or "gfx90a".
func (c Code) String() string {
	if c.AMD != "" {
		return c.AMD
	}
	if c.PTX {
		return "PTX of compute_" + c.Arch.String()
	}
	return "sm_" + c.Arch.String()
}

// runsOn reports whether a device of some capability takes the code: a cubin runs on its own
// capability and on later ones of the same major number, PTX on all later ones.
func (c Code) runsOn(capability int) bool {
	switch {
	case c.AMD != "":
		return false
	case c.Alone:
		return capability == c.Capability
	case c.PTX:
		return capability >= c.Capability
	default:
		return capability >= c.Capability && capability/10 == c.Capability/10
	}
}

// before reports whether a device that takes both codes runs c and not o: machine code before
// PTX, then the higher capability, then code for that capability alone.
func (c Code) before(o Code) bool {
	switch {
	case c.PTX != o.PTX:
		return o.PTX
	case c.Capability != o.Capability:
		return c.Capability > o.Capability
	default:
		return c.Alone && !o.Alone
	}
}

// number returns what the index calls the code's architecture, and the kind of the code. A name of
// AMD's that it cannot write has 0.
func (c Code) number() (number int, kind byte) {
	switch {
	case c.AMD != "":
		n, _ := strconv.ParseUint(strings.TrimPrefix(c.AMD, "gfx"), 16, 16)
		if amdName(uint16(n)) != c.AMD {
			n = 0
		}
		return int(n), kindAMD
	case c.PTX:
		return c.Capability, kindPTX
	default:
		return c.Capability, kindCubin
	}
}

// amdName returns "gfx90a" for 0x90a.
func amdName(number uint16) string { return "gfx" + strconv.FormatUint(uint64(number), 16) }

func indexSum(index []byte) uint32 {
	return crc32c.Update(crc32c.Checksum(index[:12]), index[imageHeader:])
}

// entry is what the index has of a code.
type entry struct {
	Number                                                         uint16
	Kind, Alone                                                    uint8
	Offset, Packed, Sum, Unpacked, Start, End, Size, First, Behind uint32
}

// packedCode is a code in an image.
type packedCode struct {
	Code // without Data
	entry
	stream []byte
}

// readIndex reads and checks everything but the codes.
func readIndex(image []byte) ([]packedCode, error) {
	le := binary.LittleEndian
	if len(image) < imageHeader || string(image[:len(imageMagic)]) != imageMagic {
		return nil, fmt.Errorf("%d bytes that are no image of kernels: %w", len(image), driver.ErrDevice)
	}
	if v := le.Uint16(image[8:]); v != imageVersion {
		return nil, fmt.Errorf("an image of version %d, want %d: %w", v, imageVersion, driver.ErrDevice)
	}
	at := imageHeader + imageEntry*int(le.Uint16(image[10:]))
	if at > len(image) || at == imageHeader || indexSum(image[:at]) != le.Uint32(image[12:]) {
		return nil, fmt.Errorf("the index of the image is damaged: %w", driver.ErrDevice)
	}
	var codes []packedCode
	var before entry
	for index := image[imageHeader:at]; len(index) > 0; index = index[imageEntry:] {
		var c packedCode
		_, err := binary.Decode(index, le, &c.entry)
		e := &c.entry
		c.Code = Code{Arch: Arch{int(e.Number), e.Alone == 1}, PTX: e.Kind == kindPTX}
		if e.Kind == kindAMD {
			c.Code = Code{AMD: amdName(e.Number)}
		}
		if e.Offset != before.Offset { // a stream begins
			if before.End == before.Unpacked && uint64(e.Offset) == uint64(at) && uint64(e.Packed) <= uint64(len(image)-at) {
				at += int(e.Packed)
			} else {
				err = driver.ErrDevice
			}
			before = entry{Offset: e.Offset, Packed: e.Packed, Sum: e.Sum, Unpacked: e.Unpacked}
		}
		if err != nil || !e.fits(before) {
			return nil, fmt.Errorf("the index of the image is wrong for %v: %w", c.Code, driver.ErrDevice)
		}
		c.stream = image[e.Offset:][:e.Packed]
		codes = append(codes, c)
		before = *e
	}
	if at != len(image) || before.End != before.Unpacked {
		return nil, fmt.Errorf("an image of %d bytes, want %d: %w", len(image), at, driver.ErrDevice)
	}
	return codes, nil
}

// fits reports whether the numbers of a code fit together, and those of the code before it in its stream.
func (e entry) fits(before entry) bool {
	length := uint64(e.End) - uint64(e.Start)
	return e.Packed == before.Packed && e.Sum == before.Sum && e.Unpacked == before.Unpacked &&
		before.End == e.Start && e.Start <= e.End && e.End <= e.Unpacked &&
		uint64(e.Unpacked) <= maxRatio*uint64(e.Packed) && uint64(e.Unpacked) < math.MaxInt && uint64(e.Size) < math.MaxInt &&
		(uint64(e.Size) == length || e.Kind == kindPTX && uint64(e.Size) <= maxNumbers*length) &&
		e.First <= e.Behind && e.Behind <= e.Size && (e.Behind == 0 || e.Kind == kindCubin) &&
		e.Kind <= kindAMD && e.Alone <= 1 && (e.Alone == 0 || e.Kind != kindAMD)
}

// unpack returns the code with its Data. That of a code which is the second of its stream keeps the first in memory.
func (c packedCode) unpack() (Code, error) {
	if crc32c.Checksum(c.stream) != c.Sum {
		return Code{}, fmt.Errorf("%v is damaged: %w", c.Code, driver.ErrDevice)
	}
	data := make([]byte, int(c.End)+1)
	if err := unpackLZMA(data[:c.End], c.stream, int(c.Unpacked)); err != nil {
		return Code{}, fmt.Errorf("%v of %d bytes: %w: %w", c.Code, c.Size, err, driver.ErrDevice)
	}
	code := c.Code
	code.Data = data[c.Start:c.End]
	if c.PTX {
		var ok bool
		if code.Data, ok = unpackPTX(make([]byte, 0, int(c.Size)+1), code.Data, int(c.Size)); !ok {
			return Code{}, fmt.Errorf("%v is not of %d bytes: %w", c.Code, c.Size, driver.ErrDevice)
		}
	}
	restoreWords(code.Data[c.First:c.Behind])
	return code, nil
}

// Unpack returns the code of an image that a device of some compute capability runs, 86 for
// 8.6: the cubin of its own architecture, else the cubin of the highest earlier minor number
// with the same major number, else PTX of an earlier capability. It allocates and unpacks
// that code and the one before it in its stream. The error wraps driver.ErrNotBuilt if the image has none, driver.ErrDevice if it is
// damaged.
func Unpack(image []byte, capability int) (Code, error) {
	codes, err := readIndex(image)
	if err != nil {
		return Code{}, err
	}
	best := -1
	for i, c := range codes {
		if c.runsOn(capability) && (best < 0 || c.before(codes[best].Code)) {
			best = i
		}
	}
	if best >= 0 {
		return codes[best].unpack()
	}
	return Code{}, fmt.Errorf("no code for compute capability %d.%d, only %s: %w",
		capability/10, capability%10, names(codes), driver.ErrNotBuilt)
}

// names lists what an image has.
func names(codes []packedCode) string {
	var has []string
	for _, c := range codes {
		has = append(has, c.String())
	}
	return strings.Join(has, ", ")
}

// AMDArchs are AMD's architectures that an image has a code object for: the Instinct cards MI200
// and MI300, with waves of 64 lanes, and the Radeon cards RX 7900 and RX 9070, with waves of 32. The
// driver loads a code object on its own architecture alone.
var AMDArchs = []string{"gfx90a", "gfx942", "gfx1100", "gfx1201"}

// UnpackAMD returns the code object of an image for one of AMD's architectures, as the driver names
// it without the features that follow a colon: "gfx90a". It allocates and unpacks that code and the one before it in its stream. The
// error wraps driver.ErrNotBuilt if the image has none, driver.ErrDevice if it is damaged.
func UnpackAMD(image []byte, arch string) (Code, error) {
	codes, err := readIndex(image)
	if err != nil {
		return Code{}, err
	}
	for _, c := range codes {
		if c.AMD != "" && c.AMD == arch {
			return c.unpack()
		}
	}
	return Code{}, fmt.Errorf("no code for %s, only %s: %w", arch, names(codes), driver.ErrNotBuilt)
}

// UnpackPTX returns the part of an image's PTX that has a kernel and that a device of some compute
// capability can compile, and its number: an image may have its kernels in several parts, so that a
// device compiles those alone that are launched.
func UnpackPTX(image []byte, capability int, kernel string) (code Code, part int, err error) {
	packed, err := readIndex(image)
	if err != nil {
		return Code{}, 0, err
	}
	packed = slices.DeleteFunc(packed, func(c packedCode) bool { return !c.PTX || !c.runsOn(capability) })
	for i, p := range packed {
		if code, err = p.unpack(); err != nil {
			return Code{}, 0, err
		}
		if len(packed) == 1 || bytes.Contains(code.Data, []byte(".entry "+kernel+"(")) {
			return code, i, nil
		}
	}
	return Code{}, 0, fmt.Errorf("no PTX of %s for compute capability %d.%d: %w", kernel, capability/10, capability%10, driver.ErrNotBuilt)
}

// UnpackAll returns all codes of an image.
func UnpackAll(image []byte) ([]Code, error) {
	packed, err := readIndex(image)
	if err != nil {
		return nil, err
	}
	var codes []Code
	for _, p := range packed {
		c, err := p.unpack()
		if err != nil {
			return nil, err
		}
		codes = append(codes, c)
	}
	return codes, nil
}
