package ggml

// Blocks of 256 elements in groups: the block has a scale d, in some types one for minima too, and each group a
// number s of 4 to 8 bits that multiplies it, in these types two.
//
//	q2_k, q4_k, q5_k:  x = (d s) q - (m n)
//	q3_k, q6_k:        x = (d s) q

// decodeQ2K: 16 bytes with s and n of 4 bits, the numbers of 2 bits, d and m. Byte l of 32 has elements l, l+32, l+64 and
// l+96 of a half.
func decodeQ2K(dst []float32, src []byte) {
	for ; len(src) >= 84 && len(dst) >= SuperBlock; dst, src = dst[SuperBlock:], src[84:] {
		b, x := (*[84]byte)(src), (*[SuperBlock]float32)(dst)
		d, m := scaleAt(b[80:82]), scaleAt(b[82:84])
		for g := range 16 {
			ds, mn := d*float32(b[g]&15), m*float32(b[g]>>4)
			q, y, shift := (*[16]byte)(b[16+g/8*32+g%2*16:]), (*[16]float32)(x[16*g:]), g%8/2*2
			for j := range y {
				y[j] = float32(ds*float32(q[j]>>shift&3)) - mn
			}
		}
	}
}

// decodeQ3K: the third bits, the others as in q2_k, 12 bytes with s, and d.
func decodeQ3K(dst []float32, src []byte) {
	for ; len(src) >= 110 && len(dst) >= SuperBlock; dst, src = dst[SuperBlock:], src[110:] {
		b, x := (*[110]byte)(src), (*[SuperBlock]float32)(dst)
		d := scaleAt(b[108:110])
		for g := range 16 {
			low := b[96+g%8] >> (g / 8 * 4) & 15
			ds := d * float32(int32(low|b[104+g%4]>>(g/4*2)&3<<4)-32)
			high, q, y := (*[16]byte)(b[g%2*16:]), (*[16]byte)(b[32+g/8*32+g%2*16:]), (*[16]float32)(x[16*g:])
			bit, shift := g/2, g%8/2*2
			for j := range y {
				y[j] = ds * float32(int32(q[j]>>shift&3|high[j]>>bit&1<<2)-4)
			}
		}
	}
}

// sixBits returns s and n of the 8 groups from the 12 bytes of q4_k and q5_k.
func sixBits(b *[12]byte) (s, n [8]byte) {
	for g := range 4 {
		s[g], n[g] = b[g]&63, b[g+4]&63
		s[g+4], n[g+4] = b[g+8]&15|b[g]>>6<<4, b[g+8]>>4|b[g+4]>>6<<4
	}
	return s, n
}

// decodeQ4K: d, m, s and n in 12 bytes, the numbers of 4 bits. Byte l of 32 has element l of two groups.
func decodeQ4K(dst []float32, src []byte) {
	for ; len(src) >= 144 && len(dst) >= SuperBlock; dst, src = dst[SuperBlock:], src[144:] {
		b, x := (*[144]byte)(src), (*[SuperBlock]float32)(dst)
		d, m := scaleAt(b[:2]), scaleAt(b[2:4])
		s, n := sixBits((*[12]byte)(b[4:]))
		for g := 0; g < 8; g += 2 {
			d0, m0 := d*float32(s[g]), m*float32(n[g])
			d1, m1 := d*float32(s[g+1]), m*float32(n[g+1])
			q, y := (*[32]byte)(b[16+16*g:]), (*[64]float32)(x[32*g:])
			for j, q := range q {
				y[j] = float32(d0*float32(q&15)) - m0
				y[j+32] = float32(d1*float32(q>>4)) - m1
			}
		}
	}
}

// decodeQ5K: as q4_k, with the fifth bits before the others: bit g of byte l is element l of group g.
func decodeQ5K(dst []float32, src []byte) {
	for ; len(src) >= 176 && len(dst) >= SuperBlock; dst, src = dst[SuperBlock:], src[176:] {
		b, x := (*[176]byte)(src), (*[SuperBlock]float32)(dst)
		d, m := scaleAt(b[:2]), scaleAt(b[2:4])
		s, n := sixBits((*[12]byte)(b[4:]))
		high := (*[32]byte)(b[16:])
		for g := 0; g < 8; g += 2 {
			d0, m0 := d*float32(s[g]), m*float32(n[g])
			d1, m1 := d*float32(s[g+1]), m*float32(n[g+1])
			q, y := (*[32]byte)(b[48+16*g:]), (*[64]float32)(x[32*g:])
			for j, q := range q {
				h := high[j] >> g
				y[j] = float32(d0*float32(q&15|h&1<<4)) - m0
				y[j+32] = float32(d1*float32(q>>4|h&2<<3)) - m1
			}
		}
	}
}

// decodeQ6K: in each half, 64 bytes with 4 lower bits of elements l, l+32 and l+64, l+96, then, for both halves, 2 upper bits of
// elements l, l+32, l+64 and l+96, s of 8 bits, and d.
func decodeQ6K(dst []float32, src []byte) {
	for ; len(src) >= 210 && len(dst) >= SuperBlock; dst, src = dst[SuperBlock:], src[210:] {
		b := (*[210]byte)(src)
		d := scaleAt(b[208:210])
		for h := range 2 {
			low, high, y := (*[64]byte)(b[64*h:]), (*[32]byte)(b[128+32*h:]), (*[128]float32)(dst[128*h:])
			var ds [8]float32
			for g, s := range b[192+8*h : 200+8*h] {
				ds[g] = d * float32(int8(s))
			}
			for l, u := range high {
				g := l / 16
				y[l] = ds[g] * float32(int32(low[l]&15|u&3<<4)-32)
				y[l+32] = ds[g+2] * float32(int32(low[l+32]&15|u>>2&3<<4)-32)
				y[l+64] = ds[g+4] * float32(int32(low[l]>>4|u>>4&3<<4)-32)
				y[l+96] = ds[g+6] * float32(int32(low[l+32]>>4|u>>6<<4)-32)
			}
		}
	}
}
