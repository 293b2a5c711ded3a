package main

import (
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/gomlx/gomlx/examples/mnist"
)

// segments are the lit segments of the digits on a display of seven: top, upper left, upper right, middle, lower left,
// lower right, bottom.
var segments = [10]string{"1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"}

// draw draws a digit somewhere in an image, with a stroke of some brightness and noise around it.
func draw(r *rand.Rand, digit int) (image [mnist.Height * mnist.Width]byte) {
	for i := range image {
		image[i] = byte(r.IntN(40))
	}
	const long, wide = 8, 3 // a segment
	x0, y0, bright := 6+r.IntN(6), 3+r.IntN(4), 160+r.IntN(80)
	fill := func(x, y, w, h int) {
		for i := range h {
			for j := range w {
				image[(y+i)*mnist.Width+x+j] = byte(bright + r.IntN(16))
			}
		}
	}
	for i, lit := range segments[digit] {
		if lit == '0' {
			continue
		}
		switch i {
		case 0, 3, 6: // horizontal
			fill(x0, y0+i/3*long, long+wide, wide)
		case 1, 4: // left
			fill(x0, y0+i/3*long, wide, long+wide)
		default:
			fill(x0+long, y0+i/3*long, wide, long+wide)
		}
	}
	return image
}

// writeFiles writes drawn digits in the format and under the names of MNIST.
func writeFiles(dir string, train, test int) error {
	for i, set := range []struct {
		images, labels string
		n              int
	}{{mnist.TrainImagesFilename, mnist.TrainLabelsFilename, train}, {mnist.TestImagesFilename, mnist.TestLabelsFilename, test}} {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		images := binary.BigEndian.AppendUint32(nil, mnist.ImageMagic)
		for _, n := range []int{set.n, mnist.Height, mnist.Width} {
			images = binary.BigEndian.AppendUint32(images, uint32(n))
		}
		labels := binary.BigEndian.AppendUint32(nil, mnist.LabelMagic)
		labels = binary.BigEndian.AppendUint32(labels, uint32(set.n))
		for range set.n {
			digit := r.IntN(10)
			image := draw(r, digit)
			images, labels = append(images, image[:]...), append(labels, byte(digit))
		}
		if err := errors.Join(pack(filepath.Join(dir, set.images), images), pack(filepath.Join(dir, set.labels), labels)); err != nil {
			return err
		}
	}
	return nil
}

func pack(path string, data []byte) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	_, err = io.Writer(z).Write(data)
	return errors.Join(err, z.Close(), f.Close())
}
