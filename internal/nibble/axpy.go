package nibble

import "github.com/snug-ml/snug/internal/cpu"

// Axpy adds multiples of vectors of codes, in whole blocks, to rows of sums:
//
//	y[r,i] += Σ_j a[j,r]·(Values[code j,i]·absmax)
//
// y has 1, 2, 4 or 8 rows, in groups of [Step] columns, see [Gather]. Each vector has rows
// elements of a and its absmax, side by side, and codes that begin stride bytes after those
// of the one before.
//
// The second factor is that which the decoders write in float32. Vectors are added in order,
// one by one, and whether a product is rounded before depends on the tier: the error of n
// vectors is at most n·2^-24·Σ|a|·|value| in a y that begins at 0.
type Axpy func(y, a []float32, rows int, packed []uint8, stride int, absmax []float32, block int, f *Format)

// Axpys holds the loop of every tier.
var Axpys cpu.Registry[Axpy]

func init() { Axpys.Add(cpu.Go, axpy) }

func axpy(y, a []float32, rows int, packed []uint8, stride int, absmax []float32, block int, f *Format) {
	for blocks := len(y) / rows / block; len(a) > 0; a = a[rows:] {
		for b, scale := range absmax[:blocks] {
			var values [16]float32
			for c, v := range f.Values {
				values[c] = v * scale
			}
			sums := y[b*rows*block : (b+1)*rows*block]
			for codes := packed[b*block/2 : (b+1)*block/2]; len(codes) > 0; codes = codes[Step/2:] {
				for _, s := range a[:rows] {
					even, odd := (*[Step / 2]float32)(sums), (*[Step / 2]float32)(sums[Step/2:])
					for k, c := range (*[Step / 2]uint8)(codes) {
						even[k] += s * values[c>>4]
						odd[k] += s * values[c&15]
					}
					sums = sums[Step:]
				}
			}
		}
		absmax = absmax[blocks:]
		packed = packed[min(stride, len(packed)):]
	}
}

// Gather writes row r of the sums of [Axpy] to x. A group of columns has its rows one after
// the other, and of each the even columns first.
func Gather(x, y []float32, r, rows int) {
	for i := 0; i < len(x); i += Step {
		from := (*[Step]float32)(y[i*rows+r*Step:])
		to := (*[Step]float32)(x[i:])
		for k := range Step / 2 {
			to[2*k], to[2*k+1] = from[k], from[Step/2+k]
		}
	}
}
