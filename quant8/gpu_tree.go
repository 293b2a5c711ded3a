//go:build cuda || hip || metal || emu

package quant8

import (
	"math"
	"math/bits"
	"sort"
	"sync"

	"github.com/snug-ml/snug/internal/blockq"
)

// tree is the search tree with which kernels find nearest codes: 255 keys, by levels,
// with the root at 1 and the children of k at 2k and 2k+1. In order, the keys are, for
// every code except the last, the key of the largest value that has this code or a lower
// one. Keys are integers in the order of the floats, so that devices that take subnormals
// for zero compare them correctly.
type tree [256]int32

// The trees of the encoders that are built once.
var (
	signedTree   = sync.OnceValue(func() *tree { return newTree(signed()) })
	keepingTree  = sync.OnceValue(func() *tree { return newTree(keeping()) })
	unsignedTree = sync.OnceValue(func() *tree { return newTree(unsigned()) })
)

// treeOf returns the tree of an encoder. A tree that is not kept takes about 0.1 ms to
// build.
func treeOf(e *blockq.Encoder) *tree {
	switch e {
	case signed():
		return signedTree()
	case keeping():
		return keepingTree()
	case unsigned():
		return unsignedTree()
	}
	return newTree(e)
}

// newTree searches from -1 to 1 for the largest value of every code.
func newTree(e *blockq.Encoder) *tree {
	t := new(tree)
	next, last := keyOf(-1), keyOf(1)
	for c := range 255 {
		next += int32(sort.Search(int(last-next)+1, func(i int) bool { return int(e.Code(valueOf(next+int32(i)))) > c }))
		t[node(c)] = next - 1
	}
	return t
}

// node returns where the tree has its key number i, of 0 to 254 in order.
func node(i int) int {
	below := bits.TrailingZeros(uint(i + 1)) // levels below it
	return 1<<(7-below) + (i+1)>>(below+1)
}

// keyOf returns the bits of x, mapped so that they ascend with the value.
func keyOf(x float32) int32 { return turn(int32(math.Float32bits(x))) }

// valueOf is the inverse of keyOf.
func valueOf(key int32) float32 { return math.Float32frombits(uint32(turn(key))) }

func turn(bits int32) int32 {
	if bits < 0 {
		return bits ^ math.MaxInt32
	}
	return bits
}
