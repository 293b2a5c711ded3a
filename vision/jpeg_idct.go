package vision

// Constants of the inverse DCT, in fixed point of 13 bits.
const (
	dctBits = 13
	// passBits is what the columns keep more than a sample has.
	passBits = 2

	fix0_298631336 = 2446
	fix0_390180644 = 3196
	fix0_541196100 = 4433
	fix0_765366865 = 6270
	fix0_899976223 = 7373
	fix1_175875602 = 9633
	fix1_501321110 = 12299
	fix1_847759065 = 15137
	fix1_961570560 = 16069
	fix2_053119869 = 16819
	fix2_562915447 = 20995
	fix3_072711026 = 25172
)

// inverseDCT sets 8 rows of 8 samples of a plane from a block of coefficients. It is the integer form of the algorithm of Loeffler, Ligtenberg
// and Moschytz (ICASSP 1989), with the rounding of libjpeg's "islow": columns first, kept with passBits more, then rows. Numbers beyond 16 bits, which no
// image leads to, wrap or are clipped where they do in libjpeg-turbo's vectors of x86.
func inverseDCT(out []byte, stride int, b *[64]int16, quant *[64]int32) {
	var columns [64]int32
	flat := 0
	for x := range 8 {
		at := func(y int) int32 { return wrap(int32(b[8*y+x]) * quant[8*y+x]) }
		dc := at(0)
		if b[8+x]|b[16+x]|b[24+x]|b[32+x]|b[40+x]|b[48+x]|b[56+x] == 0 {
			flat++
			dc = clip16(dc << passBits)
			for y := 0; y < 64; y += 8 {
				columns[y+x] = dc
			}
			continue
		}
		const shift = dctBits - passBits
		s0, s1, s2, s3, s4, s5, s6, s7 := inverse8(dc, at(1), at(2), at(3), at(4), at(5), at(6), at(7), 1<<(shift-1))
		columns[x], columns[8+x], columns[16+x], columns[24+x] = clip16(s0>>shift), clip16(s1>>shift), clip16(s2>>shift), clip16(s3>>shift)
		columns[32+x], columns[40+x], columns[48+x], columns[56+x] = clip16(s4>>shift), clip16(s5>>shift), clip16(s6>>shift), clip16(s7>>shift)
	}
	if flat == 8 { // where the vectors have a shorter way
		for i := range columns {
			columns[i] = wrap(int32(b[i%8]) * quant[i%8] << passBits)
		}
	}
	for y := range 8 {
		const shift = dctBits + passBits + 3 // a sample is an eighth
		in, p := columns[8*y:][:8], out[y*stride:][:8]
		s0, s1, s2, s3, s4, s5, s6, s7 := inverse8(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], 1<<(shift-1))
		p[0], p[1], p[2], p[3] = sample(s0>>shift+128), sample(s1>>shift+128), sample(s2>>shift+128), sample(s3>>shift+128)
		p[4], p[5], p[6], p[7] = sample(s4>>shift+128), sample(s5>>shift+128), sample(s6>>shift+128), sample(s7>>shift+128)
	}
}

func wrap(x int32) int32 { return int32(int16(x)) }

func clip16(x int32) int32 { return min(max(x, -1<<15), 1<<15-1) }

// sample returns a level of 8 bits, clipped.
func sample(x int32) byte {
	if uint32(x) > 255 {
		return byte(^x >> 31) // 0 below, 255 above
	}
	return byte(x)
}

// flatBlock is inverseDCT of a block that has no other coefficient than DC.
func flatBlock(out []byte, stride int, dc int32) {
	v := sample((wrap(dc<<passBits)+1<<(passBits+2))>>(passBits+3) + 128)
	for y := range 8 {
		p := out[y*stride:][:8]
		for x := range p {
			p[x] = v
		}
	}
}

// inverse8 is the transform of 8 values, times sqrt(8) and 1<<dctBits, plus round.
func inverse8(c0, c1, c2, c3, c4, c5, c6, c7, round int32) (s0, s1, s2, s3, s4, s5, s6, s7 int32) {
	// Even: a rotation by pi/8 of c2 and c6, and sums.
	z := (c2 + c6) * fix0_541196100
	low, high := z-c6*fix1_847759065, z+c2*fix0_765366865
	sum, difference := wrap(c0+c4)<<dctBits+round, wrap(c0-c4)<<dctBits+round
	e0, e1, e2, e3 := sum+high, difference+low, difference-low, sum-high

	// Odd: what the products share is computed once.
	c73, c51 := wrap(c7+c3), wrap(c5+c1)
	z = (c73 + c51) * fix1_175875602
	z73, z51 := z-c73*fix1_961570560, z-c51*fix0_390180644
	z71, z53 := (c7+c1)*fix0_899976223, (c5+c3)*fix2_562915447
	o3 := c7*fix0_298631336 - z71 + z73
	o2 := c5*fix2_053119869 - z53 + z51
	o1 := c3*fix3_072711026 - z53 + z73
	o0 := c1*fix1_501321110 - z71 + z51
	return e0 + o0, e1 + o1, e2 + o2, e3 + o3, e3 - o3, e2 - o2, e1 - o1, e0 - o0
}
