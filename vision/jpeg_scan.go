package vision

import (
	"errors"
	"io"
)

// errHuffman is of bits that are no code of a table.
var errHuffman = errors.New("damaged Huffman code")

// jpegScan is a scan of some components that is being read.
type jpegScan struct {
	bitReader
	components   []scanComponent
	across, down int // units

	// Of progressive files: the coefficients from first to last, as the file orders them, without their lowest bits. A scan that refines
	// adds the next bit. run is in how many blocks to come these coefficients are 0.
	first, last, low int
	refines          bool
	run              int

	block [64]int16 // of a sequential file
}

type scanComponent struct {
	*jpegComponent
	dc, ac *huffman
	before int32 // DC of the block before
}

// scanHeader reads the header of a scan (B.2.3).
func (d *jpegDecoder) scanHeader(b []byte) (*jpegScan, error) {
	if d.components == nil {
		return nil, errors.New("scan before the frame header")
	}
	if len(b) < 4 || b[0] < 1 || int(b[0]) > len(d.components) || len(b) != 4+2*int(b[0]) {
		return nil, errors.New("scan header of a wrong length")
	}
	s := &jpegScan{bitReader: bitReader{file: d.file, at: d.at}, last: 63}
	n, blocks := int(b[0]), 0
	for i := range n {
		c, dc, ac := d.component(b[1+2*i]), b[2+2*i]>>4, b[2+2*i]&15
		if c == nil || dc > 3 || ac > 3 {
			return nil, errors.New("scan of a component or a table that is none")
		}
		for _, other := range s.components {
			if other.jpegComponent == c {
				return nil, errors.New("scan with a component twice")
			}
		}
		blocks += c.h * c.v
		s.components = append(s.components, scanComponent{jpegComponent: c, dc: &d.dc[dc], ac: &d.ac[ac]})
	}
	s.across, s.down = s.components[0].width, s.components[0].height
	if n > 1 {
		s.across, s.down = divUp(d.width, 8*d.hMax), divUp(d.height, 8*d.vMax)
		if blocks > 10 {
			return nil, errors.New("scan with more than 10 blocks a unit")
		}
	}
	if d.progressive {
		b = b[1+2*n:]
		high := int(b[2] >> 4)
		s.first, s.last, s.low, s.refines = int(b[0]), int(b[1]), int(b[2]&15), high != 0
		if s.first == 0 && s.last != 0 || s.first > s.last || s.last > 63 || s.first > 0 && n > 1 || s.low > 13 || s.refines && high != s.low+1 {
			return nil, errors.New("scan of coefficients that do not go together")
		}
	}
	return s, nil
}

// scan reads a scan with its header.
func (d *jpegDecoder) scan(header []byte) error {
	if d.scans++; d.scans > jpegScans {
		return errors.New("too many scans")
	}
	s, err := d.scanHeader(header)
	if err != nil {
		return err
	}
	if s.first == 0 && s.across*s.down/8 > len(d.file)-d.at { // a unit has at least a bit
		return io.ErrUnexpectedEOF
	}
	for _, c := range s.components {
		if err := d.prepare(s, c); err != nil {
			return err
		}
	}
	err = s.units(s.decoder(d.progressive), d.interval)
	d.at = s.at
	return err
}

// prepare checks the tables of a component for a scan, and takes its memory before the first.
func (d *jpegDecoder) prepare(s *jpegScan, c scanComponent) error {
	needDC, needAC := s.first == 0 && !s.refines, s.last > 0
	if needDC && (!c.dc.defined || c.dc.largest > 15) || needAC && !c.ac.defined {
		return errors.New("missing or damaged Huffman table")
	}
	if c.quant != nil {
		return nil
	}
	if c.quant = d.quant[c.table]; c.quant == nil {
		return errors.New("missing quantization table")
	}
	if d.progressive {
		c.coeffs = make([][64]int16, c.stride*c.rows)
	} else {
		c.pix = make([]byte, 64*c.stride*c.rows)
	}
	return nil
}

