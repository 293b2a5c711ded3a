package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
	"github.com/snug-ml/snug/internal/_gen/philox/rounds"
)

// dropout has words in order.
func dropout(k kind) {
	r := beginRows(k, "dropout", "func(dst, src []T, words []uint32, threshold uint32, scale float32, stream bool)",
		[]string{"words"}, "dst", "src", "words")
	r.inOrder = true
	r.loadPacking()
	r.streamed("dst")
	threshold, scale := r.scalar("threshold"), r.scalar("scale")
	r.pass("main", 1, func(u int) {
		x, words := r.fetch("src", u), r.get("words", u)
		each(x, func(v int, x reg.VecVirtual) {
			if k.wide {
				kept := K()
				VPCMPUD(noLess, threshold, words[v], kept)
				VMULPS_Z(scale, x, kept, x)
				return
			}
			most := YMM()
			VMULPS(scale, x, x)
			VPMAXUD(threshold, words[v], most)
			VPCMPEQD(most, words[v], most) // the word is the greater
			VANDPS(most, x, x)
		})
		r.put(x, "dst", u)
	})
	r.end()
}

// drawn is how many units dropoutDrawn does together: the rounds of their words take turns.
const drawn = 4

// dropoutDrawn draws the words itself, which takes as long as memory: both happen at the same time.
func dropoutDrawn(k kind) {
	r := beginRows(k, "dropoutDrawn", "func(dst, src []T, seed, tensor, first uint64, threshold uint32, scale float32, stream bool)",
		nil, "dst", "src")
	r.loadPacking()
	r.streamed("dst")
	threshold, scale := r.scalar("threshold"), r.scalar("scale")
	g := rounds.New(vec.AVX512, "drawn"+k.suffix())
	MOVQ(r.n, r.left)
	var words [][2]reg.VecVirtual
	r.units("main", drawn, "done", func(u int) {
		if u == 0 {
			words = g.Next(drawn)
		}
		kept := [2]reg.OpmaskVirtual{K(), K()}
		for v, w := range words[u] {
			VPCMPUD(noLess, threshold, w, kept[v])
		}
		x := r.fetch("src", u)
		if !k.bf16 {
			r.put(each(x, func(v int, x reg.VecVirtual) { VMULPS_Z(scale, x, kept[v], x) }), "dst", u)
			return
		}
		both := K()
		KUNPCKWD(kept[0], kept[1], both)
		y := r.narrow(each(x, func(_ int, x reg.VecVirtual) { VMULPS(scale, x, x) }))
		VMOVDQU16_Z(y, both, y)
		r.putWords(y, "dst", u)
	})
	Label("done")
	r.end()
}
