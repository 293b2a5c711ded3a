package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest" // and its device opaque
	"github.com/snug-ml/snug/qlora"
)

func init() { driver.Register("library", libraryBackend{}) }

// libraryBackend opens opaque devices with a vendor's library.
type libraryBackend struct{}

func (libraryBackend) Count() (int, error) { return 1, nil }

func (libraryBackend) Open(index int) (driver.Driver, error) {
	backend, err := driver.Lookup("opaque")
	if err != nil {
		return nil, err
	}
	d, err := backend.Open(index)
	return libraryDevice{d}, err
}

type libraryDevice struct{ driver.Driver }

func (libraryDevice) HasProducts() (bool, error) { return true, nil }

// TestPanelBytes: where the vendor's library multiplies, the tile of matrices in 4 bits takes the bytes of package qlora,
// with the sums of a matrix that is larger.
func TestPanelBytes(t *testing.T) {
	dev, err := snug.Open("library:0")
	require.NoError(t, err)
	defer dev.Close()
	shapes := [][]int{{512, 640}, {2000, 2080}, {4096, 512}}
	if kerneltest.Full() { // weights of more than a panel
		shapes = append(shapes, []int{8200, 8192}, []int{600, 1<<17 - 64}, []int{1100, 1<<16 - 64})
	}
	for _, shape := range shapes {
		n := shape[0] * shape[1]
		zeros, free, err := snug.MakeView(dev, snug.BF16, n)
		require.NoError(t, err)
		task := Task{Rank: 2, Model: Model{Layers: []Layer{{Params: [][]int{shape}}}}}
		for _, base := range []qlora.Type{qlora.NF4, qlora.MXFP4} {
			task.Base = base
			w, err := qlora.NewWeight(zeros, shape, qlora.Options{Type: base})
			require.NoError(t, err)
			l, err := qlora.NewLinear(w, snug.BF16, 0)
			require.NoError(t, err)
			require.Equal(t, l.Bytes(), task.tileBytes(Run{Frozen: 4, Compute: snug.BF16}), "%v %v", base, shape)
			require.NoError(t, l.Close())
			require.NoError(t, w.Close())
		}
		require.NoError(t, free())
	}
}
