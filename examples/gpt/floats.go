package main

import (
	"encoding/binary"
	"io"
	"math"
)

// writeFloats writes x as little-endian IEEE 754 numbers, a buffer at a time.
func writeFloats(w io.Writer, x []float32) error {
	var buf [4096]byte
	for len(x) > 0 {
		n := min(len(x), len(buf)/4)
		for i, f := range x[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(f))
		}
		if _, err := w.Write(buf[:4*n]); err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

// readFloats fills x with what writeFloats wrote.
func readFloats(r io.Reader, x []float32) error {
	var buf [4096]byte
	for len(x) > 0 {
		n := min(len(x), len(buf)/4)
		if _, err := io.ReadFull(r, buf[:4*n]); err != nil {
			return err
		}
		for i := range x[:n] {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4*i:]))
		}
		x = x[n:]
	}
	return nil
}
