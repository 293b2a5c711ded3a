package vision

import "errors"

// at returns the coefficients of a block.
func (c *scanComponent) at(x, y int) *[64]int16 { return &c.coeffs[y*c.stride+x] }

// firstDC reads the upper bits of a DC (G.1.2.1).
func (s *jpegScan) firstDC(c *scanComponent, x, y int) error {
	if err := s.readDC(c); err != nil {
		return err
	}
	c.at(x, y)[0] = int16(c.before << s.low)
	return nil
}

// refineDC reads a bit of a DC.
func (s *jpegScan) refineDC(c *scanComponent, x, y int) error {
	c.at(x, y)[0] |= int16(s.take(1) << s.low)
	return nil
}

// firstAC reads the upper bits of coefficients (G.1.2.2).
func (s *jpegScan) firstAC(c *scanComponent, x, y int) error {
	if s.run > 0 {
		s.run--
		return nil
	}
	b := c.at(x, y)
	for k := s.first; k <= s.last; k++ {
		symbol, ok := s.symbol(c.ac)
		if !ok {
			return errHuffman
		}
		run, size := int(symbol>>4), uint(symbol&15)
		if size == 0 && run < 15 {
			s.run = 1<<run - 1 + int(s.take(run))
			return nil
		}
		k += run
		if size > 0 {
			b[zigzag[k]&63] = int16(signed(s.bits, size) << s.low)
			s.bits <<= size & 63
			s.n -= int(size)
		}
	}
	return nil
}

// refineAC reads a bit of coefficients that are not 0, and those that begin with this bit (G.1.2.3).
func (s *jpegScan) refineAC(c *scanComponent, x, y int) error {
	b := c.at(x, y)
	k := s.first
	for s.run == 0 && k <= s.last {
		symbol, ok := s.symbol(c.ac)
		if !ok {
			return errHuffman
		}
		run, value := int(symbol>>4), int16(0)
		switch symbol & 15 {
		case 0:
			if run < 15 {
				s.run = 1<<run + int(s.take(run))
				continue
			}
		case 1:
			value = int16((2*s.take(1) - 1) << s.low)
		default:
			return errHuffman
		}
		if k = s.refine(b, k, run); k > s.last {
			return errors.New("run beyond the coefficients of a scan")
		}
		if value != 0 {
			b[zigzag[k]] = value
		}
		k++
	}
	if s.run > 0 {
		s.run--
		s.refine(b, k, 64)
	}
	return nil
}

// refine reads a bit of every coefficient from k on that is not 0, up to the place behind so many that are, and returns this place.
func (s *jpegScan) refine(b *[64]int16, k, zeros int) int {
	for ; k <= s.last; k++ {
		v := &b[zigzag[k]&63]
		switch {
		case *v == 0:
			if zeros == 0 {
				return k
			}
			zeros--
		case s.take(1) == 0 || *v>>s.low&1 != 0:
		case *v > 0:
			*v += 1 << s.low
		default:
			*v -= 1 << s.low
		}
	}
	return k
}

// finish computes the samples of a progressive file, and those of components without a scan: gray.
func (d *jpegDecoder) finish() error {
	for i := range d.components {
		c := &d.components[i]
		switch {
		case c.quant == nil:
			c.pix = make([]byte, 64*c.stride*c.rows)
			for i := range c.pix {
				c.pix[i] = 128
			}
		case d.progressive:
			c.pix = make([]byte, 64*c.stride*c.rows)
			for y := range c.height {
				for x := range c.width {
					inverseDCT(c.pix[8*(8*y*c.stride+x):], 8*c.stride, &c.coeffs[y*c.stride+x], c.quant)
				}
			}
			c.coeffs = nil
		}
	}
	return nil
}
