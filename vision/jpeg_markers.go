package vision

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
)

// Markers of ITU-T T.81, table B.1.
const (
	jpegSOF0  = 0xc0 // start of frame: baseline, extended, progressive
	jpegSOF1  = 0xc1
	jpegSOF2  = 0xc2
	jpegDHT   = 0xc4 // Huffman tables
	jpegRST0  = 0xd0 // the first of eight that restart a scan
	jpegEOI   = 0xd9 // end of image
	jpegSOS   = 0xda // start of scan
	jpegDQT   = 0xdb // quantization tables
	jpegDRI   = 0xdd // interval of restarts
	jpegAPP0  = 0xe0 // JFIF; the first of 16
	jpegAPP14 = 0xee // Adobe
	jpegCOM   = 0xfe // comment
)

// jpegScans is the most scans of a file: each may touch every block for a few bytes. Encoders write ten or so.
const jpegScans = 500

// jpegDecoder reads a JPEG file, which is in memory.
type jpegDecoder struct {
	file []byte
	at   int // what was read of it

	width, height int
	progressive   bool
	components    []jpegComponent
	hMax, vMax    int // the largest sampling factors

	quant    [4]*[64]int32 // quantization tables, row by row; nil if not defined
	dc, ac   [4]huffman
	interval int // MCUs between restarts, 0 for none
	scans    int

	jfif, adobe bool
	transform   byte // of Adobe's marker
}

// jpegComponent is a colour of a frame.
type jpegComponent struct {
	id, table     byte // table is that of quantization
	h, v          int  // sampling factors
	width, height int  // blocks that hold samples of the image
	stride, rows  int  // blocks with those that fill the last MCUs

	quant  *[64]int32  // the table that was in force at the component's first scan; nil before it
	coeffs [][64]int16 // of a progressive file
	pix    []byte      // 8 stride columns, 8 rows rows
}

// read takes segments up to the end of the image, or up to the frame header.
func (d *jpegDecoder) read(headerOnly bool) error {
	for {
		marker, err := d.marker()
		switch {
		case err != nil:
			return err
		case marker == jpegEOI:
			if d.scans == 0 {
				return errors.New("no scan")
			}
			return d.finish()
		case marker >= jpegRST0 && marker < jpegRST0+8: // behind a scan: harmless
			continue
		}
		body, err := d.segment()
		if err != nil {
			return err
		}
		switch marker {
		case jpegSOF0, jpegSOF1, jpegSOF2:
			if err = d.frame(marker, body); err == nil && headerOnly {
				return nil
			}
		case jpegDHT:
			err = d.huffmanTables(body)
		case jpegDQT:
			err = d.quantTables(body)
		case jpegDRI:
			if len(body) != 2 {
				return errors.New("restart interval of a wrong length")
			}
			d.interval = int(binary.BigEndian.Uint16(body))
		case jpegSOS:
			err = d.scan(body)
		case jpegAPP0:
			d.jfif = d.jfif || len(body) >= 14 && bytes.HasPrefix(body, []byte("JFIF\x00"))
		case jpegAPP14:
			if len(body) >= 12 && bytes.HasPrefix(body, []byte("Adobe")) {
				d.adobe, d.transform = true, body[11]
			}
		default:
			if (marker < jpegAPP0 || marker > jpegAPP0+15) && marker != jpegCOM {
				return fmt.Errorf("unsupported JPEG feature: marker %#x", marker)
			}
		}
		if err != nil {
			return err
		}
	}
}

// marker returns the next marker. It skips fill bytes, and what a scan left.
func (d *jpegDecoder) marker() (byte, error) {
	for {
		n := bytes.IndexByte(d.file[d.at:], 0xff)
		if n < 0 {
			return 0, io.ErrUnexpectedEOF
		}
		d.at += n
		for d.at < len(d.file) && d.file[d.at] == 0xff {
			d.at++
		}
		if d.at == len(d.file) {
			return 0, io.ErrUnexpectedEOF
		}
		d.at++
		if m := d.file[d.at-1]; m != 0 {
			return m, nil
		}
	}
}

// segment returns the bytes behind a marker, of which the first two say how many.
func (d *jpegDecoder) segment() ([]byte, error) {
	rest := d.file[d.at:]
	if len(rest) < 2 {
		return nil, io.ErrUnexpectedEOF
	}
	n := int(binary.BigEndian.Uint16(rest))
	switch {
	case n < 2:
		return nil, errors.New("short segment")
	case n > len(rest):
		return nil, io.ErrUnexpectedEOF
	}
	d.at += n
	return rest[2:n], nil
}

