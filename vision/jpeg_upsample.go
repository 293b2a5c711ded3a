package vision

// plane has the samples of one colour, of ceil(image/h) columns and ceil(image/v) rows.
type plane struct {
	pix                   []byte
	width, height, stride int
	h, v                  int
}

func (p plane) row(y int) []byte {
	y = min(max(y, 0), p.height-1)
	return p.pix[y*p.stride:][:p.width]
}

// upsampled returns a row of the image, and perhaps some samples more, as libjpeg-turbo does with do_fancy_upsampling (jdsample.c): with the weights of
// a triangle for factors of 2, and by repetition for others. buffer has room for whole samples.
func (p plane) upsampled(buffer []byte, y int) []byte {
	switch [2]int{p.h, p.v} {
	case [2]int{1, 1}:
		return p.row(y)
	case [2]int{2, 1}:
		h2v1(buffer, p.row(y))
	case [2]int{2, 2}:
		h2v2(buffer, p, y)
	case [2]int{1, 2}:
		h1v2(buffer, p, y)
	default:
		repeat(buffer, p.row(y/p.v), p.h)
	}
	return buffer
}

func repeat(out, in []byte, times int) {
	for i, v := range in {
		for j := range times {
			out[times*i+j] = v
		}
	}
}

// fancyWidth is the narrowest plane whose columns libjpeg interpolates.
const fancyWidth = 3

// h2v1: out[2i] = (3 in[i] + in[i-1] + 1)/4, out[2i+1] = (3 in[i] + in[i+1] + 2)/4.
func h2v1(out, in []byte) {
	if len(in) < fancyWidth {
		repeat(out, in, 2)
		return
	}
	last := len(in) - 1
	for i, v := range in {
		out[2*i] = byte((3*int(v) + int(in[max(i-1, 0)]) + 1) >> 2)
		out[2*i+1] = byte((3*int(v) + int(in[min(i+1, last)]) + 2) >> 2)
	}
	out[0], out[2*last+1] = in[0], in[last]
}

// h2v2: sums s = 3 near + far of the two nearest rows, then out[2i] = (3 s[i] + s[i-1] + 8)/16, out[2i+1] = (3 s[i] + s[i+1] + 7)/16.
func h2v2(out []byte, p plane, y int) {
	if p.width < fancyWidth {
		repeat(out, p.row(y/2), 2)
		return
	}
	near, far := p.row(y/2), p.row(y/2-1+y%2*2)
	far, out = far[:len(near)], out[:2*len(near)]
	before := 3*int32(near[0]) + int32(far[0])
	here := before
	for i := range near {
		after := here
		if i+1 < len(near) {
			after = 3*int32(near[i+1]) + int32(far[i+1])
		}
		out[2*i] = byte((3*here + before + 8) >> 4)
		out[2*i+1] = byte((3*here + after + 7) >> 4)
		before, here = here, after
	}
}

// h1v2: out = (3 near + far + 1 or 2)/4.
func h1v2(out []byte, p plane, y int) {
	near, far := p.row(y/2), p.row(y/2-1+y%2*2)
	for i := range near {
		out[i] = byte((3*int(near[i]) + int(far[i]) + 1 + y%2) >> 2)
	}
}
