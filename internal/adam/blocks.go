package adam

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/half"
)

// Blocks8 is the moments of a run of elements in 8-bit blocks. Element i of a
// moment is the value of Codes[i] of its encoder, times
// Absmax[i/Block]. The last block may be partial.
type Blocks8 struct {
	Codes1, Codes2     []uint8
	Absmax1, Absmax2   []float32
	Encoder1, Encoder2 *blockq.Encoder
	Block              int
}

// From returns the blocks from b on.
func (s Blocks8) From(b int) Blocks8 {
	i := min(b*s.Block, len(s.Codes1))
	s.Codes1, s.Codes2 = s.Codes1[i:], s.Codes2[i:]
	s.Absmax1, s.Absmax2 = s.Absmax1[b:], s.Absmax2[b:]
	return s
}

// To returns the blocks before b.
func (s Blocks8) To(b int) Blocks8 {
	i := min(b*s.Block, len(s.Codes1))
	s.Codes1, s.Codes2 = s.Codes1[:i], s.Codes2[:i]
	s.Absmax1, s.Absmax2 = s.Absmax1[:b], s.Absmax2[:b]
	return s
}

// Scratch8 returns how many elements of scratch a step of blocks takes.
func Scratch8(block int) int { return 6 * block }

// blockwise makes a Step8 of an Update.
func blockwise(update func(c Coef, p, m, v, g []float32)) func(c Coef, p, g snug.View, lo, hi int, s Blocks8, tile []float32) {
	return func(c Coef, p, g snug.View, lo, hi int, s Blocks8, tile []float32) {
		k, t := blockq.Registry.Best(), s.Block
		for ; lo < hi; lo, s = lo+t, s.From(1) {
			n := min(t, hi-lo)
			m, v := tile[:n], tile[t:t+n]
			codes1, codes2 := s.Codes1[:n], s.Codes2[:n]
			k.Decode(m, codes1, s.Encoder1.Values(), s.Absmax1[:1], t)
			k.Decode(v, codes2, s.Encoder2.Values(), s.Absmax2[:1], t)
			pt := half.Floats(p, lo, tile[2*t:2*t+n])
			update(c, pt, m, v, half.Floats(g, lo, tile[3*t:3*t+n]))
			half.Flush(p, lo, pt)
			s.Absmax1[0], s.Absmax2[0] = k.AbsMax(m), k.AbsMax(v)
			s.Encoder1.Encode(codes1, m, s.Absmax1[0])
			s.Encoder2.Encode(codes2, v, s.Absmax2[0])
		}
	}
}