// units reads the units of a scan: a block of one component, or of more the blocks of all that cover the same pixels (A.2).
// interval is how many lie between restarts, 0 for no restarts.
func (s *jpegScan) units(decode blockDecoder, interval int) error {
	left, restarts := interval, 0
	for y := range s.down {
		for x := range s.across {
			if interval > 0 {
				if left == 0 {
					if err := s.restart(restarts); err != nil {
						return err
					}
					left, restarts = interval, restarts+1
				}
				left--
			}
			if err := s.unit(decode, x, y); err != nil {
				return err
			}
			if s.overrun() {
				return io.ErrUnexpectedEOF
			}
		}
	}
	return nil
}

// unit reads a unit.
func (s *jpegScan) unit(decode blockDecoder, x, y int) error {
	if len(s.components) == 1 {
		return decode(s, &s.components[0], x, y)
	}
	for i := range s.components {
		c := &s.components[i]
		for v := range c.v {
			for h := range c.h {
				if err := decode(s, c, x*c.h+h, y*c.v+v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// restart goes behind the marker that ends an interval, the n-th of the scan.
func (s *jpegScan) restart(n int) error {
	d := jpegDecoder{file: s.file, at: s.at}
	marker, err := d.marker()
	if err != nil {
		return err
	}
	if marker != jpegRST0+byte(n%8) {
		return errors.New("missing restart marker")
	}
	s.bitReader = bitReader{file: s.file, at: d.at}
	s.run = 0
	for i := range s.components {
		s.components[i].before = 0
	}
	return nil
}

// blockDecoder reads the block of a component in a column and a row of blocks.
type blockDecoder func(s *jpegScan, c *scanComponent, x, y int) error

func (s *jpegScan) decoder(progressive bool) blockDecoder {
	switch {
	case !progressive:
		return (*jpegScan).whole
	case s.first == 0 && s.refines:
		return (*jpegScan).refineDC
	case s.first == 0:
		return (*jpegScan).firstDC
	case s.refines:
		return (*jpegScan).refineAC
	}
	return (*jpegScan).firstAC
}

// whole reads a block of a sequential file (F.2.2) and computes its samples.
func (s *jpegScan) whole(c *scanComponent, x, y int) error {
	if err := s.readDC(c); err != nil {
		return err
	}
	b := &s.block
	*b = [64]int16{int16(c.before)}
	flat := true
	h, bits, n := c.ac, s.bits, s.n
	for k := 1; k < 64; k++ {
		if n < enough {
			s.bits, s.n = bits, n
			s.fill()
			bits, n = s.bits, s.n
		}
		e := h.short[bits>>(64-shortCode)]
		if e == 0 {
			if e = h.long(bits); e == 0 {
				return errHuffman
			}
		}
		bits <<= uint(e>>8) & 63
		n -= int(e >> 8)
		run, size := int(e>>4&15), uint(e&15)
		k += run
		if size == 0 {
			if run < 15 {
				break
			}
			continue
		}
		b[zigzag[k]&63] = int16(signed(bits, size))
		bits <<= size
		n -= int(size)
		flat = false
	}
	s.bits, s.n = bits, n
	if x < c.width && y < c.height {
		at := c.pix[8*(8*y*c.stride+x):]
		if flat {
			flatBlock(at, 8*c.stride, c.before*c.quant[0])
		} else {
			inverseDCT(at, 8*c.stride, b, c.quant)
		}
	}
	return nil
}

// readDC reads the difference of a block's DC from the one before.
func (s *jpegScan) readDC(c *scanComponent) error {
	size, ok := s.symbol(c.dc)
	if !ok {
		return errHuffman
	}
	if size > 0 {
		c.before += signed(s.bits, uint(size))
		s.bits <<= size & 63
		s.n -= int(size)
	}
	return nil
}