// frame reads a frame header (B.2.2).
func (d *jpegDecoder) frame(marker byte, b []byte) error {
	switch {
	case d.components != nil:
		return errors.New("two frame headers")
	case len(b) < 6 || len(b) != 6+3*int(b[5]):
		return errors.New("frame header of a wrong length")
	case b[0] != 8:
		return fmt.Errorf("unsupported JPEG feature: precision of %d bits", b[0])
	case b[5] != 1 && b[5] != 3 && b[5] != 4:
		return fmt.Errorf("unsupported JPEG feature: number of components, %d", b[5])
	}
	d.progressive = marker == jpegSOF2
	d.height, d.width = int(binary.BigEndian.Uint16(b[1:])), int(binary.BigEndian.Uint16(b[3:]))
	d.components = make([]jpegComponent, b[5])
	for i := range d.components {
		f := b[6+3*i:]
		c := jpegComponent{id: f[0], table: f[2], h: int(f[1] >> 4), v: int(f[1] & 15)}
		if c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 || c.table > 3 {
			return errors.New("component with a sampling factor or a table that is none")
		}
		if d.component(c.id) != nil {
			return errors.New("two components of a name")
		}
		if len(d.components) == 1 {
			c.h, c.v = 1, 1 // the order of blocks is the same for all factors
		}
		d.hMax, d.vMax = max(d.hMax, c.h), max(d.vMax, c.v)
		d.components[i] = c
	}
	total := int64(0)
	for i := range d.components {
		c := &d.components[i]
		if d.hMax%c.h != 0 || d.vMax%c.v != 0 {
			return errors.New("unsupported JPEG feature: sampling factors that do not divide each other")
		}
		c.width, c.height = divUp(d.width*c.h, 8*d.hMax), divUp(d.height*c.v, 8*d.vMax)
		c.stride, c.rows = divUp(d.width, 8*d.hMax)*c.h, divUp(d.height, 8*d.vMax)*c.v
		total += int64(c.stride) * int64(c.rows) * 64
	}
	if 2*total > math.MaxInt {
		return fmt.Errorf("%d samples: %w", total, snug.ErrNoMemory)
	}
	return nil
}

func divUp(a, b int) int { return (a + b - 1) / b }

// component returns the component of a name among those that were read.
func (d *jpegDecoder) component(id byte) *jpegComponent {
	for i := range d.components {
		if c := &d.components[i]; c.h > 0 && c.id == id {
			return c
		}
	}
	return nil
}

// zigzag has the places of coefficients in a block in the order of the file, row by row. Runs may lead up to 15 beyond the last.
var zigzag = func() (z [64 + 16]byte) {
	x, y := 0, 0
	for i := range 64 {
		z[i] = byte(8*y + x)
		switch up := (x+y)%2 == 0; {
		case up && x == 7, !up && y < 7 && x == 0:
			y++
		case up && y == 0, !up && y == 7:
			x++
		case up:
			x, y = x+1, y-1
		default:
			x, y = x-1, y+1
		}
	}
	for i := 64; i < len(z); i++ {
		z[i] = 63
	}
	return z
}()

// quantTables reads quantization tables of 8 or 16 bits (B.2.4.1).
func (d *jpegDecoder) quantTables(b []byte) error {
	for len(b) > 0 {
		bytes, to := int(b[0]>>4)+1, b[0]&15
		if bytes > 2 || to > 3 || len(b) < 1+64*bytes {
			return errors.New("quantization table of a wrong type or length")
		}
		table := new([64]int32)
		for i := range table {
			v := int32(b[1+i*bytes])
			if bytes == 2 {
				v = v<<8 | int32(b[2+i*bytes])
			}
			table[zigzag[i]] = v
		}
		d.quant[to] = table
		b = b[1+64*bytes:]
	}
	return nil
}

// huffmanTables reads Huffman tables (B.2.4.2).
func (d *jpegDecoder) huffmanTables(b []byte) error {
	for len(b) > 0 {
		if len(b) < 17 {
			return errors.New("too short for a Huffman table")
		}
		class, to, counts := b[0]>>4, b[0]&15, b[1:17]
		n := 0
		for _, c := range counts {
			n += int(c)
		}
		if class > 1 || to > 3 || n > 256 || len(b) < 17+n {
			return errors.New("damaged Huffman table")
		}
		if class == 0 {
			d.dc[to].set(counts, b[17:17+n])
		} else {
			d.ac[to].set(counts, b[17:17+n])
		}
		b = b[17+n:]
	}
	return nil
}
