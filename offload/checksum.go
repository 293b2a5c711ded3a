package offload

import "hash/crc32"

// The checksum of a tensor does not depend on how it is cut: it follows from the
// checksums of its pages, without their bytes. A CRC is a polynomial over GF(2) modulo
// Castagnoli's polynomial. Its bits are reversed: the coefficient of x^0 is the highest
// bit. When n bytes follow, the CRC of the bytes before is multiplied by x^(8n) (Adler,
// zlib's crc32_combine).

// one is the polynomial 1.
const one = uint32(1) << 31

// product returns a·b.
func product(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			p ^= b
		}
		b = b>>1 ^ -(b&1)&crc32.Castagnoli // b·x
	}
	return p
}

// shift returns c·x^(8n).
func shift(c uint32, n int64) uint32 {
	for power := one >> 8; n > 0; n >>= 1 { // x^8, x^16, x^32, ...
		if n&1 != 0 {
			c = product(c, power)
		}
		power = product(power, power)
	}
	return c
}

// joined returns the checksum of bytes with checksum a followed by n bytes with checksum
// b.
func joined(a, b uint32, n int64) uint32 { return shift(a, n) ^ b }

// zeros returns the checksum of n zeros.
func zeros(n int64) uint32 { return ^shift(^uint32(0), n) }
